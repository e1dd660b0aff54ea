"""Facts: a search on private data shows one winner and nothing else, and states what all of it cost."""

import dataclasses
import hashlib
import json
import math
import traceback
import warnings
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import chisquare
from torch import nn

from decrescendo.accounting import Pld, Selection, Trials
from decrescendo.accounting.budget import Budget, Guarantee
from decrescendo.base.assumptions import assumed
from decrescendo.base.rng import Secure, Streams
from decrescendo.clipping import Telemetry
from decrescendo.errors import ImpossibleBudget, InvalidType, InvalidValue
from decrescendo.plans.calibration import calibrate_selection
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.plans.schedule import Schedule
from decrescendo.training import (
    Among,
    Between,
    Settings,
    Space,
    Task,
    accuracy,
    cross_entropy,
    cross_entropy_and_accuracy,
    initialised,
)
from decrescendo.training.search import private_search, private_tuning
from decrescendo.training.search.private_search import FREE, PrivateSearch, parse_trials
from decrescendo.training.search.private_tuning import Tried, search_privately, train_and_score
from decrescendo.training.search.winner import check_fresh, save_winner
from decrescendo.training.store import Store
from decrescendo.training.tasks.fitting import fit

EPSILON, GEOMETRIC = 4.0, Trials(mean=3, shape=1)
SPACE = Space(
    {
        "clip": Between(0.5, 2.0, log=True),
        "stride": Between(0.1, 2.0, log=True),
        "optimizer": Among(("sgd", "adam")),
    },
    {"steps": 3, "schedule": "sensitivity-decay", "rho_c": 2.0},
)
FIXED = Space({"clip": Among((1.0,))}, {"steps": 3, "schedule": "constant"})


def toy_rows(seed: int, rows: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs[:, 0] > 0).long()


def toy_task(load: Any = lambda: toy_rows(0)) -> Task:
    def build(seed: int) -> nn.Module:
        return initialised(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), seed)

    def score(model: nn.Module) -> dict[str, float]:
        return {"test_accuracy": accuracy(model, *toy_rows(0, 20))}

    return Task(
        model=build,
        loss=cross_entropy,
        data=load,
        rows=60,
        score=score,
        batch=12,
        epochs=1,
        learning_rate=0.5,
    )


def uncalibrated(
    budget: Budget, sampling: PoissonSampling, *, steps: int, privacy: Any, clip: Any, trials: Trials
) -> tuple[Plan, Guarantee]:
    """A plan with noise of the right shape at once: most facts here are about the trials and not about its price."""
    progress = np.arange(1, steps + 1) / steps
    schedule = Schedule(3 / privacy(progress), clip(progress))
    guess = Guarantee(budget.epsilon, budget.delta, budget.unit, f"guess for {trials}", "estimate")
    return Plan(budget, sampling, schedule, guess), guess


@pytest.fixture(autouse=True)
def _uncalibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_search, "calibrate_selection", uncalibrated)


def asked(**changes: Any) -> PrivateSearch:
    settings: dict[str, Any] = {"task": toy_task(), "epsilon": EPSILON, "space": SPACE, "trials": GEOMETRIC}
    return PrivateSearch(**{**settings, **changes})


class Recorded:
    """Trials that are not trained: the score is a number of their seed."""

    def __init__(self) -> None:
        self.specs: list[Settings] = []
        self.plans: list[Plan] = []

    def score(self, spec: Settings) -> float:
        return float(np.random.default_rng(spec.seed).random())

    def __call__(self, spec: Settings, plan: Plan) -> Tried:
        self.specs.append(spec)
        self.plans.append(plan)
        return Tried(self.score(spec), {"w": torch.tensor([self.score(spec)])})


class TestTheMechanism:
    def test_the_number_of_trials_follows_the_declared_law(self) -> None:
        """Counted at 1,000 secrets; the same counts refute a mean 25 % away. (Each is the number of trials: below.)"""
        for trials in (GEOMETRIC, Trials(mean=3, shape=0)):
            counts = np.zeros(8)
            for secret in range(1000):
                counts[min(trials.draw(Streams(secret).numpy("selection")), 8) - 1] += 1

            def p_value(law: Trials, counts: np.ndarray = counts) -> float:
                known = list(islice(law.probabilities(), 7))
                return float(chisquare(counts, 1000 * np.array([*known, 1 - sum(known)])).pvalue)

            assert p_value(trials) > 1e-3
            assert p_value(Trials(trials.mean * 1.25, trials.shape)) < 1e-3

    def test_the_number_is_drawn_first_from_a_stream_of_its_own(self) -> None:
        for secret in range(8):
            seen = Recorded()
            search_privately(asked(), secret, attempt=seen)
            assert len(seen.specs) == GEOMETRIC.draw(Streams(secret).numpy("selection"))

    def test_the_winner_is_the_best_of_all_trials(self) -> None:
        for secret in range(20):
            seen = Recorded()
            winner = search_privately(asked(), secret, attempt=seen)
            best = max(seen.specs, key=seen.score)
            assert winner.settings == best.seeded(0)
            assert winner.score == seen.score(best)
            assert winner.weights["w"].item() == pytest.approx(seen.score(best))

    def test_equal_scores_are_decided_by_the_outputs_and_not_by_their_order(self) -> None:
        """The theorem orders outputs; "the first wins" would order trials."""
        secret = next(s for s in range(99) if GEOMETRIC.draw(Streams(s).numpy("selection")) == 3)
        outputs = [torch.tensor([float(i)]) for i in range(3)]
        found = set()
        for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
            left = iter(order)
            winner = search_privately(
                asked(), secret, attempt=lambda spec, plan, left=left: Tried(0.5, {"w": outputs[next(left)]})
            )
            found.add(winner.weights["w"].item())
        assert len(found) == 1

    def test_what_is_no_number_loses_wherever_it_is_tried(self) -> None:
        """A first trial whose score was nan won over all that came after."""
        secret = next(s for s in range(99) if GEOMETRIC.draw(Streams(s).numpy("selection")) == 3)
        for order in ((math.nan, 0.2, 0.1), (0.2, math.nan, 0.1), (0.1, 0.2, math.nan)):
            left = iter(order)
            winner = search_privately(
                asked(), secret, attempt=lambda spec, plan, left=left: Tried(next(left), {"w": torch.ones(1)})
            )
            assert winner.score == 0.2

    def test_trials_are_independent_of_each_other(self) -> None:
        """Own settings, own initial weights, own batches, own noise: nothing is shared, as the theorem asks."""
        seen = Recorded()
        for secret in range(30):
            search_privately(asked(), secret, attempt=seen)
        assert len(seen.specs) > 60
        assert len({spec.seed for spec in seen.specs}) == len(seen.specs)
        assert len({spec.clip for spec in seen.specs}) == len(seen.specs)
        for purpose in ("init", "sampling", "noise"):
            draws = {tuple(torch.rand(4, generator=Streams(s.seed).torch(purpose)).tolist()) for s in seen.specs}  # type: ignore[arg-type]
            assert len(draws) == len(seen.specs)

    def test_settings_do_not_depend_on_scores(self) -> None:
        one, other = Recorded(), Recorded()
        other.score = lambda spec: -1.0  # type: ignore[method-assign]
        search_privately(asked(), 7, attempt=one)
        search_privately(asked(), 7, attempt=other)
        assert one.specs == other.specs

    @pytest.mark.parametrize("schedule", ["constant", "sensitivity-decay", "dynamic", "growing-mu", "optimal"])
    def test_every_trial_has_the_calibrated_noise_and_its_own_clip(self, schedule: str) -> None:
        fixed = {"steps": 3, "schedule": schedule, "rho_mu": 1.5, "rho_c": 2.0}
        seen = Recorded()
        search = asked(space=Space({"clip": Between(0.5, 2.0)}, fixed))
        for secret in range(3):
            winner = search_privately(search, secret, attempt=seen)
        assert {plan.ledger for plan in seen.plans} == {winner.plan.ledger}
        for spec, plan in zip(seen.specs, seen.plans, strict=True):
            falls = schedule not in ("constant", "growing-mu")
            assert plan.clip_norm[-1] == pytest.approx(spec.clip / (2 if falls else 1))

    def test_no_trial_at_all_is_said(self, tmp_path: Path) -> None:
        poisson = Trials(mean=1, shape=math.inf)
        secret = next(s for s in range(99) if poisson.draw(Streams(s).numpy("selection")) == 0)
        winner = search_privately(asked(trials=poisson), secret, attempt=Recorded())
        assert (winner.settings, winner.score, dict(winner.weights)) == (None, None, {})
        assert "number of trials happened to be 0" in winner.describe()
        assert save_winner(tmp_path / "found.json", winner) is None
        assert json.loads((tmp_path / "found.json").read_text())["score"] is None


class TestTheGuarantee:
    def test_it_is_the_selections_at_the_ledger_of_the_winner(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(private_search, "calibrate_selection", calibrate_selection)
        seen = Recorded()
        winner = search_privately(asked(), 0, attempt=seen)
        billed = Selection(GEOMETRIC).epsilon(seen.plans[0].ledger, toy_task().delta)
        assert (winner.guarantee.epsilon, winner.guarantee.kind) == (billed.value, billed.kind)
        assert winner.guarantee.epsilon <= EPSILON
        assert winner.guarantee.delta == toy_task().delta
        alone = Pld().epsilon(seen.plans[0].ledger, winner.guarantee.delta).value
        assert winner.guarantee.epsilon > alone

    def test_a_real_trial_spends_exactly_the_plan(self, monkeypatch: pytest.MonkeyPatch) -> None:
        search = asked()
        plan, _ = search.calibrated()
        spec = search.settings(search.space.draw(np.random.default_rng(0))).seeded(5)
        tried = train_and_score(toy_task(), spec, plan, toy_task().load())
        assert 0 <= tried.score <= 1
        real = private_tuning.train_with

        def short(*arguments: Any, **named: Any) -> Any:
            run, model = real(*arguments, **named)
            object.__setattr__(run, "ledger", run.ledger.first(2))
            return run, model

        monkeypatch.setattr(private_tuning, "train_with", short)
        with pytest.raises(InvalidValue, match="every trial must spend what was planned"):
            train_and_score(toy_task(), spec, plan, toy_task().load())

    def test_the_weights_are_those_that_were_scored(self) -> None:
        """The average, where there is one."""
        search = asked(space=Space({"clip": Between(0.5, 2)}, {"steps": 3, "averaging": 0.9}))
        plan, _ = search.calibrated()
        spec = search.settings({"clip": 1.0})
        tried = train_and_score(toy_task(), spec, plan, toy_task().load())
        model = toy_task().fresh(0)
        model.load_state_dict(dict(tried.weights))
        inputs, targets = toy_rows(0, 20)
        assert float((model(inputs).argmax(1) == targets).float().mean()) == pytest.approx(tried.score)
        plain = train_and_score(toy_task(), dataclasses.replace(spec, averaging=0.0), plan, toy_task().load())
        assert not torch.equal(plain.weights["0.weight"], tried.weights["0.weight"])


class TestRankedByWhatWasReleased:
    TOLD = Telemetry(norms=0, accuracy=True, loss=True)

    def test_no_score_is_needed_and_nothing_else_changes(self, tmp_path: Path) -> None:
        bare = replace(toy_task(), score=None)
        with pytest.raises(InvalidValue, match="without public data"):
            asked(task=bare)
        found = search_privately(asked(task=bare, telemetry=self.TOLD), 3)
        plan, guarantee = asked().calibrated()
        assert found.guarantee == guarantee
        noise = asked(telemetry=self.TOLD).score_noise(plan)
        words = f"by the released accuracy, mean of the last 3 steps with noise of {noise:.2g}"
        assert found.describe().count(words) == 2  # the promise, and the score
        save_winner(tmp_path / "found.json", found)
        facts = json.loads((tmp_path / "found.json").read_text())
        assert facts["score_is"] == words
        assert facts["telemetry"]["share"] == 0.005

    @pytest.mark.parametrize("told", [TOLD, replace(TOLD, accuracy=False, loss_range=(0.0, 4.0))])
    def test_the_score_is_the_mean_of_the_readings_of_the_trial(self, told: Telemetry) -> None:
        task, settings = toy_task(), asked().settings({"clip": 1.0, "stride": 0.5, "optimizer": "sgd"})
        plan, _ = asked().calibrated()
        tried = train_and_score(task, settings.seeded(8), plan, toy_rows(0), None, told)
        run, _ = fit(
            task.fresh(8, toy_rows(0)), cross_entropy_and_accuracy if told.accuracy else cross_entropy, toy_rows(0),
            plan, seed=8, optimizer="sgd", learning_rate=settings.learning_rate, telemetry=told,
        )  # fmt: skip
        found = [one.accuracy if told.accuracy else one.loss for one in run.telemetry]
        values, noise = np.array([(one.value, one.noise_std) for one in found if one is not None]).T
        assert len(values) == plan.steps
        sign = 1 if told.accuracy else -1
        assert tried.score == pytest.approx(sign * np.average(values, weights=noise**-2.0))
        assert asked(telemetry=told).score_noise(plan) == pytest.approx((noise**-2.0).sum() ** -0.5)

    @pytest.mark.parametrize("told", [TOLD, replace(TOLD, accuracy=False)])
    def test_a_trial_that_diverged_is_the_worst(self, told: Telemetry) -> None:
        """Its gradients count as zero, from the second of three steps on; its accuracy must not count as a half."""
        plan, task = asked().calibrated()[0], toy_task()
        quiet = replace(plan, schedule=Schedule(np.full(3, 0.1), np.full(3, 1.0)))
        scores = [
            train_and_score(
                task, replace(asked().settings({"clip": 1.0, "optimizer": "sgd"}), learning_rate=rate, seed=8),
                quiet, toy_rows(0), None, told,
            ).score
            for rate in (0.1, 1e38)
        ]  # fmt: skip
        assert scores[1] < scores[0] - (0.2 if told.accuracy else 4)

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"telemetry": Telemetry(norms=10)}, "must have loss or accuracy"),
            (
                {"telemetry": TOLD, "space": replace(SPACE, fixed={**SPACE.fixed, "averaging": 0.9})},
                "averaging must be 0",
            ),
            (
                {"telemetry": TOLD, "task": replace(toy_task(), loss=lambda model, batch: batch)},
                "loss of its own",
            ),
        ],
    )
    def test_what_would_rank_by_something_else_is_refused(self, changes: Any, words: str) -> None:
        with pytest.raises(InvalidValue, match=words):
            asked(**changes)

    def test_an_attempt_has_a_score_of_its_own(self) -> None:
        with pytest.raises(InvalidValue, match="attempt must be omitted"):
            search_privately(asked(telemetry=self.TOLD), 3, attempt=Recorded())


def test_weights_in_any_memory_layout_can_win(tmp_path: Path) -> None:
    """Models of images keep theirs with the channels last, which the file format refuses."""
    kernel = torch.rand(4, 3, 2, 2).to(memory_format=torch.channels_last)
    assert not kernel.is_contiguous()
    winner = search_privately(asked(), 0, attempt=lambda spec, plan: Tried(0.5, {"w": kernel}))
    weights = save_winner(tmp_path / "found.json", winner)
    assert weights is not None
    assert torch.equal(load_file(weights)["w"], kernel)


class TestWhatIsShown:
    def test_nothing_is_written_or_printed_on_the_way(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        secret = next(s for s in range(99) if GEOMETRIC.draw(Streams(s).numpy("selection")) == 3)
        said: list[str] = []
        winner = search_privately(asked(), secret, announce=said.append)
        assert capfd.readouterr() == ("", "")
        assert list(tmp_path.rglob("*")) == []
        assert len(said) == 1
        assert "guess for 3 expected trials (geometric) estimate, NOT a bound: the whole search" in said[0]
        weights = save_winner(tmp_path / "found.json", winner)
        assert sorted(path.name for path in tmp_path.rglob("*")) == ["found.json", "found.safetensors"]
        facts = json.loads((tmp_path / "found.json").read_text())
        assert facts["score"] == winner.score
        assert facts["guarantee"]["epsilon"] == winner.guarantee.epsilon
        assert weights is not None
        assert facts["weights_sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest()
        assert load_file(weights).keys() == winner.weights.keys()

    def test_the_file_tells_neither_the_number_of_trials_nor_the_seed(self, tmp_path: Path) -> None:
        """With the same winner, the files of one trial and of many are the same bytes."""
        numbers, files = set(), set()
        for secret in range(40):
            numbers.add(GEOMETRIC.draw(Streams(secret).numpy("selection")))
            winner = search_privately(
                asked(space=FIXED), secret, attempt=lambda spec, plan: Tried(0.5, {"w": torch.ones(2)})
            )
            path = tmp_path / f"{secret}.json"
            weights = save_winner(path, winner)
            assert weights is not None
            files.add((path.read_text(), weights.read_bytes(), winner.describe()))
        assert len(numbers) > 4
        assert len(files) == 1

    def test_the_promise_is_told_before_the_data_are_opened(self, monkeypatch: pytest.MonkeyPatch) -> None:
        order: list[str] = []
        task = toy_task(lambda: (order.append("opened"), toy_rows(0))[1])
        search_privately(asked(task=task, trials=Trials(1, 1)), 3, announce=lambda text: order.append("promised"))
        assert order == ["promised", "opened"]

    def test_an_error_in_a_trial_ends_the_search_without_a_winner(self) -> None:
        def broken(spec: Settings, plan: Plan) -> Tried:
            raise RuntimeError("broken")

        with pytest.raises(RuntimeError, match="broken") as caught:
            search_privately(asked(), 3, attempt=broken)
        assert "of 3" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("name", ["batch", "steps", "epochs", "schedule", "rho_mu"])
def test_what_changes_the_price_must_be_fixed(name: str) -> None:
    assert name not in FREE
    values: dict[str, Any] = {
        "batch": (12.0, 24.0),
        "steps": (3, 4),
        "epochs": (1.0, 2.0),
        "schedule": ("constant",),
    }
    with pytest.raises(InvalidValue, match=f"got {name}: it changes what a trial spends"):
        asked(space=Space({name: Among(values.get(name, (1.1, 1.2)))}))


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: parse_trials("10"), "trials on private data must be random.*When the number is known"),
        (lambda: parse_trials("uniform:10"), "trials must be a law and a mean"),
        (lambda: parse_trials("geometric:many"), "trials must be a law and a mean"),
        (lambda: parse_trials("geometric:0.5"), "mean must be >= 1"),
        (lambda: parse_trials("-1:10"), "shape must be >= 0"),
        (lambda: asked(task=replace(toy_task(), score=None)), "task must have a score"),
        (lambda: asked(epsilon=0), "epsilon must be > 0"),
        (lambda: asked(space=Space({"optimizer": Among(("magic",))})), "optimizer must be one of"),
        (
            lambda: asked(space=Space({"rho_c": Between(1.5, 2)}, {"schedule": "optimal"})),
            "rho_c must be fixed with the schedule optimal",
        ),
        (
            lambda: asked(
                space=Space({"momentum": Among((0.0, 0.9)), "optimizer": Among(("sgd", "adam"))}, {"steps": 3})
            ),
            "momentum must be 0 with adam",
        ),
        (lambda: asked(space=Space({"clip": Between(1e-45, 1.0, log=True)})), "clip must be"),
        (lambda: search_privately(asked(), -1), "seed must be >= 0"),
    ],
)
def test_wrong_searches_are_refused(act: Any, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        act()


def test_laws_are_read() -> None:
    assert parse_trials("geometric:10") == Trials(10, 1)
    assert parse_trials("logarithmic:10") == Trials(10, 0)
    assert parse_trials("poisson:10") == Trials(10, math.inf)
    assert parse_trials("0.5:10") == Trials(10, 0.5)


@pytest.mark.parametrize("name", ["found.json", "found.safetensors"])
def test_an_earlier_winner_is_not_written_over(tmp_path: Path, name: str) -> None:
    check_fresh(tmp_path / "found.json")
    (tmp_path / name).touch()
    with pytest.raises(InvalidValue, match="spends its epsilon on top of the first one's"):
        check_fresh(tmp_path / "found.json")


def test_the_result_and_its_weights_have_two_names(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="must not end in"):
        check_fresh(tmp_path / "found.safetensors")


def test_a_folder_that_cannot_be_written_to_is_found_before_the_search(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        check_fresh(tmp_path / "file" / "found.json")


class Odd:
    """Rows by code of a user's: what it does with them is taken on trust."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = toy_rows(0)
        return inputs[index], targets[index]


class TestWhatIsSaidOfTheTrials:
    def test_what_they_took_on_trust_and_where_the_noise_came_from(self, tmp_path: Path) -> None:
        """Both were dropped: the file of a search said nothing, where a training's statement does."""
        for data, seed in ((Odd(), 3), (toy_rows(0), Secure())):
            search = asked(task=replace(toy_task(), data=data), trials=Trials(1, 1))
            winner = search_privately(search, seed)
            path = tmp_path / f"{winner.random}.json"
            save_winner(path, winner)
            said = json.loads(path.read_text())["provenance"]
            assert said["random"] == winner.random == ("seeded" if seed == 3 else "secure")
            assert said["assumptions"] == [{"code": one.code, "sentence": one.sentence} for one in winner.assumptions]
            assert said["rows_independent"] is winner.rows_independent is True
            assert len(said["assumptions"]) == len(winner.assumptions) == isinstance(data, Odd)
            assert "rows independent   yes, checked at every pass" in winner.describe()
            assert ("Assumed: data[i]" in winner.describe()) == isinstance(data, Odd)

    def test_trials_that_took_different_things_are_no_search(self) -> None:
        secret = next(s for s in range(99) if GEOMETRIC.draw(Streams(s).numpy("selection")) == 3)
        trusted = iter([(), (assumed("rows-own-generator"),), ()])
        with pytest.raises(InvalidValue, match="every trial must have the same assumptions"):
            search_privately(
                asked(), secret, attempt=lambda spec, plan: Tried(0.5, {"w": torch.ones(1)}, next(trusted))
            )

    def test_no_warning_tells_how_many_there_were(self) -> None:
        def warned(spec: Settings, plan: Plan) -> Tried:
            warnings.warn("a trial", UserWarning, stacklevel=1)
            return Tried(0.5, {"w": torch.ones(1)})

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            search_privately(asked(), 3, attempt=warned)
        assert caught == []

    def test_secure_trials_differ_though_nobody_chose_a_seed(self) -> None:
        search = asked(trials=Trials(1, 1))
        first, second = (search_privately(search, Secure()) for _ in range(2))
        assert first.settings is not None
        assert first.settings.seed == 0
        assert any(not torch.equal(first.weights[name], second.weights[name]) for name in first.weights)

    def test_people_are_refused(self) -> None:
        """A promise for one example was published of a task that says whose each row is."""
        with pytest.raises(InvalidValue, match="must be of examples, got a task with people"):
            asked(task=replace(toy_task(), people=[row // 3 for row in range(60)]))


def test_trials_that_would_go_on_from_each_other_are_refused() -> None:
    """A function that gave one module: each trial began at the weights that the one before had trained."""
    one = nn.Linear(3, 2)
    secret = next(s for s in range(99) if GEOMETRIC.draw(Streams(s).numpy("selection")) == 3)
    with pytest.raises(InvalidValue, match="must be a new one each time"):
        search_privately(asked(task=replace(toy_task(), model=lambda seed: one)), secret)


class TestInALedger:
    def ledger(self, folder: Path, epsilon: float = 5.0) -> Store:
        return Store.create(folder / "ledger.db", Budget(epsilon, 0.01), dataset="patients", rows=60)

    def test_the_whole_search_is_reserved_and_its_winner_written_down(self, tmp_path: Path) -> None:
        store = self.ledger(tmp_path)
        winner = search_privately(asked(trials=Trials(2, 1)), Secure(), attempt=Recorded(), store=store)
        (entry,) = store.entries()
        assert winner.account == f"patients, run {entry.id}"
        assert (entry.state, entry.given_back, entry.released.steps) == ("finished", False, 1)
        assert entry.agreed.budget == Budget(winner.guarantee.epsilon, winner.guarantee.delta)
        assert f"reserved ({winner.guarantee.epsilon:g}" in store.describe()
        assert entry.agreed.price(Pld()).epsilon == winner.guarantee.epsilon
        assert "2 expected trials (geometric)" in entry.agreed.decided

    def test_one_that_does_not_fit_never_opens_the_data(self, tmp_path: Path) -> None:
        opened: list[int] = []
        task = toy_task(lambda: (opened.append(1), toy_rows(0))[1])
        with pytest.raises(ImpossibleBudget, match="all runs together must stay within"):
            search_privately(asked(task=task), Secure(), store=self.ledger(tmp_path, epsilon=3.0))
        assert opened == []

    def test_an_error_leaves_it_reserved(self, tmp_path: Path) -> None:
        def broken(spec: Settings, plan: Plan) -> Tried:
            raise RuntimeError("broken")

        store = self.ledger(tmp_path)
        with pytest.raises(RuntimeError, match="broken"):
            search_privately(asked(), Secure(), attempt=broken, store=store)
        (entry,) = store.entries()
        assert entry.released.steps == 1  # before the first trial: nothing can be given back
        assert not store.account(entry.id).give_back()
        with pytest.raises(ImpossibleBudget, match="all runs together must stay within"):
            search_privately(asked(), Secure(), attempt=broken, store=store)

    def test_what_is_no_store_and_no_trial_is_said(self, tmp_path: Path) -> None:
        for given, name in (
            ({"store": "ledger.db"}, "store"),
            ({"attempt": lambda *_: None}, "what a trial gives"),
        ):
            with pytest.raises(InvalidType, match=name):
                search_privately(asked(), Secure(), **given)
        with pytest.raises(InvalidType, match="asked"):
            search_privately(None, 1)

    def test_a_seed_is_refused(self, tmp_path: Path) -> None:
        """Two searches with one seed had one noise: their winners gave the clipped sum of all rows."""
        with pytest.raises(InvalidValue, match="seed must be Secure"):
            search_privately(asked(), 3, attempt=Recorded(), store=self.ledger(tmp_path))


def test_a_score_is_a_number() -> None:
    assert type(Tried(np.float32(0.5), {}).score) is float  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match="the score of a trial must be a number, got None"):
        Tried(None, {})  # type: ignore[arg-type]
