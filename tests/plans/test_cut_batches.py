"""Batches that are cut to a largest size: calibrated, written down, drawn, charged, and refused where nobody pays."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from often import some
from scipy.stats import binom
from tests.accounting import test_truncated as truncated
from torch import nn

from decrescendo import curves
from decrescendo.accounting import (
    Accountant,
    Budget,
    GdpClt,
    Ledger,
    Pld,
    RenyiFilter,
    Trials,
    Truncated,
    Unit,
    Zcdp,
    smallest_cap,
)
from decrescendo.base.rng import SecureStream, Streams
from decrescendo.errors import AccountingError, FileRefused, ImpossibleBudget, InvalidValue
from decrescendo.federated import Placement, Server
from decrescendo.plans import BatchSchedule, Plan, PoissonSampling, Schedule, calibrate, calibrate_selection
from decrescendo.plans.adaptive_plan import AdaptivePlan
from decrescendo.plans.compute import allocate_compute
from decrescendo.studio.facts import Subject, assess, outline
from decrescendo.training import Checkpoints, Run, Store, Trainer, train
from decrescendo.training.steering import Adaptive, Settings

ROWS, STEPS, CAP = 60, 6, 26
BUDGET = Budget(4.0, 1e-3)


@cache
def cut(moving: bool = False, cap: int | None = CAP, accountant: Accountant | None = None) -> Plan:
    return calibrate(
        BUDGET, PoissonSampling(ROWS, 10, cap), steps=STEPS, privacy=curves.growing_mu(1.25),
        clip=curves.sensitivity_decay(1.5, 2.0), batch=curves.linear(5, 10) if moving else None,
        accountant=accountant,
    )  # fmt: skip


def unpaid() -> Plan:
    """The same batches, promised by an accountant that knows nothing of the cut."""
    plan = cut(cap=None)
    return replace(plan, sampling=PoissonSampling(ROWS, 10, 15))


def model_of() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(ROWS, 3, generator=generator), torch.randint(0, 2, (ROWS,), generator=generator)


def trainer_of(plan: Plan, **more: object) -> tuple[Trainer, nn.Module]:
    model = model_of()
    return Trainer(model, loss, plan, torch.optim.Adam(model.parameters(), lr=0.1), seed=5, **more), model  # type: ignore[arg-type]


class TestCalibration:
    @pytest.mark.parametrize("moving", some([True, False], 1))
    def test_the_promise_is_delta_and_the_price_of_every_steps_own_rate(self, moving: bool) -> None:
        plan = cut(moving)
        rates = plan.batch_size / ROWS
        found = plan.guarantee.epsilon
        assert found <= BUDGET.epsilon < found * (1 + 1e-3)
        whole = Ledger.of(plan.noise_multiplier, rates)
        tau = float(sum(p * binom.sf(CAP - 1, ROWS, p) for p in rates))
        assert Pld().epsilon(whole, BUDGET.delta).value < found
        assert found <= Pld().epsilon(whole, BUDGET.delta - tau).value * (1 + 1e-3)

    @pytest.mark.slow
    def test_every_accountant_pays(self) -> None:
        for judge in (Pld(), Zcdp(), GdpClt()):
            paid, free = cut(accountant=judge), cut(cap=None, accountant=judge)
            assert paid.guarantee.accountant == f"Truncated({judge.name})"
            assert paid.guarantee.kind == free.guarantee.kind
            assert (paid.noise_multiplier > free.noise_multiplier).all()
            assert free.guarantee.accountant == judge.name
            with pytest.raises(AccountingError, match="any size only"):
                judge.epsilon(paid.ledger, 1e-3)

    def test_a_cap_that_costs_more_than_delta_is_paid_for_with_noise_or_refused_with_one_that_does_not(
        self,
    ) -> None:
        """`Pld` composes what a truncated step is; of another accountant nothing is left of delta."""
        small, ample = cut(cap=12), cut()
        assert small.guarantee.epsilon <= BUDGET.epsilon < small.guarantee.epsilon * (1 + 1e-3)
        assert (small.noise_multiplier > ample.noise_multiplier).all()
        assert truncated.overflow_of(small.ledger) > BUDGET.delta
        with pytest.raises(ImpossibleBudget, match=r"got max_batch_size=12: .* 25 costs a hundredth"):
            cut(cap=12, accountant=Zcdp())
        ledger = cut(cap=None).ledger
        assert smallest_cap(ledger, ROWS, BUDGET.epsilon, BUDGET.delta) == 25

    def test_a_cap_that_no_batch_exceeds_is_no_cap(self) -> None:
        assert cut(cap=ROWS + 1).guarantee == cut(cap=None).guarantee

    @given(cap=st.integers(24, 40), more=st.integers(1, 20), rate=st.floats(0.1, 0.16))
    def test_a_smaller_cap_never_needs_less_noise(self, cap: int, more: int, rate: float) -> None:
        def noise(cap: int) -> float:
            plan = calibrate(
                BUDGET, PoissonSampling(ROWS, rate * ROWS, cap), steps=3, privacy=curves.constant(1.0),
                clip=curves.constant(1.0), accountant=GdpClt(),
            )  # fmt: skip
            return float(plan.noise_multiplier[0])

        assert noise(cap) >= noise(cap + more) * (1 - 1e-3)

    @pytest.mark.slow
    def test_the_batch_sizes_for_a_number_of_examples_keep_the_cap(self) -> None:
        plan = allocate_compute(
            BUDGET,
            ROWS,
            steps=4,
            compute=40,
            max_batch_size=30,
            influence=[1.0, 1.0, 4.0, 4.0],
            clip=[1.0] * 4,
        )
        assert plan.sampling.max_batch_size == 30
        assert plan.ledger.is_cut

    def test_what_has_no_proof_for_it_is_refused(self) -> None:
        sampling = PoissonSampling(ROWS, 10, CAP)
        one = curves.constant(1.0)
        with pytest.raises(InvalidValue, match="a search must have batches of any size"):
            calibrate_selection(BUDGET, sampling, steps=3, privacy=one, clip=one, trials=Trials(3))
        with pytest.raises(InvalidValue, match="decided during the run must have batches of any size"):
            Adaptive(sampling, RenyiFilter(BUDGET, 8), lambda _: Settings(1.0, 1.0), 3)
        with pytest.raises(InvalidValue, match="an adaptive plan must have batches of any size"):
            AdaptivePlan(BUDGET, sampling, "RenyiFilter(order=8)", 3, "halve")


class TestFiles:
    @pytest.mark.parametrize("moving", [False, True])
    def test_a_plan_comes_back_bit_for_bit(self, moving: bool, tmp_path: Path) -> None:
        plan = cut(moving)
        plan.save(tmp_path / "plan.json")
        again = Plan.load(tmp_path / "plan.json")
        assert again == plan
        assert again.ledger == plan.ledger
        assert again.sha256 == plan.sha256 != cut(moving, None).sha256
        assert '"version": 4' in plan.to_json()

    def test_a_version_that_does_not_say_the_cap_is_refused(self) -> None:
        from decrescendo.base import sealed

        for version, cap in ((1, CAP), (3, CAP), (4, None)):
            body = sealed.opened(cut().to_json(), "x", "decrescendo-plan", 4)
            body["version"] = version
            if cap is None:
                body["sampling"]["max_batch_size"] = None
            with pytest.raises(FileRefused, match=r"got another .*version"):
                Plan.from_json(sealed.seal(body))

    def test_without_privacy_batches_may_be_cut_too(self) -> None:
        for sampling in (PoissonSampling(ROWS, 10, 4), BatchSchedule(ROWS, [10.0, 20.0], 4)):
            plan = Plan.without_privacy(sampling, steps=2)
            assert Plan.from_json(plan.to_json()) == plan
            assert "Cut        to 4" in plan.describe()

    def test_words_say_the_cap_and_its_price(self) -> None:
        plan = cut()
        assert f"at most {CAP} a batch" in str(plan)
        share = float(plan.describe().partition("costs ")[2].partition(" of delta")[0])
        price = truncated.overflow_of(plan.ledger)
        assert share == pytest.approx(price / BUDGET.delta, rel=0.1)
        assert share >= price / BUDGET.delta
        assert "costs 0.9" in cut(cap=12).describe() or "costs 1 of" in cut(cap=12).describe()

    @pytest.mark.slow
    def test_the_second_opinion_and_the_first_again(self) -> None:
        plan = cut()
        first, second = plan.confirm(plan.ledger)
        assert first.startswith("Truncated(Pld) again: epsilon at most")
        assert "consistent" in second
        with pytest.raises(AccountingError, match="must not be below what its accountant says"):
            list(unpaid().confirm(plan.ledger))


class TestTraining:
    def test_a_plan_that_does_not_pay_for_its_cut_is_not_trained_by(self) -> None:
        with pytest.raises(InvalidValue, match="must promise what its releases spend"):
            trainer_of(unpaid())

    def test_each_step_is_the_kept_rows_sum_over_the_declared_size(self) -> None:
        """Without clipping or noise, against the stream drawn again by hand: a binomial size, cut, a uniform subset."""
        plan = Plan.without_privacy(PoissonSampling(ROWS, 12, 10), steps=STEPS)
        model, rows = model_of(), data()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        means: list[torch.Tensor] = []
        optimizer.register_step_pre_hook(lambda *_: means.append(model.weight.grad.clone()))  # type: ignore[union-attr, func-returns-value]
        run = train(model, loss, rows, plan, optimizer, seed=3)
        rng = Streams(3).numpy("sampling")
        for mean in means:
            size = min(int(rng.binomial(ROWS, 12 / ROWS)), 10)
            drawn = rng.choice(ROWS, size=size, replace=False, shuffle=False)
            plain = model_of()
            loss(plain, (rows[0][drawn], rows[1][drawn])).sum().backward()
            torch.testing.assert_close(mean, plain.weight.grad / 12)  # type: ignore[operator]
        assert run.diagnostics is not None
        assert max(run.diagnostics.examples) == 10

    def batches(self, cap: int | None, draws: int) -> dict[tuple[int, ...], int]:
        model = nn.Linear(1, 1)
        plan = Plan.without_privacy(PoissonSampling(8, 4, cap), steps=draws)
        trainer = Trainer(
            model,
            lambda model, batch: model(batch)[:, 0],
            plan,
            torch.optim.SGD(model.parameters(), lr=0.0),
            seed=1,
        )
        found: dict[tuple[int, ...], int] = {}
        for batch in trainer.batches(torch.arange(8.0)[:, None]):
            key = () if batch is None else tuple(int(row) for row in batch[:, 0])
            found[key] = found.get(key, 0) + 1
            trainer.step(batch)
        return found

    @pytest.mark.slow
    def test_a_trainers_batches_have_the_law_that_the_proof_is_about(self) -> None:
        """Every subset as often as in Poisson batches of which an even choice was kept; a trainer that ignores the cap
        is seen, and so would one that keeps the first rows, or whose rows come a sixth too seldom."""
        judge, draws = truncated.TestBatches(), 1_000
        assert not judge.far_off(self.batches(3, draws), 3)
        assert judge.far_off(self.batches(None, 50), 3)
        for size, kept in ((4, 3), (4 * 5 / 6, None)):
            found: dict[tuple[int, ...], int] = {}
            whole = PoissonSampling(8, size, None if kept else 3).batches(draws, np.random.default_rng(7))
            for batch in whole:
                key = tuple(int(row) for row in batch[:kept])
                found[key] = found.get(key, 0) + 1
            assert judge.far_off(found, 3)

    def test_secure_batches_are_cut_too(self) -> None:
        drawn = list(PoissonSampling(ROWS, 30, 12).batches(50, SecureStream(bytes(range(32)))))
        assert {batch.size for batch in drawn} == {12}
        assert len({row for batch in drawn for row in batch.tolist()}) == ROWS

    @pytest.mark.slow
    def test_killed_and_resumed_it_is_the_same_run(self, tmp_path: Path) -> None:
        plan, rows = cut(moving=True), data()

        def life(folder: str, stop: int | None) -> tuple[nn.Module, Run | None]:
            trainer, model = trainer_of(plan, checkpoints=Checkpoints(tmp_path / folder, 2, resume=True))
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

    def test_store_run_and_statement_charge_it(self, tmp_path: Path) -> None:
        plan, model = cut(), model_of()
        store = Store.create(tmp_path / "ledger.db", rows=ROWS, budget=Budget(9.0, 1e-2), dataset="toy")
        run = train(model, loss, data(), plan, torch.optim.SGD(model.parameters(), lr=0.1), seed=0, store=store)
        assert run.ledger == plan.ledger
        assert run.guarantee == Truncated().certify(plan.ledger, BUDGET)
        (entry,) = Store(tmp_path / "ledger.db").entries()
        assert entry.released == plan.ledger
        run.save(tmp_path / "run")
        again = Run.load(tmp_path / "run")
        assert again.ledger == plan.ledger
        facts = again.statement(spent=2).facts
        assert facts["mechanism"]["max_batch_size"] == CAP
        assert facts["accounting"]["cut"]["overflow"] == truncated.overflow_of(plan.ledger)
        assert 0 < facts["accounting"]["cut"]["delta"] < BUDGET.delta
        assert facts["spent"][-1]["epsilon"] == run.guarantee.epsilon
        page = again.statement().to_markdown()
        assert f"of a batch with more than {CAP} units, {CAP} are kept, chosen uniformly" in page
        assert "Truncated batches: the probability" in page
        whole, _ = trainer_of(cut(cap=None))
        assert "cut" not in whole.finish().statement().facts["accounting"]

    def test_a_run_that_ends_early_is_charged_for_the_whole_plan(self) -> None:
        trainer, _ = trainer_of(cut())
        trainer.step(next(trainer.batches(data())))
        run = trainer.finish()
        assert run.guarantee == Truncated().certify(cut().ledger, BUDGET)
        assert run.statement().facts["accounting"]["cut"]["overflow"] == truncated.overflow_of(cut().ledger)

    @pytest.mark.slow
    def test_stores_add_it_up_or_refuse(self, tmp_path: Path) -> None:
        made = {
            rule: Store.create(tmp_path / rule[:5], Budget(9.0, 1e-2), dataset="toy", rows=ROWS, composition=rule)
            for rule in ("sum", "declared", "renyi:8")
        }
        with pytest.raises(InvalidValue, match="a run with truncated batches"):
            made["renyi:8"].start(cut())
        made["sum"].start(cut())
        assert f"reserved ({cut().budget.epsilon:.6g}, 0.001)" in made["sum"].describe()
        made["declared"].start(cut())
        made["declared"].start(cut(moving=True))
        joint = Truncated().epsilon(cut().ledger + cut(moving=True).ledger, 1e-2).value
        assert f"{joint:.6g}" in made["declared"].describe()


class TestElsewhere:
    def server(self, placement: Placement) -> Server:
        plan = calibrate(
            Budget(4.0, 1e-3, Unit.CLIENT),
            PoissonSampling(40, 10, 24),
            steps=2,
            privacy=[1.0] * 2,
            clip=[1.0] * 2,
        )
        model = model_of()
        return Server(model, plan, torch.optim.SGD(model.parameters(), lr=0.1), seed=0, placement=placement)

    @pytest.mark.slow
    def test_cohorts_are_cut_where_the_server_adds_the_noise(self) -> None:
        server = self.server(Placement.CENTRAL)
        while not server.done:
            assert len(server.open().cohort) <= 24
            server.close()
        assert server.ledger == server.plan.ledger
        assert server.finish().guarantee.accountant == "Truncated(Pld)"
        for placement in (Placement.DISTRIBUTED, Placement.LOCAL):
            with pytest.raises(InvalidValue, match=f"a run with {placement} noise must have batches of any size"):
                self.server(placement)

    def test_a_capped_cohort_is_not_larger(self) -> None:
        sampling = PoissonSampling(40, 20, 3)
        assert max(batch.size for batch in sampling.batches(50, np.random.default_rng(0))) == 3

    @pytest.mark.slow
    def test_the_page_shows_it(self) -> None:
        subject = Subject.of("plan", cut())
        assert ["Batches are truncated to", f"{CAP} examples at most"] in outline(subject)["rows"]
        assert assess(subject, "spent")["spent"][1][-1] == Truncated().epsilon(cut().ledger, 1e-3).value
        (first, *_) = assess(subject, "claims")["claims"]
        assert first[2] == "upper bound"
        assert assess(subject, "attack")["attack"]["power"]

    def test_a_schedule_of_ones_own_is_equal_only_with_the_same_cap(self) -> None:
        one, same, other = (BatchSchedule(ROWS, [1.0, 2.0], cap) for cap in (5, 5, 6))
        assert one == same != other
        assert hash(one) == hash(same)
        assert one.at(1) == PoissonSampling(ROWS, 2.0, 5)
        plan = Plan.without_privacy(one, steps=2)
        assert replace(plan, schedule=Schedule([0.0, 0.0], [1.0, 1.0])).sampling == one
