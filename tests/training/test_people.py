"""Training for people with several examples: whose row each is, what is refused, and what is said of it afterwards."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from often import some
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset

import decrescendo as dc
from decrescendo.accounting import Pld
from decrescendo.accounting.budget import Unit
from decrescendo.audit import many_runs
from decrescendo.audit.attacks import one_canary
from decrescendo.audit.likelihood import participation_evidence
from decrescendo.errors import FileRefused, InvalidType, InvalidValue
from decrescendo.plans import Plan, calibrate, curves
from decrescendo.plans.adaptive_plan import AdaptivePlan
from decrescendo.training import Checkpoints, Store, Task, train_task
from decrescendo.training.data.data_set import data_set_of
from decrescendo.training.data.people import check_index, check_people
from decrescendo.training.loop.progress import Progress

ROWS, MOST = 40, 3
BUDGET = dc.Budget(3.0, 1e-3, Unit.PERSON, MOST)
ONE_ROW_EACH = dc.Budget(1.0, 1e-5, Unit.PERSON, examples_per_person=1)
IDS = np.arange(ROWS) // MOST  # thirteen people with three rows, one with one


def plan_of(budget: dc.Budget = BUDGET, **more: Any) -> Plan:
    return calibrate(
        budget, dc.PoissonSampling(ROWS, 8), steps=4, privacy=curves.growing_mu(1.5), clip=[1.0] * 4, **more
    )


PLAN = plan_of()
DATA = torch.linspace(-1, 1, ROWS)[:, None], torch.ones(ROWS, 1)


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return (model(batch[0]) - batch[1]).square().sum(dim=1)


def trained(plan: Any = PLAN, people: Any = IDS, **more: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return dc.train(model, loss, DATA, plan, sgd, seed=0, people=people, **more)


def after_two(progress: Progress) -> bool:
    return progress.step == 2


class TestPlans:
    def test_the_promise_is_of_all_examples_of_one_person(self) -> None:
        assert PLAN.guarantee == Pld().certify(PLAN.ledger, BUDGET)
        assert Pld(group=MOST).bracket(PLAN.ledger, 1e-3)[1] <= 3.0
        assert Pld(group=MOST).bracket(PLAN.ledger, 1e-3)[1] >= 3.0 * 0.999
        example = plan_of(dc.Budget(3.0, 1e-3))
        assert (PLAN.noise_multiplier > 1.5 * example.noise_multiplier).all()

    def test_rows_of_people_are_drawn_and_clipped_as_ever(self) -> None:
        assert "adding or removing one person with at most 3 examples" in PLAN.describe()
        assert "each of 40 examples with probability" in PLAN.describe()

    @pytest.mark.slow
    @pytest.mark.parametrize("moving", some([True, False], 1))
    def test_the_file_says_how_many_and_is_read_back(self, moving: bool, tmp_path: Path) -> None:
        plan = plan_of(batch=curves.linear(4, 12)) if moving else PLAN
        plan.save(tmp_path / "plan.json")
        again = Plan.load(tmp_path / "plan.json")
        assert again == plan
        assert again.budget.examples_per_person == again.guarantee.examples_per_person == MOST
        lines = list(again.confirm(again.ledger))
        assert "consistent with the guarantee" in lines[1]

    def test_plans_for_examples_stay_as_they_were(self) -> None:
        text = plan_of(dc.Budget(3.0, 1e-3)).to_json()
        assert '"version": 1' in text or '"version":1' in text
        assert "examples_per_person" not in text

    def test_a_file_without_the_number_is_refused(self) -> None:
        from decrescendo.base import sealed, strict_json

        content = strict_json.loads(PLAN.to_json())
        del content["sha256" if "sha256" in content else next(k for k in content if "sha" in k)]
        del content["guarantee"]["examples_per_person"]
        with pytest.raises(FileRefused, match="delta and unit of its budget"):
            Plan.from_json(sealed.seal(content))

    @pytest.mark.slow
    def test_a_plan_that_promises_a_person_what_an_example_has_is_contradicted(self) -> None:
        low = Pld().certify(PLAN.ledger, dc.Budget(3.0, 1e-3)).epsilon
        wrong = dc.Guarantee(low, 1e-3, Unit.PERSON, "Pld", "upper", None, MOST)
        forged = Plan(BUDGET, PLAN.sampling, PLAN.schedule, wrong)
        with pytest.raises(dc.errors.AccountingError, match="must not be below the true epsilon"):
            list(forged.confirm(forged.ledger))
        with pytest.raises(InvalidValue, match="must promise what its releases spend"):
            trained(forged)
        with pytest.raises(InvalidValue, match="must have the delta and unit of its budget"):
            Plan(BUDGET, PLAN.sampling, PLAN.schedule, dc.Guarantee(low, 1e-3, Unit.PERSON, "Pld", "upper"))

    @pytest.mark.parametrize("most", [ROWS + 1, 10**9, 10**400], ids=["one more", "many", "no float"])
    def test_a_person_with_more_examples_than_there_are_is_refused_before_it_is_judged(self, most: int) -> None:
        """To judge 10^9 took eight bytes each, and the page that was asked for it the machine's memory."""
        with pytest.raises(InvalidValue, match="at most the 40 examples that there are"):
            plan_of(dc.Budget(3.0, 1e-3, Unit.PERSON, most))
        if most > 10**18:
            return
        from decrescendo.base import sealed, strict_json

        body = strict_json.loads(PLAN.to_json())
        del body[next(key for key in body if "sha" in key)]
        body["budget"]["examples_per_person"] = body["guarantee"]["examples_per_person"] = most
        with pytest.raises(FileRefused, match="at most the 40 examples that there are"):
            Plan.from_json(sealed.seal(body))

    def test_noise_decided_on_the_way_is_refused(self) -> None:
        with pytest.raises(InvalidValue, match="must protect one example"):
            AdaptivePlan(BUDGET, dc.PoissonSampling(ROWS, 8), "RenyiFilter(order=16)", 4, "fixed")
        with pytest.raises(InvalidValue, match="a filter must protect one example"):
            dc.accounting.RenyiFilter(BUDGET, 16)

    @pytest.mark.slow
    @given(st.integers(2, 4), st.floats(1.1, 3.0))
    @settings(max_examples=5)
    def test_more_examples_a_person_never_need_less_noise(self, most: int, epsilon: float) -> None:
        few, many = (plan_of(dc.Budget(epsilon, 1e-3, Unit.PERSON, each)).noise_multiplier for each in (most - 1, most))
        assert (many > few).all()


class Id(str):
    """Of a user's."""


class TestIds:
    @pytest.mark.parametrize(
        "people", [IDS, IDS.tolist(), torch.from_numpy(IDS), tuple(map(str, IDS)), IDS.astype(float)]
    )
    def test_forms_of_ids(self, people: Any) -> None:
        assert np.array_equal(check_people(people, BUDGET, ROWS), check_people(IDS, BUDGET, ROWS))

    @pytest.mark.parametrize(
        ("people", "error", "says"),
        [
            (None, InvalidValue, "must be given people=, an id for each row, got none"),
            (IDS // 2, InvalidValue, "one person must have at most 3 rows, as the plan says, got one with 6"),
            (IDS[1:], InvalidValue, "an id for each of the 40 rows, got 39"),
            ([None, *IDS[1:]], InvalidValue, "got None for row 0"),
            ([math.nan, *IDS[1:].astype(float)], InvalidValue, "got nan for row 0"),
            (["", *map(str, IDS[1:])], InvalidValue, "got '' for row 0"),
            (IDS.reshape(2, 20), InvalidType, "a list or a one-dimensional array"),
            ("a" * ROWS, InvalidType, "a list or a one-dimensional array"),
            (iter(IDS), InvalidType, "a list or a one-dimensional array"),
            ([[1]] * ROWS, InvalidType, "must be a text or a number, got list"),
        ],
    )
    def test_what_is_not_an_id_a_row_is_refused_before_the_first_step(
        self, people: Any, error: type[Exception], says: str
    ) -> None:
        drawn = []
        torch.manual_seed(0)
        model = nn.Linear(1, 1)
        trainer = dc.Trainer(model, loss, PLAN, torch.optim.SGD(model.parameters(), lr=0.1), seed=0)
        with pytest.raises(error, match=says):
            drawn.extend(trainer.batches(DATA, people=people))
        assert not drawn
        assert not len(trainer.ledger)

    @given(st.lists(st.integers(0, 6), min_size=1, max_size=30), st.integers(1, 6))
    def test_the_bound_is_that_of_counting(self, ids: list[int], most: int) -> None:
        budget = dc.Budget(1.0, 1e-3, Unit.PERSON, most)
        if max(ids.count(one) for one in ids) <= most:
            assert check_people(ids, budget, len(ids)) is not None
        else:
            with pytest.raises(InvalidValue, match="one person must have at most"):
                check_people(ids, budget, len(ids))

    def test_ids_with_a_plan_for_examples_are_refused(self) -> None:
        with pytest.raises(InvalidValue, match="people must come with a plan that protects people"):
            trained(plan_of(dc.Budget(3.0, 1e-3)))

    @pytest.mark.parametrize("one", [torch.tensor(1), ["ann"], object()], ids=["tensors", "lists", "objects"])
    def test_ids_that_do_not_equal_each_other_are_refused(self, one: Any) -> None:
        """Two tensors of one number are two keys of a dict: one person was counted as three."""
        ids = np.empty(3, dtype=object)
        ids[:] = [one.clone() if isinstance(one, Tensor) else one for _ in range(3)]
        with pytest.raises(InvalidType, match=r"each id in people must be a text or a number, got \w+ for row 0"):
            check_people(ids, ONE_ROW_EACH, 3)

    @pytest.mark.parametrize("ids", [["7", 7, 8], [b"7", "7", "8"], np.array(["7", 7, 8], dtype=object)])
    def test_texts_and_numbers_together_are_refused(self, ids: Any) -> None:
        with pytest.raises(InvalidType, match="all texts or all numbers"):
            check_people(ids, ONE_ROW_EACH, 3)

    @pytest.mark.parametrize("missing", [None, float("nan"), "pandas"])
    def test_a_row_without_an_id_is_named(self, missing: Any) -> None:
        pandas = pytest.importorskip("pandas")
        ids = pandas.Series(["a", pandas.NA if missing == "pandas" else missing, "b"])
        with pytest.raises(InvalidValue, match=r"every row must have an id in people, got \w+ for row 1"):
            check_people(ids, ONE_ROW_EACH, 3)

    def test_ids_of_a_frame_that_was_shuffled_are_refused(self) -> None:
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "id": ["a", "a", "b", "b"]})
        shuffled = frame.iloc[[2, 0, 3, 1]]
        assert dc.training.by_person(shuffled[["x"]], shuffled["id"], most=2)[1].tolist() == [[0.5, 0.5]] * 2
        assert dc.training.by_person(torch.ones(4, 1), frame["id"], most=2)[1].shape == (2, 2)
        for data in (shuffled[["x"]], {"x": shuffled["x"]}, [shuffled["x"]], (shuffled["x"],)):
            with pytest.raises(InvalidValue, match="must have the index of the rows"):
                check_index(data, frame["id"])
        with pytest.raises(InvalidValue, match="must have the index of the rows"):
            dc.training.by_person(shuffled[["x"]], frame["id"], most=2)
        budget = dc.Budget(2.0, 1e-3, Unit.PERSON, examples_per_person=2)
        plan = calibrate(budget, dc.PoissonSampling(4, 2), steps=1, clip=1.0)
        model = nn.Linear(1, 1).double()
        with pytest.raises(InvalidValue, match="must have the index of the rows"):
            dc.train(
                model, lambda model, batch: model(batch["x"][:, None]).squeeze(1), shuffled[["x"]], plan,
                torch.optim.SGD(model.parameters(), lr=0.1), seed=0, people=frame["id"],
            )  # fmt: skip

    @pytest.mark.parametrize("ids", [[True, 2, 3.0], np.arange(3), [np.str_("a"), "b", "c"], [1, np.int64(2), 3]])
    def test_numbers_of_any_kind_and_texts_are_taken(self, ids: Any) -> None:
        assert check_people(ids, ONE_ROW_EACH, 3) is not None

    @pytest.mark.parametrize("ids", [[Id("ann")] * 3, [np.float64(2), Id("a"), 1]])
    def test_ids_of_a_class_of_the_users_are_refused(self, ids: Any) -> None:
        with pytest.raises(InvalidType, match="a text or a number, got Id"):
            check_people(ids, ONE_ROW_EACH, 3)

    @pytest.mark.parametrize("blank", ["", " \t", b"", b"  ", None, float("nan")])
    def test_blank_ids_are_refused(self, blank: Any) -> None:
        kind = b"ann" if isinstance(blank, bytes) else 3.0 if isinstance(blank, float) else "ann"
        with pytest.raises(InvalidValue, match="for row 1"):
            check_people([kind, blank], ONE_ROW_EACH, 2)


class TestRuns:
    def test_the_run_and_its_statement_speak_of_people(self, tmp_path: Path) -> None:
        run = trained()
        assert run.guarantee == Pld().certify(PLAN.ledger, BUDGET)
        run.save(tmp_path / "run")
        again = dc.Run.load(tmp_path / "run")
        assert again.guarantee == run.guarantee
        facts = run.statement(spent=4).facts
        assert facts["promise"]["examples_per_person"] == MOST
        assert facts["spent"][-1]["epsilon"] == run.guarantee.epsilon
        assert facts["accounting"]["clt"] is None
        page = (tmp_path / "run" / "statement.md").read_text()
        for words in (
            "-differential privacy for one person with at most 3 examples**",
            "one has all examples of one person more than the other, at most 3",
            "of 40 examples expected", "each example takes part",
            "Rows independent: yes, checked at every pass. (A row is one example.)",
            "people with several ids",
        ):  # fmt: skip
            assert words in page
        assert "people behind several" not in page

    def test_training_itself_is_that_of_the_same_noise_for_examples(self) -> None:
        """The unit changes what is promised, and nothing of what is released."""
        as_examples = Plan(
            dc.Budget(3.0, 1e-3),
            PLAN.sampling,
            PLAN.schedule,
            Pld().certify(PLAN.ledger, dc.Budget(3.0, 1e-3)),
        )
        one, other = trained(), trained(as_examples, people=None)
        assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)
        assert one.ledger == other.ledger
        assert other.guarantee.epsilon < one.guarantee.epsilon / 2

    def test_killed_and_resumed_the_bits_and_the_bound_are_the_same(self, tmp_path: Path) -> None:
        whole = trained()
        trained(checkpoints=Checkpoints(tmp_path), callback=after_two)
        with pytest.raises(InvalidValue, match="got one with 6"):
            trained(people=IDS // 2, checkpoints=Checkpoints(tmp_path, resume=True))
        rest = trained(checkpoints=Checkpoints(tmp_path, resume=True))
        assert all(torch.equal(whole.weights[name], rest.weights[name]) for name in whole.weights)
        assert rest.guarantee == whole.guarantee

    def test_a_store_of_people_reserves_people(self, tmp_path: Path) -> None:
        store = Store.create(tmp_path / "a.db", dc.Budget(7.0, 1e-2, Unit.PERSON, MOST), dataset="patients", rows=ROWS)
        store.start(PLAN)
        trained(store=store)
        assert Store(tmp_path / "a.db").budget == store.budget
        with pytest.raises(InvalidValue, match="person with at most 3 examples, got example"):
            store.start(plan_of(dc.Budget(1.0, 1e-3)))
        with pytest.raises(InvalidValue, match="with at most 3 examples, got person with at most 2"):
            store.start(plan_of(dc.Budget(1.0, 1e-3, Unit.PERSON, 2)))
        declared = Store.create(
            tmp_path / "b.db", dc.Budget(7.0, 1e-2, Unit.PERSON, MOST), dataset="patients", rows=ROWS,
            composition="declared",
        )  # fmt: skip
        declared.start(PLAN)
        assert f"{Pld(group=MOST).bracket(PLAN.ledger, 1e-2)[1]:.6g}" in declared.describe()

    def test_a_task_has_ids(self) -> None:
        task = Task(model=nn.Linear(1, 1), loss=loss, data=DATA, people=lambda: IDS)
        assert train_task(task, PLAN, seed=0).guarantee.examples_per_person == MOST

    def test_a_row_that_is_a_person_is_clipped_as_one(self) -> None:
        """Sampling by person: a row holds all examples of one, its loss is their mean, and one row is one person."""
        people = torch.randn(12, 4, 2, generator=torch.Generator().manual_seed(1))

        def of_people(model: nn.Module, batch: Any) -> torch.Tensor:
            return model(batch).square().mean(dim=(1, 2))

        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        each = []
        for person in people:
            model.zero_grad()
            model(person).square().mean().backward()
            gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            each.append(gradient * min(1.0, 0.5 / float(gradient.norm())))
        model.zero_grad()
        found = dc.clipping.Engine(model, of_people).clipped_sum(people, 0.5)
        total = torch.cat([found.gradients[name].flatten() for name, _ in model.named_parameters()])
        torch.testing.assert_close(total, torch.stack(each).sum(0), rtol=1e-4, atol=1e-5)
        budget = dc.Budget(3.0, 1e-3, Unit.PERSON)
        plan = calibrate(budget, dc.PoissonSampling(12, 4), steps=2, privacy=[1.0] * 2, clip=[1.0] * 2)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        run = dc.train(model, of_people, people, plan, sgd, seed=0, people=range(12))
        assert "-DP per person, Pld" in str(run.guarantee)


class TestAudit:
    def test_evidence_is_the_ratio_of_the_two_laws(self) -> None:
        from scipy.stats import binom, norm

        x, p, z, k = np.array([-1.0, 0.3, 2.5]), 0.2, 1.5, 3
        mixed = sum(binom.pmf(j, k, p) * norm.pdf(x, j, z) for j in range(k + 1))
        np.testing.assert_allclose(participation_evidence(x, p, z, k), np.log(mixed / norm.pdf(x, 0, z)), rtol=1e-12)
        np.testing.assert_allclose(
            participation_evidence(x, p, z, 1), np.logaddexp(math.log(0.8), math.log(0.2) + (x - 0.5) / z**2)
        )

    @pytest.mark.slow
    def test_a_person_accounted_as_one_example_is_caught_and_an_honest_plan_is_not(self) -> None:
        """All rows of one person come and go. Of the noise that hides one example the audit finds more than it
        promises; of the noise for the person, nothing."""
        people = dc.Budget(1.0, 1e-2, Unit.PERSON, 8)
        sampling = dc.PoissonSampling(32, 16)

        def plan(budget: dc.Budget) -> Plan:
            return calibrate(budget, sampling, steps=2, privacy=[1.0] * 2, clip=[1.0] * 2)

        honest, example = plan(people), plan(dc.Budget(1.0, 1e-2))
        # The build that is broken: a person's plan with an example's noise, promised as it was for the example.
        claimed = dc.Guarantee(example.guarantee.epsilon, 1e-2, Unit.PERSON, "Pld", "upper", None, 8)
        broken = Plan(people, sampling, example.schedule, claimed)
        data = torch.ones(32, 2)

        def attacked(plan: Plan, runs: int) -> float:
            attack = one_canary(plan, data, lambda: nn.Linear(2, 1), lambda model, batch: model(batch)[:, 0])
            return many_runs(attack, runs=runs, seed=3).lower

        assert attacked(honest, 60) <= 1.0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("decrescendo.training.loop.source.check_promise", print)
            assert attacked(broken, 120) > 1.0


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (["ann", "nan"], "must have an id in people, got 'nan'"),
        (["ann", "None "], "must have an id in people, got 'None '"),
        (["ann", "<NA>"], "must have an id in people, got '<NA>'"),
        (["ann", "ann "], "must have one id in people, got 'ann' and 'ann '"),
        (["Jos\u00e9", "Jose\u0301"], "must have one id in people, got .* Unicode"),
    ],
)
def test_ids_that_are_none_and_ids_spelled_in_two_ways_are_refused(ids: list[str], words: str) -> None:
    for given_as in (ids, np.array(ids), np.array(ids, dtype=object)):
        with pytest.raises(InvalidValue, match=words):
            check_people(given_as, BUDGET, len(ids))
    assert check_people(["Ann", "ann", "Nan"], BUDGET, 3) is not None  # they may be three people


def test_one_record_is_not_of_two_people() -> None:
    rows = [{"inputs": row} for row in torch.ones(ROWS // 2, 1)]
    whose = np.arange(ROWS // 2)
    for data in (rows * 2, Subset(TensorDataset(torch.ones(ROWS // 2, 1)), [*whose, *whose])):
        assert data_set_of(data, None, np.tile(whose, 2), ROWS, BUDGET).table.count == ROWS
        with pytest.raises(InvalidValue, match="must be in rows of one person"):
            data_set_of(data, None, np.arange(ROWS), ROWS, BUDGET)


def test_a_run_of_people_says_what_it_takes_ids_for() -> None:
    assert [assumption.code for assumption in trained().assumptions] == ["own-ids"]
