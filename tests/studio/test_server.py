"""Facts: the studio answers this machine only, computes what the library does, and refuses in one sentence."""

import base64
import http.client
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from often import some

import decrescendo as dc
from decrescendo.accounting import GdpClt, Pld, Rdp, smallest_cap, trade_off
from decrescendo.errors import InvalidValue
from decrescendo.plans import Plan
from decrescendo.studio.facts import Subject, assess, outline
from decrescendo.studio.server import HEADERS, Desk, Studio
from decrescendo.studio.settings import read
from decrescendo.training import Store, smoothed
from decrescendo.training.run import Run

from .conftest import Open

FORM: dict[str, Any] = {
    "epsilon": 2, "delta": 1e-5, "unit": "example", "dataset_size": 1000, "batch": 100, "steps": 30,
    "noise": {"shape": "exponential", "fall": 1.25}, "clip": {"shape": "exponential", "start": 1.5, "fall": 3},
    "batches": {"shape": "constant"},
}  # fmt: skip


def send(
    studio: Studio, path: str, body: bytes | None = None, *, host: str | None = None, method: str = "POST"
) -> tuple[int, dict[str, str], bytes]:
    """One request as a browser or a stranger would send it."""
    address = urlsplit(studio.url)
    connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=60)
    headers = {"Host": host or f"127.0.0.1:{address.port}"}
    connection.request(method, path, body=body, headers=headers)
    answer = connection.getresponse()
    found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return found


def ask(studio: Studio, name: str, asked: Any) -> dict[str, Any]:
    _, _, body = send(studio, f"{urlsplit(studio.url).path}api/{name}", json.dumps(asked).encode())
    assert body.startswith(b"{"), body
    return json.loads(body)


def given(*files: Path) -> dict[str, Any]:
    content = {file.name: base64.b64encode(file.read_bytes()).decode() for file in files}
    return {"files": content, "sample_rate": 0.1, "delta": 1e-5}


def saved_run(folder: Path) -> Run:
    plan = read(FORM).plan(quick=True)
    run = Run(plan, plan.ledger.first(12), plan.guarantee, weights={}, metrics={"accuracy": 0.5})
    run.save(folder)
    return run


def rows_of(subject: Subject) -> dict[str, str]:
    return {row[0]: row[1] for row in outline(subject)["rows"]}


def test_noise_that_is_correlated_and_rates_of_strata_are_shown_as_the_plan_has_them() -> None:
    budget = dc.Budget(2.0, 1e-4)
    banded = dc.calibrate(budget, dc.PoissonSampling(400, 40), steps=12, clip=1.0, bands=4)
    shown = rows_of(Subject.of("plan", banded))["Noise on the sum of a step"]
    assert shown.startswith(f"{banded.noise_std[0]:.4g}")
    strata = dc.StratifiedPoissonSampling({"a": (100, 30), "b": (300, 30)})
    rows = rows_of(Subject.of("plan", dc.calibrate(budget, strata, steps=12, clip=1.0)))
    assert rows["Chance to be in a batch"] == "30 → 10 % a step, by stratum"
    assert "each" not in rows["Cost in examples"]


def test_nothing_but_the_guarantee_is_said_of_noise_that_was_decided_during_the_run() -> None:
    plan = read(FORM).plan(quick=True)
    subject = Subject("adaptive run", plan.ledger, 1e-5, guarantee=plan.guarantee, adaptive=True)
    assert assess(subject, "spent")["spent"] is None
    ((_, _, words),) = assess(subject, "claims")["claims"]
    assert "do not apply" in words


class TestWhoMayAsk:
    def test_the_page_and_its_files_are_all_that_is_served(self, opened: Open) -> None:
        studio = opened()
        path = urlsplit(studio.url).path
        status, headers, body = send(studio, path, method="GET")
        assert status == 200
        assert b"decrescendo" in body
        assert {name: headers[name] for name in HEADERS} == HEADERS
        assert "set-cookie" not in headers
        assert "access-control-allow-origin" not in headers
        for name in ("charts.js", "controls.js", "studio.js", "studio.css"):
            status, _, body = send(studio, path + name, method="GET")
            assert status == 200
            assert b"http://" not in body.replace(b"http://www.w3.org/2000/svg", b"")
            assert b"https://" not in body
        for other in ("../server.py", "%2e%2e/server.py", "api/plan", "nothing"):
            assert send(studio, path + other, method="GET")[0] in (404, 405)

    def test_a_name_that_leads_here_is_refused(self, opened: Open) -> None:
        """DNS rebinding: a page of evil.example whose name now points to 127.0.0.1."""
        studio = opened()
        path = urlsplit(studio.url).path
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "0.0.0.0"):
            assert send(studio, path, host=host, method="GET")[0] == 400
        assert send(studio, path, host="localhost", method="GET")[0] == 200

    def test_who_does_not_know_the_address_gets_nothing(self, opened: Open) -> None:
        studio = opened()
        for path in ("/", "/api/plan", "/guess/", "/guess/api/start"):
            assert send(studio, path, b"{}")[0] == 404
        assert opened().url.split("/")[3] != studio.url.split("/")[3]

    def test_it_listens_on_the_loopback_address_alone(self, opened: Open) -> None:
        studio = opened()
        port = urlsplit(studio.url).port
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(("192.0.2.1", 9))  # sends nothing: asks which address this machine would use
            except OSError:
                pytest.skip("this machine has no other address")
            mine = probe.getsockname()[0]
        if mine.startswith("127."):
            pytest.skip("this machine has no other address")
        with pytest.raises(OSError):
            socket.create_connection((mine, port), timeout=5)

    def test_a_port_that_is_taken_is_an_error_at_once(self, opened: Open) -> None:
        with pytest.raises(OSError):
            Studio(port=urlsplit(opened().url).port or 0)


class TestPlans:
    def test_the_controls_make_the_plan_that_the_library_makes(self, opened: Open) -> None:
        studio = opened()
        found = ask(studio, "plan", {"form": FORM})
        expected = dc.calibrate(
            dc.Budget(2, 1e-5), dc.PoissonSampling(1000, 100), steps=30,
            privacy=dc.curves.growing_mu(1.25), clip=dc.curves.sensitivity_decay(1.5, 3),
        )  # fmt: skip
        assert found.get("promise", found) == str(expected.guarantee)
        assert found["curves"]["z"] == expected.noise_multiplier.tolist()
        assert found["curves"]["c"] == expected.clip_norm.tolist()
        assert found["curves"]["zc"] == expected.schedule.noise_std.tolist()
        text = ask(studio, "file", {"number": found["number"], "name": "plan.json"})["text"]
        assert Plan.from_json(text) == expected

    @pytest.mark.slow
    def test_what_accountants_say_is_what_they_say(self, opened: Open) -> None:
        studio = opened()
        number = ask(studio, "plan", {"form": FORM})["number"]
        found: dict[str, Any] = {}
        for part in ("spent", "attack", "claims"):
            found |= ask(studio, "judge", {"number": number, "part": part})
        plan = read(FORM).plan()
        epsilon = {name: value for name, value, _ in found["claims"]}
        assert epsilon["Central limit theorem (GdpClt)"] == GdpClt().epsilon(plan.ledger, 1e-5).shown(4)
        assert epsilon["Rényi (Rdp)"] == Rdp().epsilon(plan.ledger, 1e-5).shown(4)
        assert found["spent"][1][-1] == Pld().bracket(plan.ledger, 1e-5)[1]
        assert found["attack"]["power"] == (1 - trade_off(plan.ledger, found["attack"]["alarms"])).tolist()
        assert [row[0] for row in found["attack"]["shown"]] == ["0.1 %", "1 %", "10 %"]

    @pytest.mark.parametrize(
        ("noise", "clip"),
        some(
            [
                ({"shape": "constant"}, {"shape": "constant", "start": 2}),
                ({"shape": "linear", "fall": 2}, {"shape": "linear", "start": 2, "fall": 4}),
                ({"shape": "cosine", "fall": 0.5}, {"shape": "cosine", "start": 2, "fall": 4}),
                ({"shape": "optimal"}, {"shape": "hand", "levels": [1, 2, 3, 2, 1]}),
                ({"shape": "hand", "levels": [3, 2, 1, 2, 0.5]}, {"shape": "constant", "start": 1}),
            ],
            2,
        ),
    )
    def test_the_script_makes_the_plan_that_was_seen(self, noise: Any, clip: Any) -> None:
        settings = read(FORM | {"noise": noise, "clip": clip})
        made: Plan = eval(settings.code(), {"dc": dc})
        assert made == settings.plan()

    @pytest.mark.slow
    @pytest.mark.parametrize("shape", some(["exponential", "linear"], 1))
    def test_batch_sizes_that_move_are_in_the_script_and_in_the_curves(self, opened: Open, shape: str) -> None:
        form = FORM | {"steps": 10, "batches": {"shape": shape, "end": 400}}
        settings = read(form)
        made: Plan = eval(settings.code(), {"dc": dc})
        assert made == settings.plan()
        assert 100 < made.batch_size[0] < 131  # the curve is looked up at t / T
        assert made.batch_size[-1] == pytest.approx(400)
        found = ask(opened(), "plan", {"form": form, "quick": True})
        assert found["curves"]["b"] == made.batch_size.tolist()
        assert "b" not in ask(opened(), "plan", {"form": FORM, "quick": True})["curves"]

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "batches",
        [{"shape": "constant"}, pytest.param({"shape": "linear", "end": 200}, marks=pytest.mark.slow)],
    )
    def test_batches_that_are_cut(self, batches: Any) -> None:
        """To a number, or to the least that costs a hundredth of delta at every step's own rate."""
        whole = read(FORM | {"batches": batches}).plan(quick=True)
        assert read(FORM | {"batches": batches, "cap": {"shape": "any", "size": 3}}).plan(quick=True) == whole
        auto = read(FORM | {"batches": batches, "cap": {"shape": "auto"}})
        cap = smallest_cap(whole.ledger, 1000, 2.0, 1e-5)
        assert auto.sampling.max_batch_size == cap < 1000
        made: Plan = eval(auto.code(), {"dc": dc})
        assert made == auto.plan()
        by_hand = read(FORM | {"batches": batches, "cap": {"shape": "hand", "size": cap}})
        assert by_hand == auto

    @pytest.mark.slow
    def test_people_with_several_examples(self, opened: Open) -> None:
        form = FORM | {"unit": "person", "examples_per_person": 3, "steps": 4}
        settings = read(form)
        assert settings.budget == dc.Budget(2, 1e-5, dc.Unit.PERSON, 3)
        made: Plan = eval(settings.code(), {"dc": dc})
        assert made == settings.plan()
        assert "person with at most 3 examples" in ask(opened(), "plan", {"form": form, "quick": True})["promise"]

    @pytest.mark.slow
    def test_noise_by_hand_passes_through_its_levels(self) -> None:
        levels = [3, 2, 1, 2, 0.5]
        form = FORM | {"steps": 400, "noise": {"shape": "hand", "levels": levels}}
        noise = read(form).plan(quick=True).noise_multiplier
        at = noise[[0, 99, 199, 299, 399]]
        assert at / at[2] == pytest.approx(np.array(levels) / levels[2], rel=0.02)

    @pytest.mark.slow
    def test_a_long_plan_is_thinned_and_keeps_its_extremes(self, opened: Open) -> None:
        found = ask(opened(), "plan", {"form": FORM | {"steps": 5000}, "quick": True})
        plan = read(FORM | {"steps": 5000}).plan(quick=True)
        assert 250 <= len(found["t"]) <= 310
        assert (found["t"][0], found["t"][-1]) == (1, 5000)
        assert max(found["curves"]["z"]) == plan.noise_multiplier.max()


@pytest.mark.parametrize(
    ("change", "words"),
    some([
        ({"epsilon": 0}, "epsilon must be"),
        ({"epsilon": "much"}, "epsilon must be a real number"),
        ({"delta": 2}, "delta must be"),
        ({"unit": "person"}, "examples_per_person must be given"),
        ({"unit": "person", "examples_per_person": 0}, "examples_per_person must be >= 1"),
        ({"unit": "person", "examples_per_person": 3, "cap": {"shape": "hand", "size": 150}}, "a plan for people"),
        ({"cap": {"shape": "hand", "size": 0}}, "max_batch_size must be >= 1"),
        ({"cap": {"shape": "hand", "size": 101}}, "max_batch_size must leave some of delta"),
        ({"cap": {"shape": "square"}}, "cap shape must be one of any, auto, hand"),
        ({"dataset_size": 10.5}, "dataset_size must be a whole number"),
        ({"batch": 2000}, "expected_batch_size must be <= dataset_size"),
        ({"batch": None}, "batch must be a real number"),
        ({"steps": 0}, "steps must be >= 1"),
        ({"steps": 10**12}, "steps must be <="),
        ({"noise": {"shape": "square"}}, "fall must be given"),
        ({"noise": {"shape": "square", "fall": 2}}, "noise shape must be one of constant"),
        ({"noise": {"shape": "linear", "fall": -1}}, "noise fall must be > 0"),
        ({"noise": {"shape": "hand", "levels": [1, 2]}}, "noise levels must be 5"),
        ({"clip": {"shape": "constant", "start": 0}}, "clip norm must be > 0"),
        ({"clip": 3}, "clip must be an object"),
        ({"batches": {"shape": "linear", "end": 1001}}, "batch end must be > 0 and <= 1000"),
        ({"batches": {"shape": "square", "end": 10}}, "batches shape must be one of constant"),
    ], 10),
)  # fmt: skip
def test_wrong_input_is_one_sentence_that_names_the_control(opened: Open, change: Any, words: str) -> None:
    error = ask(opened(), "plan", {"form": FORM | change})["error"]
    assert error.startswith(words)
    assert "\n" not in error


def test_what_is_no_request_of_the_page_is_refused(opened: Open) -> None:
    studio = opened()
    path = urlsplit(studio.url).path
    for body in (b"", b"nonsense", b"[]", b"{}", b'{"form": 3}', b'{"form": {}}'):
        status, _, found = send(studio, f"{path}api/plan", body)
        assert status in (400, 422)
        assert json.loads(found)["error"]
    for body in (b"[" * 200_000, b'{"a":' * 100_000):
        assert send(studio, f"{path}api/plan", body)[0] == 400
    assert "Open it again" in ask(studio, "judge", {"number": 99, "part": "spent"})["error"]
    assert "base64" in ask(studio, "open", {"files": {"a": "?"}, "sample_rate": 0.1, "delta": 0.1})["error"]


def test_the_script_of_a_plan_seen_while_a_control_moves_is_of_that_plan(opened: Open) -> None:
    studio = opened()
    shown = ask(studio, "plan", {"form": FORM, "quick": True})
    script = ask(studio, "file", {"number": shown["number"], "name": "train.py"})["text"]
    saved = Plan.from_json(ask(studio, "file", {"number": shown["number"], "name": "plan.json"})["text"])
    assert saved != read(FORM).plan()
    assert 'dc.Plan.load("plan.json")' in script


@pytest.mark.parametrize("name", ["..", "a\0b", "x" * 5000, "\ud800"], ids=["up", "nul", "long", "half"])
def test_a_name_that_no_file_can_have_is_refused(opened: Open, name: str) -> None:
    content = base64.b64encode(b"[1.0, 2.0]").decode()
    error = ask(opened(), "open", {"files": {name: content}, "sample_rate": 0.1, "delta": 1e-5})["error"]
    assert "a name that a file can have" in error


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"delta": "x"}, "delta must be a real number"),
        ({"delta": float("nan")}, "delta must be"),
        ({"delta": 10**400}, "delta must be"),
        ({"delta": -1}, "delta must be > 0"),
        ({"sample_rate": "x"}, "sample_rate must be a real number"),
        ({"sample_rate": 2}, "sample_rate must be > 0 and <= 1"),
    ],
)
def test_numbers_beside_a_file_are_looked_at_before_it_is(opened: Open, change: Any, words: str) -> None:
    """A delta that is no number was shown as judged at, or ended in an error without a word."""
    files = {"a.json": base64.b64encode(b"[1.0, 2.0]").decode()}
    error = ask(opened(), "open", {"files": files, "sample_rate": 0.1, "delta": 1e-5} | change)["error"]
    assert error.startswith(words)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("noise", [1e-300, 1e-8, 1e300])
def test_noise_out_of_all_proportion_is_judged_too(opened: Open, noise: float) -> None:
    files = {"a.json": base64.b64encode(json.dumps([noise]).encode()).decode()}
    studio = opened()
    shown = ask(studio, "open", {"files": files, "sample_rate": 0.1, "delta": 1e-5})
    for part in ("spent", "attack", "claims"):
        assert part in ask(studio, "judge", {"number": shown["number"], "part": part})


def followed_run(folder: Path) -> Run:
    """A training whose clip norm followed the norms, with loss and accuracy, saved."""
    plan = read(FORM).plan(quick=True)
    inputs = torch.randn(1000, 4, generator=torch.Generator().manual_seed(0))
    model = torch.nn.Linear(4, 2)
    run = dc.train(
        model, dc.training.cross_entropy_and_accuracy, (inputs, (inputs[:, 0] > 0).long()),
        dc.steering.ClipController(plan), torch.optim.SGD(model.parameters(), lr=1.0), seed=0,
        telemetry=dc.Telemetry(norms=5, loss=True, accuracy=True, loss_range=(0, 3)),
    )  # fmt: skip
    run.save(folder)
    return run


class TestFiles:
    def test_a_plan(self, opened: Open, tmp_path: Path) -> None:
        plan = read(FORM).plan(quick=True)
        plan.save(tmp_path / "my plan.json")
        found = ask(opened(), "open", given(tmp_path / "my plan.json"))
        assert (found["title"], found["promise"]) == ("my plan.json", str(plan.guarantee))
        assert found["files"] == ["plan.json", "train.py", "statement.md"]

    def test_a_run(self, opened: Open, tmp_path: Path) -> None:
        run, studio = saved_run(tmp_path / "run"), opened()
        found = ask(studio, "open", given(tmp_path / "run/run.json", tmp_path / "run/plan.json"))
        assert found["promise"] == str(run.guarantee)
        assert "12 steps were taken" in found["notes"][0]
        assert "accuracy: 0.5" in found["notes"]
        said = ["rows independent: no, assumed in part (rows-unrecorded)", *map(str, run.assumptions)]
        assert found["notes"][-2:] == said
        assert "with plan.json" in ask(studio, "open", given(tmp_path / "run/run.json"))["error"]
        read(FORM | {"steps": 5}).plan(quick=True).save(tmp_path / "run/plan.json")
        wrong = ask(studio, "open", given(tmp_path / "run/run.json", tmp_path / "run/plan.json"))
        assert "got another one" in wrong["error"]

    def test_what_a_run_released_of_its_loss_is_drawn(self, opened: Open, tmp_path: Path) -> None:
        run = followed_run(tmp_path / "run")
        found = ask(opened(), "open", given(tmp_path / "run/run.json", tmp_path / "run/plan.json"))
        assert list(found["telemetry"]) == ["loss", "accuracy", "clipped_share"]
        steps, values = found["telemetry"]["loss"]
        assert steps == [reading.step for reading in run.telemetry]
        assert values[-1] == smoothed(run.telemetry, "loss").value
        assert ["Released loss", str(smoothed(run.telemetry, "loss"))] in found["rows"]
        assert found["curves"]["c"] == pytest.approx(list(run.clip_norm))
        assert found["curves"]["c"][-1] != found["curves"]["c"][0]

    def test_noise_multipliers_take_rate_and_delta_from_the_controls(self, opened: Open, tmp_path: Path) -> None:
        studio = opened()
        (tmp_path / "z.json").write_text("[1.5, 1.2, 1.0]")
        (tmp_path / "z.csv").write_text("noise_multiplier,sample_rate,count\n1.0,0.5,3\n2.0,0.25,1\n")
        found = ask(studio, "open", given(tmp_path / "z.json"))
        assert found["curves"] == {"z": [1.5, 1.2, 1.0]}
        assert "sample rate 0.1" in found["notes"][0]
        assert found["files"] == []
        found = ask(studio, "open", given(tmp_path / "z.csv"))
        assert found["curves"] == {"z": [1.0, 1.0, 1.0, 2.0]}
        assert "sample rate" not in found["notes"][0]
        assert "epsilon" not in found["promise"]

    def test_a_store(self, opened: Open, tmp_path: Path) -> None:
        plan = read(FORM).plan(quick=True)
        store = Store.create(tmp_path / "ledger.db", dc.Budget(7, 1e-4), dataset="patients", rows=1000)
        for label in ("first", "<b>second</b>"):
            store.start(plan, label=label)
        store.close()
        studio = opened()
        found = ask(studio, "open", given(tmp_path / "ledger.db"))
        assert found["store"]["title"] == "patients: 1,000 rows, one example protected"
        assert [row[0] for row in found["store"]["rows"]] == ["first", "<b>second</b>"]
        assert ask(studio, "look", {"number": found["numbers"][1]})["promise"] == str(plan.guarantee)
        by_command = opened(tmp_path / "ledger.db")
        assert ask(by_command, "start", {})["store"] == found["store"]

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"", "empty file"), (b"{}", "foreign"), (b"[1, 2", "JSON list"),
            (b"[-1]", "noise_multipliers must be >= 0"),
            (b"[]", "got none"), (b"\x00\xff\xfe", "readable text"), (b"SQLite format 3\0", "must be a store"),
        ],
    )  # fmt: skip
    def test_what_is_none_of_these_is_one_sentence(
        self, opened: Open, tmp_path: Path, content: bytes, words: str
    ) -> None:
        file = tmp_path / "a file"
        file.write_bytes(content)
        error = ask(opened(), "open", given(file))["error"]
        assert words in error
        assert "/tmp" not in error
        assert "Traceback" not in error

    def test_two_files_that_are_no_run(self, opened: Open, tmp_path: Path) -> None:
        for name in "ab":
            (tmp_path / name).write_text("[1]")
        assert "one file" in ask(opened(), "open", given(tmp_path / "a", tmp_path / "b"))["error"]

    def test_the_statement_of_a_plan_says_that_nothing_was_trained(self, opened: Open) -> None:
        studio = opened()
        number = ask(studio, "plan", {"form": FORM, "quick": True})["number"]
        text = ask(studio, "file", {"number": number, "name": "statement.md"})["text"]
        assert text.startswith("> **A draft: nothing was trained yet.**")
        assert "differential privacy for one example" in text
        assert "must be a file of what is shown" in ask(studio, "file", {"number": number, "name": "x"})["error"]


def test_the_command_line_opens_a_folder_or_says_what_is_wrong(opened: Open, tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run")
    assert ask(opened(tmp_path / "run"), "start", {})["promise"] == str(run.guarantee)
    assert ask(opened(), "start", {}) == {}
    for wrong in (tmp_path, tmp_path / "nothing"):
        with pytest.raises((InvalidValue, dc.errors.FileRefused)):
            Studio(path=wrong)


@pytest.mark.parametrize("runs_first", [True, False])
def test_a_studio_that_is_closed_at_once_ends(runs_first: bool) -> None:
    studio = Studio()
    thread = threading.Thread(target=studio.run)
    if runs_first:
        thread.start()
    studio.close()
    if not runs_first:
        thread.start()
    thread.join(30)
    assert not thread.is_alive()
    Studio(port=urlsplit(studio.url).port or 0).close()  # the port is free again


class TestWhatNobodyWaitsForAnyMore:
    def test_what_waits_for_its_turn_never_starts(self) -> None:
        desk, begun, go, started = Desk(), threading.Event(), threading.Event(), list[int]()

        def other_page(_: Any) -> dict[str, Any]:
            begun.set()
            go.wait(10)
            return {}

        def noted(asked: Any) -> dict[str, Any]:
            started.append(asked)
            return {}

        with ThreadPoolExecutor(3) as pool:
            first = pool.submit(desk.answer, other_page, 0, "another")
            assert begun.wait(10)
            waits = list[Any]()
            for asked in (1, 2):
                before = desk._wanted.get("a page")
                waits.append(pool.submit(desk.answer, noted, asked, "a page"))
                while desk._wanted.get("a page") is before:
                    pass
            go.set()
            assert [found.result(10).status_code for found in (first, *waits)] == [200, 409, 200]
        assert started == [2]

    def test_pages_do_not_drop_each_others(self) -> None:
        desk = Desk()
        assert [desk.answer(lambda _: {}, 0, page).status_code for page in ("a", "b", "")] == [200] * 3

    def test_a_plan_that_takes_minutes_is_made_elsewhere(self) -> None:
        with pytest.raises(InvalidValue, match="steps must be <= 100000 in the studio"):
            read(FORM | {"steps": 100_001})
