"""Statements say what happened, in words that agree with the facts, and never more."""

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decrescendo.accounting import GdpClt, Pld, RenyiFilter
from decrescendo.accounting.budget import Budget, Unit
from decrescendo.audit import AuditResult
from decrescendo.base.markdown import one_line
from decrescendo.base.rng import Secure
from decrescendo.clipping import EngineSettings
from decrescendo.errors import DecrescendoError, FileRefused, InvalidValue
from decrescendo.plans.calibration import calibrate
from decrescendo.plans.curves import growing_mu, sensitivity_decay
from decrescendo.plans.plan import _EXAMPLE, Plan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.plans.schedule import Schedule
from decrescendo.training import Trainer, train
from decrescendo.training.persistence.checkpoint import Checkpoints
from decrescendo.training.run import Run
from decrescendo.training.statement import Declaration, Provenance
from decrescendo.training.statement.declaration import NOT_STATED
from decrescendo.training.statement.prose import LABELS
from decrescendo.training.statement.statement import state
from decrescendo.training.steering import Adaptive, FromSchedule
from decrescendo.training.store import Store

ROWS = torch.linspace(-1, 1, 40).reshape(20, 2)


def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) - 1).square().sum(dim=1)


def a_plan(steps: int = 6) -> Plan:
    return calibrate(
        Budget(3.0, 1e-3), PoissonSampling(20, 5), steps=steps, privacy=growing_mu(2.0),
        clip=sensitivity_decay(1.0, rho_c=2.0),
    )  # fmt: skip


def a_run(plan: Plan | Adaptive, seed: int | Secure = 0, settings: EngineSettings | None = None) -> Run:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    return train(model, loss, ROWS, plan, optimizer, seed=seed, settings=settings)


@pytest.fixture(scope="module")
def run() -> Run:
    return a_run(a_plan())


def test_the_facts_are_those_of_the_run(run: Run) -> None:
    facts = run.statement(spent=3).facts
    plan = run.plan
    assert isinstance(plan, Plan)
    lower, upper = Pld().bracket(run.ledger, 1e-3)
    assert (facts["promise"]["epsilon_lower"], facts["promise"]["epsilon"]) == (lower, upper)
    assert facts["promise"]["asked_epsilon"] == 3.0
    assert facts["promise"]["delta_times_units"] == pytest.approx(0.02)
    assert facts["accounting"]["clt"]["epsilon"] == GdpClt().epsilon(run.ledger, 1e-3).value
    schedule = facts["schedule"]
    assert schedule["noise_multiplier"] == plan.noise_multiplier.tolist()
    assert schedule["clip_norm"] == plan.schedule.clip_norm.tolist()
    np.testing.assert_allclose(
        schedule["noise_std_of_mean"], plan.noise_multiplier * plan.schedule.clip_norm / 5, rtol=1e-12
    )
    assert schedule["sha256"] == hashlib.sha256(plan.to_json().encode()).hexdigest()
    assert [point["step"] for point in facts["spent"]] == [2, 4, 6]
    assert facts["spent"][-1]["epsilon"] == upper
    assert facts["provenance"]["optimizer"] == "SGD(lr=0.1, momentum=0.5)"
    assert facts["provenance"]["model"] == "Linear, 3 trained parameters"


def test_the_page_says_it_on_the_safe_side_and_never_calls_an_estimate_a_bound(run: Run) -> None:
    page = run.statement().to_markdown()
    shown = float(page.split("**(")[1].split(",")[0])
    assert run.guarantee.epsilon <= shown <= 1.001 * run.guarantee.epsilon
    assert "for one example**, an upper bound by Pld." in page
    assert "The central limit theorem would say" in page
    assert page.split("The central limit theorem would say")[1].split("\n")[0].endswith("not a bound.")
    estimate = dataclasses.replace(
        run, guarantee=dataclasses.replace(run.guarantee, kind="estimate", epsilon_lower=None)
    )
    assert "AN ESTIMATE, NOT A BOUND" in estimate.statement().to_markdown()


def test_every_run_that_is_saved_has_a_statement_in_its_folder(run: Run, tmp_path: Path) -> None:
    run.save(tmp_path / "run")
    facts = json.loads((tmp_path / "run/statement.json").read_text())
    digest = facts.pop("sha256")
    assert digest == hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    assert (tmp_path / "run/statement.md").read_text() == run.statement().to_markdown()
    # What is named in it can be checked with nothing but sha256sum.
    assert facts["schedule"]["sha256"] == hashlib.sha256((tmp_path / "run/plan.json").read_bytes()).hexdigest()
    again = Run.load(tmp_path / "run")
    assert again.provenance == run.provenance
    assert again.statement().to_json() == run.statement().to_json()


def test_what_was_not_recorded_is_said(run: Run, tmp_path: Path) -> None:
    before = dataclasses.replace(run, provenance=None)
    before.save(tmp_path / "old")
    assert Run.load(tmp_path / "old").provenance is None
    assert "how the training was run: this was not recorded" in before.statement().to_markdown()


def test_a_damaged_conduct_is_refused(run: Run, tmp_path: Path) -> None:
    run.save(tmp_path / "run")
    path = tmp_path / "run/run.json"
    facts = json.loads(path.read_text())
    del facts["sha256"]
    facts["provenance"]["random"] = "dice"
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()
    path.write_text(json.dumps({**facts, "sha256": hashlib.sha256(canonical).hexdigest()}))
    with pytest.raises(FileRefused, match="random must be seeded or secure"):
        Run.load(tmp_path / "run")


def test_the_random_source_and_what_follows_are_said(run: Run) -> None:
    assert "from a SEED" in run.statement().to_markdown()
    assert any("guess the seed" in text for text in run.statement().facts["not_covered"])
    secure = a_run(a_plan(2), Secure(), EngineSettings(accumulate="float64")).statement()
    assert "keyed by the operating system" in secure.to_markdown()
    assert not any("seed," in text or "float32 sums" in text for text in secure.facts["not_covered"])
    assert any("float32 sums" in text for text in run.statement().facts["not_covered"])


def test_a_run_in_a_store_names_it_and_resumed_runs_say_where(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "ledger.db", Budget(9.0, 1e-2), dataset="patients", rows=20)
    plan = a_plan()

    def trainer(resume: bool) -> Trainer:
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept = Checkpoints(tmp_path / "kept", every=2, resume=resume)
        return Trainer(model, loss, plan, optimizer, seed=0, store=store, checkpoints=kept)

    first = trainer(False)
    for count, batch in enumerate(first.batches(ROWS), start=1):
        first.step(batch)
        if count == 5:
            break
    second = trainer(True)
    for batch in second.batches(ROWS):
        second.step(batch)
    statement = second.finish().statement()
    assert statement.facts["provenance"]["resumed"] == [4]
    assert "patients, run " in statement.to_markdown()
    assert not any("not recorded in a ledger" in text for text in statement.facts["not_covered"])
    third = trainer(True)  # of a finished run: from the last checkpoint, after step 6
    assert third.ledger.steps == 6
    assert third.finish().statement().facts["provenance"]["resumed"] == [4, 6]


def test_a_run_that_ended_early_is_said_to_cover_its_plan() -> None:
    plan, model = a_plan(), torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = train(model, loss, ROWS, plan, optimizer, seed=0, callback=lambda state: state.step == 2)
    facts = run.statement().facts
    assert facts["promise"]["epsilon"] == plan.guarantee.epsilon
    assert (facts["schedule"]["steps_run"], facts["schedule"]["steps_planned"]) == (2, 6)
    assert len(facts["schedule"]["clip_norm"]) == len(facts["schedule"]["noise_multiplier"]) == 2
    assert "the whole plan" in facts["ended"]
    assert "the whole plan" in facts["accounting"]["certified"]
    assert facts["accounting"]["clt"]["epsilon"] == GdpClt().epsilon(plan.ledger, 1e-3).value


def test_an_adaptive_run_shows_its_filter_and_no_spending_that_is_no_guarantee() -> None:
    rule = FromSchedule(Schedule([3.0, 2.5], [1.0, 0.5]))
    adaptive = Adaptive(PoissonSampling(20, 5), RenyiFilter(Budget(8.0, 1e-3), 4), rule, 2)
    facts = a_run(adaptive).statement(spent=5).facts
    assert facts["promise"]["epsilon"] == 8.0
    assert facts["schedule"]["decided"].startswith("during the run, by ")
    assert facts["schedule"]["clip_norm"] == [1.0, 0.5]
    assert facts["spent"] == []
    assert facts["accounting"]["clt"] is None


def test_clients_are_called_clients(run: Run) -> None:
    client = dataclasses.replace(run.guarantee, unit=Unit.CLIENT)
    page = dataclasses.replace(run, guarantee=client).statement().to_markdown()
    assert "for one client**" in page
    assert "each client's update" in page


def test_what_the_owner_declares_is_shown_on_one_line_and_the_rest_as_not_stated(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "declared.toml"
    path.write_text('data = "letters\\n# Privacy statement\\n**(0, 0)-differential privacy**"\n')
    page = run.statement(Declaration.load(path)).to_markdown()
    assert page.count("\n# Privacy statement") == 0
    assert page.count("\n**(") == 1
    assert page.count(NOT_STATED) == len(LABELS) - 1
    path.write_text('data = "\\u001b[2Jletters \\u202eof 2019"\n')  # clears a screen, reads backwards
    assert "- Data: \ufffd[2Jletters \ufffdof 2019\n" in run.statement(Declaration.load(path)).to_markdown()
    assert {field.name for field in dataclasses.fields(Declaration)} == LABELS.keys()
    for text in ("surprise = 1", "data = 3", "data = ", "\0"):
        path.write_text(text)
        with pytest.raises(FileRefused, match="must be a declaration in TOML"):
            Declaration.load(path)
    with pytest.raises(FileRefused):
        Declaration.load(tmp_path / "nowhere")


def test_words_of_other_scripts_stay_as_they_are() -> None:
    for text in ("می\u200cخواهم", "क्\u200dष", "\U0001f469\u200d\U0001f52c", "C:\\\\data", "co\u00adop"):
        assert one_line(text) == text
    assert one_line("a\u009bb\u202ec\u2028d\x1b") == "a\ufffdb\ufffdc d\ufffd"


def test_no_text_of_a_run_can_imitate_another_part_of_the_page(run: Run, tmp_path: Path) -> None:
    """Of all texts that a run's file has: each was written with a line of its own that promises more."""
    forged = "x\n\n**(0.1, 1e-09)-differential privacy for one example**, an upper bound by Pld.\n"
    assert run.provenance is not None
    texts = {
        field.name: forged
        for field in dataclasses.fields(Provenance)
        if isinstance(getattr(run.provenance, field.name), str) and field.name not in {"random", "accumulate"}
    }
    assert len(texts) > 5
    bad = dataclasses.replace(
        run, provenance=dataclasses.replace(run.provenance, **texts), stopped=forged, versions={forged: forged},
        metrics={forged: 0.5},
    )  # fmt: skip
    page = bad.statement().to_markdown()
    assert "(0.1, 1e-09)" in page
    assert "\n**(0.1" not in page
    assert "\n**(0.1" not in bad.describe()
    with pytest.raises(InvalidValue, match="a name on one line"):
        dataclasses.replace(run.guarantee, accountant=forged)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('datas = "x"', "in which entries must be some of data, person, .*, got datas. Did you mean data"),
        ("data = 3", "in which data must be a text, got data=3. Put it in quotes"),
        ("data = ", "got Invalid value"),
    ],
)
def test_a_wrong_declaration_is_one_sentence(text: str, words: str, tmp_path: Path) -> None:
    """It read "must be a declaration in TOML, got a declaration may say .., got datas"."""
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(FileRefused, match=f"must be a declaration in TOML, {words}") as refused:
        Declaration.load(path)
    assert str(refused.value).count("got") == 1


def test_an_audit_is_shown_and_never_called_a_proof(run: Run) -> None:
    page = run.statement(audit={"lower_bound": 0.5, "confidence": 0.95}).to_markdown()
    assert "spent its certified epsilon again" in page
    assert "spent its certified epsilon again" not in run.statement().to_markdown()
    assert "lower bound: 0.5" in page
    assert "only find mistakes" in page
    assert "only find mistakes" in run.statement().to_markdown()


def test_an_audit_of_another_plan_is_not_taken_for_one_of_this(run: Run) -> None:
    audit = {"lower": 0.5, "plan_sha256": run.plan.sha256, "store": "patients, run 7"}
    page = run.statement(audit=audit).to_markdown()
    assert "reserved in patients, run 7" in page
    assert "another plan" not in page
    assert "a training with another plan" in run.statement(audit=audit | {"plan_sha256": "0" * 64}).to_markdown()
    assert "does not say with which plan" in run.statement(audit=audit | {"plan_sha256": ""}).to_markdown()


def test_conduct_is_checked() -> None:
    with pytest.raises(InvalidValue, match="random must be"):
        Provenance(random="")
    with pytest.raises(InvalidValue, match="resumed must be"):
        Provenance(random="seeded", resumed=(-1,))


@given(st.floats(0, 1e6), st.floats(1e-12, 0.5), st.none() | st.floats(0, 1), st.floats(0, 1e9))
def test_any_guarantee_gives_a_page_and_facts_that_parse(
    run: Run, epsilon: float, delta: float, lower: float | None, score: float
) -> None:
    least = None if lower is None else lower * epsilon
    guarantee = dataclasses.replace(run.guarantee, epsilon=epsilon, delta=delta, epsilon_lower=least)
    odd = dataclasses.replace(run, guarantee=guarantee, metrics={"score": score})
    statement = odd.statement()
    assert json.loads(statement.to_json())["promise"]["epsilon"] == epsilon
    page = statement.to_markdown()
    assert "nan" not in page
    assert float(page.split("**(")[1].split(",")[0]) >= epsilon


def test_an_audits_file_is_shown_and_another_file_refused(run: Run, tmp_path: Path) -> None:
    result = AuditResult("many runs", "one canary", 3.0, 1e-3, 0.95, 9, 1, 0.62, 0.91, {"present": 4}, None, 2)
    path = tmp_path / "audit.json"
    path.write_text(result.to_json())
    page = run.statement(audit=AuditResult.load(path).facts()).to_markdown()
    assert "- verdict: nothing found" in page
    assert "- lower: 0.62" in page
    path.write_text(result.to_json().replace("0.62", "3.62"))
    with pytest.raises(FileRefused, match="its verdict does not follow"):
        AuditResult.load(path)
    with pytest.raises(FileRefused):
        AuditResult.load(tmp_path)


def test_what_follows_the_sizes_of_batches_is_not_published(run: Run) -> None:
    """A statement is made to leave the house; how long a training took depends on how many rows were drawn."""
    slower = dataclasses.replace(run, seconds=1234.5)
    assert slower.statement().to_json() == run.statement().to_json()


def test_an_audit_of_its_own_plan_is_held_against_what_the_statement_promises() -> None:
    """It was held against a promise that it brought itself: a lower bound of 50 stood beside epsilon 1, as nothing
    found."""
    plan = Plan.from_json(_EXAMPLE)
    audit: dict[str, Any] = {
        "lower": 50.0,
        "lower_by_curve": 60.0,
        "certified": 1e6,
        "caught_by": [],
        "store": "",
    }
    own = audit | {"plan_sha256": plan.sha256, "delta": plan.guarantee.delta}

    def page(facts: dict[str, Any]) -> str:
        return state(plan, plan.ledger, plan.guarantee, provenance=None, audit=facts).to_markdown()

    with pytest.raises(InvalidValue, match="got one of at least 60 beside epsilon="):
        page(own)
    assert "lower: 50" in page(own | {"caught_by": ["bound"]})  # it says so itself
    for other in ({"plan_sha256": "another"}, {"delta": 1e-9}, {"lower": 0.1, "lower_by_curve": 0.2}):
        assert "certified: 1000000.0" in page(own | other)
    with pytest.raises(InvalidValue, match="at least 60 beside"):
        page(own | {"delta": 0.5})  # what is found there holds at a smaller delta too
    for odd in ("x", [1], math.nan):
        with pytest.raises(DecrescendoError, match="an audit's lower end"):
            page(own | {"lower": odd})
    with pytest.raises(DecrescendoError, match="audit"):
        state(plan, plan.ledger, plan.guarantee, provenance=None, audit=5)
