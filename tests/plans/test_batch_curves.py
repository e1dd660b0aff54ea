"""Batches whose expected size moves: who is drawn, what divides, what is promised, written down and refused."""

from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from often import some
from tests.plans.test_poisson import mean_p_value
from torch import nn

from decrescendo import curves
from decrescendo.accounting import Pld, Rdp
from decrescendo.accounting.budget import Budget, Guarantee, Unit
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.release import Release
from decrescendo.accounting.verify import verify_epsilon
from decrescendo.base.rng import Streams
from decrescendo.errors import FileRefused, InvalidType, InvalidValue
from decrescendo.plans import BatchSchedule, Plan, PoissonSampling, Schedule, calibrate
from decrescendo.plans.sampling_refusals import only_constant
from decrescendo.training import Checkpoints, Run, Store, Trainer, train

ROWS, STEPS = 60, 6
BUDGET = Budget(4.0, 1e-3)
SIZES = np.array([6.0] * 2 + [12.0] * 2 + [24.0] * 2)


@cache
def moving() -> Plan:
    return calibrate(
        BUDGET,
        PoissonSampling(ROWS, 6),
        steps=STEPS,
        privacy=curves.growing_mu(1.25),
        clip=curves.sensitivity_decay(1.5, 2.0),
        batch=curves.linear(5, 20),
    )


def model_of() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(ROWS, 3, generator=generator), torch.randint(0, 2, (ROWS,), generator=generator)


class TestSampling:
    def test_each_step_draws_at_its_own_rate(self) -> None:
        sampling = BatchSchedule(400, [4.0, 40.0])
        rng = np.random.default_rng(0)
        for taken, rate in enumerate((0.01, 0.1)):
            present = np.zeros((20_000, 400), dtype=bool)
            for row, batch in enumerate(sampling.at(taken).batches(20_000, rng)):
                present[row, batch] = True
            assert mean_p_value(present, rate) > 1e-4
            assert mean_p_value(present, rate * 0.97) < 1e-8  # power

    def test_a_schedule_is_checked_step_by_step(self) -> None:
        with pytest.raises(InvalidValue, match=r"batch\[1\]=0"):
            BatchSchedule(10, [1.0, 0.0])
        with pytest.raises(InvalidValue, match=r"dataset_size=10 at every step, got batch\[0\]=11"):
            BatchSchedule(10, [11.0])
        with pytest.raises(InvalidValue, match="at least one step"):
            BatchSchedule(10, np.zeros(0))
        with pytest.raises(InvalidValue, match="one of the 1 of its batch schedule"):
            BatchSchedule(10, [1.0]).at(1)

    def test_there_is_no_rate_of_the_whole_run(self) -> None:
        assert not hasattr(BatchSchedule(10, [1.0, 2.0]), "sample_rate")
        with pytest.raises(InvalidValue, match="one expected batch size for all steps, got 1 to 2"):
            only_constant(BatchSchedule(10, [1.0, 2.0]), "a filter")

    def test_equal_and_hashable_by_value(self) -> None:
        one, same, other = (BatchSchedule(10, sizes) for sizes in ([1.0, 2.0], [1, 2], [2.0, 1.0]))
        assert one == same
        assert hash(one) == hash(same)
        assert one != other


class TestCalibration:
    @pytest.mark.slow
    def test_the_promise_is_the_accountants_word_on_every_rate(self) -> None:
        plan = moving()
        wanted = Ledger(
            [
                Release(float(b) / ROWS, float(z))
                for b, z in zip(np.linspace(5, 20, STEPS + 1)[1:], plan.noise_multiplier, strict=True)
            ]
        )
        np.testing.assert_allclose(plan.ledger.sample_rate, wanted.sample_rate, rtol=1e-12)
        lower, upper = Pld().bracket(plan.ledger, BUDGET.delta)
        assert lower <= plan.guarantee.epsilon <= BUDGET.epsilon
        assert upper == plan.guarantee.epsilon

    def test_a_constant_curve_is_the_constant_plan_to_the_last_digit(self) -> None:
        made = partial(calibrate, BUDGET, steps=8, privacy=curves.growing_mu(1.25), clip=curves.constant(1.0))
        plain = made(PoissonSampling(ROWS, 6))
        curve = made(PoissonSampling(ROWS, 30), batch=curves.constant(6.0))
        assert curve == plain
        assert curve.to_json() == plain.to_json()

    def test_a_batch_larger_than_the_data_is_refused(self) -> None:
        with pytest.raises(InvalidValue, match=r"dataset_size=60 at every step, got batch\[5\]=61"):
            calibrate(
                BUDGET, PoissonSampling(ROWS, 6), steps=STEPS, privacy=curves.constant(1.0),
                clip=curves.constant(1.0), batch=curves.linear(6, 61),
            )  # fmt: skip

    @pytest.mark.slow
    def test_larger_batches_need_more_noise(self) -> None:
        def first_z(end: float) -> float:
            return float(
                calibrate(
                    BUDGET, PoissonSampling(ROWS, 6), steps=STEPS, privacy=curves.constant(1.0),
                    clip=curves.constant(1.0), batch=curves.linear(6, end),
                ).noise_multiplier[0]
            )  # fmt: skip

        assert first_z(8) < first_z(30)

    def test_a_plan_has_a_size_for_every_step(self) -> None:
        plan = moving()
        with pytest.raises(InvalidValue, match=r"one expected batch size a step \(6\), got 2"):
            Plan(plan.budget, BatchSchedule(ROWS, [1.0, 2.0]), plan.schedule, plan.guarantee)
        with pytest.raises((InvalidType, TypeError)):
            Plan(plan.budget, 6, plan.schedule, plan.guarantee)  # type: ignore[arg-type]

    @pytest.mark.slow
    def test_other_judges_take_many_rates(self) -> None:
        """More rates than they are asked about one by one: rounded up, so that the answer stays a bound."""
        ledger = Ledger.of(np.linspace(1.4, 1.2, 300), np.linspace(0.01, 0.02, 300))
        lower, upper = Pld().bracket(ledger, 1e-5)
        assert upper < Rdp().epsilon(ledger, 1e-5).value < 1.5 * upper
        opinion = verify_epsilon(ledger, Pld().certify(ledger, Budget(5, 1e-5)), values=8)
        assert opinion.lower <= lower
        assert opinion.upper >= lower
        assert opinion.consistent


class TestFiles:
    def test_a_plan_comes_back_bit_for_bit(self, tmp_path: Path) -> None:
        plan = moving()
        plan.save(tmp_path / "plan.json")
        again = Plan.load(tmp_path / "plan.json")
        assert again == plan
        assert again.sha256 == plan.sha256
        assert '"version": 3' in plan.to_json()

    def test_an_edited_size_is_refused(self) -> None:
        plan = moving()
        size = repr(float(plan.batch_size[0]))
        with pytest.raises(FileRefused, match="checksum"):
            Plan.from_json(plan.to_json().replace(size, "7.0"))

    def test_words_have_both_ends(self) -> None:
        plan = moving()
        assert "B 7.5 -> 20" in str(plan)
        assert "(7.5 -> 20 expected a batch)" in plan.describe()

    def test_without_privacy_batches_may_move_too(self) -> None:
        plan = Plan.without_privacy(BatchSchedule(ROWS, SIZES), steps=STEPS)
        assert Plan.from_json(plan.to_json()) == plan


class TestTraining:
    def test_the_divisor_is_the_declared_size_of_the_step(self) -> None:
        """The mean of a step without clipping or noise is the sum of the drawn rows' gradients over that step's B_t."""
        plan = Plan.without_privacy(BatchSchedule(ROWS, SIZES), steps=STEPS)
        model, rows = model_of(), data()
        before = [value.detach().clone() for value in model.parameters()]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        means: list[torch.Tensor] = []
        optimizer.register_step_pre_hook(lambda *_: means.append(next(model.parameters()).grad.clone()))  # type: ignore[union-attr, func-returns-value]
        train(model, loss, rows, plan, optimizer, seed=3)
        rng = Streams(3).numpy("sampling")
        for size, mean in zip(SIZES, means, strict=True):
            drawn = next(PoissonSampling(ROWS, float(size)).batches(1, rng))
            plain = model_of()
            with torch.no_grad():
                for parameter, value in zip(plain.parameters(), before, strict=True):
                    parameter.copy_(value)
            loss(plain, (rows[0][drawn], rows[1][drawn])).sum().backward()
            torch.testing.assert_close(mean, next(plain.parameters()).grad / size)  # type: ignore[operator]

    def test_the_noise_on_the_mean_has_the_standard_deviation_of_its_step(self) -> None:
        plan = Plan(BUDGET, BatchSchedule(ROWS, [6.0, 30.0]), Schedule([30.0, 30.0], [1.0, 1.0]), moving().guarantee)
        model = nn.Linear(200, 200)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        seen: list[float] = []
        optimizer.register_step_pre_hook(lambda *_: seen.append(float(model.weight.grad.std())))  # type: ignore[union-attr, func-returns-value]

        def nothing(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
            return model(batch).sum(dim=1) * 1e-9

        train(model, nothing, torch.zeros(ROWS, 200), plan, optimizer, seed=0)
        assert seen == pytest.approx([5.0, 1.0], rel=0.02)
        assert seen != pytest.approx([5.0 * 1.03, 1.0 * 1.03], rel=0.02)  # power

    def test_killed_and_resumed_it_is_the_same_run(self, tmp_path: Path) -> None:
        plan, rows = moving(), data()

        def life(folder: str, stop: int | None) -> tuple[nn.Module, Run | None]:
            model = model_of()
            optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
            trainer = Trainer(
                model,
                loss,
                plan,
                optimizer,
                seed=5,
                checkpoints=Checkpoints(tmp_path / folder, 2, resume=True),
            )
            for batch in trainer.batches(rows):
                trainer.step(batch)
                if stop is not None and len(trainer.ledger) == stop:
                    return model, None
            return model, trainer.finish()

        life("broken", 3)
        again, run = life("broken", None)
        straight, whole = life("straight", None)
        assert run is not None
        assert whole is not None
        assert run.ledger == whole.ledger == plan.ledger
        assert run.guarantee == whole.guarantee
        for one, other in zip(again.parameters(), straight.parameters(), strict=True):
            assert torch.equal(one, other)

    def test_store_run_and_statement_have_the_sizes(self, tmp_path: Path) -> None:
        plan, model = moving(), model_of()
        store = Store.create(tmp_path / "ledger.db", rows=ROWS, budget=Budget(9.0, 1e-2), dataset="toy")
        run = train(model, loss, data(), plan, torch.optim.SGD(model.parameters(), lr=0.1), seed=0, store=store)
        run.save(tmp_path / "run")
        again = Run.load(tmp_path / "run")
        assert again.plan == plan
        assert again.ledger == plan.ledger
        statement = again.statement().to_markdown()
        assert "7.5 to 20 of 60 examples expected, one a step, which divides its sum" in statement


@pytest.mark.slow
@pytest.mark.parametrize(
    "batch",
    some(
        [
            curves.linear(125, 500),
            pytest.param(lambda u: 312.5 + 187.5 * np.sin(20 * u), marks=pytest.mark.slow),
        ],
        1,
    ),
    ids=["rising", "wave"],
)
def test_three_moving_curves_meet_their_budget_with_two_certificates(
    batch: curves.Curve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate of a long run takes seconds where batches move: estimates say how far to go after the first."""
    asked: list[float] = []
    certify = Pld.certify

    def counted(self: Pld, ledger: Ledger, budget: Budget) -> Guarantee:
        found = certify(self, ledger, budget)
        asked.append(found.epsilon)
        return found

    monkeypatch.setattr(Pld, "certify", counted)
    plan = calibrate(
        Budget(1.2, 1e-6), PoissonSampling(60_000, 250), steps=24, privacy=curves.growing_mu(1.25),
        clip=curves.sensitivity_decay(1.5, 3.3), batch=batch,
    )  # fmt: skip
    assert np.unique(plan.ledger.sample_rate).size == 24
    assert len(asked) <= 2
    assert asked[-1] == plan.guarantee.epsilon
    assert 1.2 * (1 - 1e-4) <= plan.guarantee.epsilon <= 1.2
    assert plan.guarantee.epsilon_lower is not None
    assert plan.guarantee.epsilon_lower >= 1.2 * (1 - 2e-3)
    np.testing.assert_array_equal(plan.batch_size, batch(curves.progress(24)))


def test_federated_rounds_have_a_cohort_of_their_own_size() -> None:
    from decrescendo.federated import Clients, Placement, simulate

    plan = calibrate(
        Budget(4.0, 1e-3, Unit.CLIENT), PoissonSampling(50, 10), steps=3, privacy=curves.constant(1.0),
        clip=curves.constant(1.0), batch=[5.0, 10.0, 20.0],
    )  # fmt: skip
    model = nn.Linear(1, 1)
    outcome = simulate(
        model,
        lambda model, batch: (model(batch) - 1).square().sum(dim=1),
        Clients.equal(torch.ones(100, 1), records=2),
        plan,
        torch.optim.SGD(model.parameters(), lr=0.1),
        seed=0,
        placement=Placement.CENTRAL,
    )
    assert outcome.ledger == plan.ledger


def test_the_command_line_moves_batches_too(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from decrescendo.cli import app

    path = tmp_path / "plan.json"
    given = [
        "plan",
        "--epsilon",
        "4",
        "--delta",
        "1e-3",
        "--dataset-size",
        "60",
        "--batch",
        "6",
        "--steps",
        "4",
    ]
    made = CliRunner().invoke(app, [*given, "--batch-end", "12", "--save", str(path)])
    assert made.exit_code == 0, made.output
    assert Plan.load(path).batch_size.tolist() == [7.5, 9.0, 10.5, 12.0]
    refused = CliRunner().invoke(app, [*given, "--batch-end", "12", "--schedule", "optimal", "--momentum", "0.5"])
    assert refused.exit_code != 0
    assert "--batch-end must be left out" in refused.output.replace("\n", " ")
