"""Each example once an epoch: drawn by independent bins, calibrated, written down, trained, gone on with, charged."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from often import some
from scipy import stats
from torch import nn

import decrescendo as dc
from decrescendo import curves
from decrescendo.accounting import (
    Allocated,
    Budget,
    Guarantee,
    Ledger,
    Pld,
    RenyiFilter,
    Truncated,
    Unit,
    trade_off,
)
from decrescendo.base import sealed
from decrescendo.base.rng import Keystream, Secure, SecureStream, Streams
from decrescendo.errors import AccountingError, FileRefused, ImpossibleBudget, InvalidValue
from decrescendo.federated import Placement, Server
from decrescendo.plans import (
    Plan,
    PoissonSampling,
    RandomAllocation,
    Schedule,
    calibrate,
)
from decrescendo.report.judge import verdicts
from decrescendo.studio.facts import Subject, assess, outline
from decrescendo.training import Checkpoints, Run, Store, Trainer, train
from decrescendo.training.steering import ClipController

ROWS, EACH, EPOCHS = 40, 5, 3
STEPS = EACH * EPOCHS
BUDGET = Budget(4.0, 1e-3)
SAMPLING = RandomAllocation(ROWS, EACH)
Batches = list[np.ndarray]


@cache
def once(cap: int | None = None) -> Plan:
    return calibrate(
        BUDGET, replace(SAMPLING, max_batch_size=cap), steps=STEPS, privacy=curves.growing_mu(1.5),
        clip=curves.sensitivity_decay(1.5, 2.0),
    )  # fmt: skip


def allocated(rng: np.random.Generator, rows: int, steps: int) -> Batches:
    return RandomAllocation(rows, steps).epoch(rng)


def shuffled(rng: np.random.Generator, rows: int, steps: int) -> Batches:
    """What this must not be: a list that is shuffled and cut."""
    return [np.sort(part) for part in np.array_split(rng.permutation(rows), steps)]


def bins_of(batches: Batches, rows: int) -> np.ndarray:
    bins = np.full(rows, -1)
    for number, batch in enumerate(batches):
        assert (bins[batch] == -1).all()
        assert (np.diff(batch) > 0).all()
        bins[batch] = number
    return bins


class TestSampling:
    def test_an_epoch_is_a_bin_a_record(self) -> None:
        """Against the obvious loop over the same numbers."""
        bins, expected = Streams(4).numpy("sampling").integers(EACH, size=ROWS), [[] for _ in range(EACH)]
        for record, number in enumerate(bins.tolist()):
            expected[number].append(record)
        assert [batch.tolist() for batch in SAMPLING.epoch(Streams(4).numpy("sampling"))] == expected

    @pytest.mark.parametrize("high", [3, 2**63 + 1, 2**63, 1])
    def test_secure_numbers_are_words_without_those_that_would_favour_some(self, high: int) -> None:
        key = bytes(range(32))
        found = SecureStream(key).integers(high, 50).tolist()
        words, fair = Keystream(key), (2**64 // high) * high
        expected: list[int] = []
        while len(expected) < 50:  # as many at once as are missing
            asked = np.frombuffer(words.take(8 * (50 - len(expected))), dtype="<u8").tolist()
            expected += [word % high for word in asked if word < fair]
        assert found == expected
        assert 0 <= min(found) <= max(found) < high

    @given(st.integers(1, 60), st.integers(2, 20), st.integers(1, 8), st.integers(0, 10**6), st.booleans())
    def test_everybody_is_in_one_batch_and_none_is_larger_than_the_cap(
        self, rows: int, steps: int, cap: int, seed: int, secure: bool
    ) -> None:
        def rng() -> np.random.Generator | SecureStream:
            return SecureStream(seed.to_bytes(32)) if secure else np.random.default_rng(seed)

        whole = RandomAllocation(rows, steps).epoch(rng())
        kept = RandomAllocation(rows, steps, cap).epoch(rng())
        assert len(whole) == len(kept) == steps
        assert (bins_of(whole, rows) >= 0).all()
        for batch, left in zip(whole, kept, strict=True):
            assert left.size == min(batch.size, cap)
            assert np.isin(left, batch).all()
            assert (np.diff(left) > 0).all()

    draws = 6_000

    def p_values(
        self, draw: Callable[[np.random.Generator, int, int], Batches], rows: int = 9, steps: int = 3
    ) -> dict[str, float]:
        """That bins are even, those of different records independent (as sizes then are), and epochs too."""
        rng = np.random.default_rng(11)
        bins = np.array([bins_of(draw(rng, rows, steps), rows) for _ in range(self.draws)])
        even = stats.chisquare([np.bincount(column, minlength=steps) for column in bins.T], axis=1).pvalue
        together = int((bins[:, 0] == bins[:, 1]).sum())
        sizes = np.bincount((bins == 0).sum(1), minlength=rows + 1)
        expected = self.draws * stats.binom(rows, 1 / steps).pmf(np.arange(rows + 1))
        far = sizes[:2].sum() + sizes[6:].sum(), expected[:2].sum() + expected[6:].sum()
        later = np.array([((bins[:-1] == a) & (bins[1:] == b)).sum() for a, b in product(range(steps), repeat=2)])
        return {
            "even": float(even.min() * rows),
            "pairs": stats.binomtest(together, self.draws, 1 / steps).pvalue,
            "sizes": stats.chisquare(np.r_[sizes[2:6], far[0]], np.r_[expected[2:6], far[1]]).pvalue,
            "epochs": stats.chisquare(later).pvalue,
        }

    def test_bins_are_even_and_independent(self) -> None:
        assert min(self.p_values(allocated).values()) > 1e-4

    @pytest.mark.slow
    def test_a_shuffled_list_one_that_leans_and_one_that_repeats_are_seen(self) -> None:
        found = self.p_values(shuffled)
        assert found["even"] > 1e-4  # each place is as likely as another
        assert max(found["pairs"], found["sizes"]) < 1e-12

        def leaning(rng: np.random.Generator, rows: int, steps: int) -> Batches:
            bins = np.where(rng.random(rows) < 0.06, 0, rng.integers(steps, size=rows))
            return [np.flatnonzero(bins == number) for number in range(steps)]

        assert self.p_values(leaning)["even"] < 1e-6
        kept: list[Batches] = []

        def repeating(rng: np.random.Generator, rows: int, steps: int) -> Batches:
            kept.append(kept[-1] if kept and rng.random() < 0.2 else allocated(rng, rows, steps))
            return kept[-1]

        assert self.p_values(repeating)["epochs"] < 1e-12

    @pytest.mark.slow
    def test_secure_bins_are_even_and_independent(self) -> None:
        stream = SecureStream(bytes(range(32)))
        assert min(self.p_values(lambda _, rows, steps: RandomAllocation(rows, steps).epoch(stream)).values()) > 1e-4

    @pytest.mark.parametrize("secure", some([False, True], 1))
    def test_a_cap_keeps_an_even_choice(self, secure: bool) -> None:
        """Three records, two batches of at most one: every outcome as often as by hand."""
        rng = SecureStream(bytes(range(32))) if secure else np.random.default_rng(5)

        def p_value(keep: Callable[[Batches], Batches], cap: int | None) -> float:
            law: Counter[tuple[int, int]] = Counter()
            for bins in product(range(2), repeat=3):
                groups = [[r for r in range(3) if bins[r] == b] or [-1] for b in range(2)]
                for pair in product(*groups):
                    law[pair[0], pair[1]] += 1 / 8 / len(groups[0]) / len(groups[1])  # type: ignore[assignment]
            seen: Counter[tuple[int, int]] = Counter()
            for _ in range(8_000):
                kept = keep(RandomAllocation(3, 2, cap).epoch(rng))
                seen[tuple(int(batch[0]) if batch.size else -1 for batch in kept)] += 1  # type: ignore[index]
            assert seen.keys() <= law.keys()
            return float(stats.chisquare([seen[pair] for pair in law], [8_000 * law[pair] for pair in law]).pvalue)

        assert p_value(lambda batches: batches, 1) > 1e-4
        assert p_value(lambda batches: [batch[:1] for batch in batches], None) < 1e-12

    def test_what_is_no_epoch_is_refused(self) -> None:
        for wrong in (0, 1, -3):
            with pytest.raises(InvalidValue, match="steps_per_epoch must be >= 2"):
                RandomAllocation(10, wrong)
        with pytest.raises(InvalidValue, match="dataset_size must be >= 1"):
            RandomAllocation(0, 2)
        with pytest.raises(InvalidValue, match="dataset_size must be <="):
            RandomAllocation(2**60, 2)


class TestLedgers:
    def test_a_release_says_it_and_nothing_forgets_it(self) -> None:
        ledger = once().ledger
        assert ledger.is_allocated
        assert set(ledger.steps_per_epoch.tolist()) == {EACH}
        assert SAMPLING.release(2.0) == dc.Release(1 / EACH, 2.0, steps_per_epoch=EACH)
        for same in (
            Ledger(ledger.releases), ledger.first(7) + ledger.first(8), ledger.distinct(),
            ledger.with_noise(lambda z: z + 1), ledger.cut(ROWS, 3), ledger.where(np.ones(STEPS, dtype=bool)),
            ledger.with_rates(lambda rates: rates),
        ):  # fmt: skip
            assert set(same.steps_per_epoch.tolist()) == {EACH}
        assert ledger != ledger.allocated(0)
        assert ledger.allocated(0).allocated(EACH) == ledger
        mixed = Ledger([dc.Release(1 / EACH, 2.0, 5), dc.Release(1 / EACH, 2.0, 5, steps_per_epoch=EACH)])
        assert len(mixed.distinct()) == 2

    def test_another_rate_has_no_such_epochs(self) -> None:
        for steps, rate in ((4, 0.2), (1, 1.0)):
            with pytest.raises(InvalidValue, match=r"steps_per_epoch must be >= 2|must have sample_rate=1/4, got 0\.2"):
                Ledger.of([1.0], rate).allocated(steps)
            with pytest.raises(InvalidValue, match=r"steps_per_epoch must be >= 2|must have sample_rate=1/4, got 0\.2"):
                dc.Release(rate, 1.0, steps_per_epoch=steps)
        with pytest.raises(InvalidValue, match="must have sample_rate=1/5"):
            once().ledger.with_rates(lambda rates: rates / 2)

    def test_runs_of_epochs_of_several_lengths_are_one_ledger(self) -> None:
        short, long = (Ledger.of([2.0] * t, 1 / t).allocated(t) for t in (10, 20))
        both = Allocated().epsilon(short + long, 1e-5).value
        assert max(Allocated().epsilon(one, 1e-5).value for one in (short, long)) < both
        assert both == pytest.approx(Allocated().epsilon(long + short, 1e-5).value, rel=1e-6)
        with pytest.raises(AccountingError, match="each take part once an epoch of 10 steps"):
            Allocated(10).epsilon(short + Ledger.of([1.0], 0.1), 1e-5)
        with pytest.raises(AccountingError, match="each take part once an epoch, got"):
            Allocated().epsilon(short.allocated(0), 1e-5)

    @pytest.mark.parametrize(("t", "z", "epochs"), [(2, 3.0, 1), (12, 1.0, 4), (240, 1.0, 2)])
    def test_the_least_epsilon_is_one_that_an_attacker_shows(self, t: int, z: float, epochs: int) -> None:
        """The mean of each epoch's sums, drawn many times: delta at that epsilon is what was asked."""
        delta, n = 0.02, 400_000
        ledger = Ledger.of([z] * t * epochs, 1 / t).allocated(t)
        least, most = Allocated().least_epsilon(ledger, delta), Allocated().epsilon(ledger, delta).value
        assert 0 < least <= most
        rng, mu = np.random.default_rng(2), math.sqrt(epochs / t) / z
        # Summed over epochs: one of t sums is moved by 1, all have noise z.
        seen = [rng.normal(0, z * math.sqrt(t * epochs), n) + epochs * there for there in (0, 1)]
        loss = [mu * sums / (z * math.sqrt(t * epochs)) - mu**2 / 2 for sums in seen]
        alarms = [float((one > least).mean()) for one in loss]
        assert alarms[1] - math.exp(least) * alarms[0] == pytest.approx(delta, abs=5 * math.sqrt(delta / n) * 3)


class TestCalibration:
    def test_the_promise_is_the_accountants_word_on_the_very_arrays(self) -> None:
        plan = once()
        assert plan.guarantee == Allocated().certify(plan.ledger, BUDGET)
        assert BUDGET.epsilon * (1 - 1e-3) < plan.guarantee.epsilon <= BUDGET.epsilon
        assert plan.guarantee.accountant == "Allocated"
        assert plan.guarantee.epsilon_lower == Allocated().least_epsilon(plan.ledger, 1e-3) > 0
        assert (plan.batch_size == ROWS / EACH).all()

    def test_a_curve_is_read_once_an_epoch(self) -> None:
        noise = once().noise_multiplier.reshape(EPOCHS, EACH)
        assert (noise == noise[:, :1]).all()
        expected = 1 / curves.growing_mu(1.5)(np.arange(1, EPOCHS + 1) / EPOCHS)
        np.testing.assert_allclose(noise[:, 0] / noise[-1, 0], expected / expected[-1])
        given = calibrate(BUDGET, SAMPLING, steps=STEPS, privacy=1 / once().noise_multiplier, clip=[1.0] * STEPS)
        np.testing.assert_allclose(given.noise_multiplier, once().noise_multiplier, rtol=1e-3)

    def test_what_the_proof_does_not_cover_is_refused_with_where_it_stops(self) -> None:
        make = partial(calibrate, BUDGET, SAMPLING, clip=curves.constant(1.0))
        with pytest.raises(
            InvalidValue, match=r"constant within each epoch of 5 steps.*move within epoch 1.*equal noise"
        ):
            make(steps=STEPS, privacy=np.linspace(1, 2, STEPS))
        late = np.r_[np.ones(STEPS - 1), 2.0]
        with pytest.raises(InvalidValue, match="within epoch 3"):
            make(steps=STEPS, privacy=late)
        with pytest.raises(InvalidValue, match=r"whole epochs of 5 steps, got steps=7\. .* take 10"):
            make(steps=7, privacy=curves.constant(1.0))
        with pytest.raises(InvalidValue, match="must have one expected size, got batch="):
            make(steps=STEPS, privacy=curves.constant(1.0), batch=curves.linear(4, 8))
        for budget in (Budget(4.0, 1e-3, Unit.PERSON, 3),):
            with pytest.raises(InvalidValue, match="people with several examples must have Poisson batches"):
                calibrate(budget, SAMPLING, steps=STEPS, privacy=curves.constant(1.0), clip=curves.constant(1.0))
        with pytest.raises(InvalidValue, match=r"accountant must be Allocated .* got GdpClt"):
            make(steps=STEPS, privacy=curves.constant(1.0), accountant=dc.accounting.GdpClt())
        with pytest.raises(ImpossibleBudget):
            calibrate(Budget(60.0, 1e-3), SAMPLING, steps=STEPS, privacy=curves.constant(1.0), clip=[1.0] * STEPS)

    def test_clip_norms_may_move_within_an_epoch(self) -> None:
        assert np.unique(once().clip_norm).size == STEPS

    @pytest.mark.slow
    @settings(max_examples=4, deadline=None)
    @given(st.integers(4, 30), st.floats(0.5, 2.0), st.floats(1.1, 2.0))
    def test_a_larger_budget_and_longer_epochs_never_need_more_noise(
        self, steps: int, epsilon: float, more: float
    ) -> None:
        def noise(epsilon: float, steps: int) -> float:
            plan = calibrate(
                Budget(epsilon, 1e-4), RandomAllocation(1_000, steps), steps=2 * steps, privacy=curves.constant(1.0),
                clip=curves.constant(1.0),
            )  # fmt: skip
            return float(plan.noise_multiplier[0])

        here = noise(epsilon, steps)
        assert noise(more * epsilon, steps) <= here * (1 + 1e-3)
        assert noise(epsilon, 2 * steps) <= here * (1 + 1e-3)

    @pytest.mark.slow
    def test_a_cap_is_paid_for(self) -> None:
        """x meets a full batch in one of the steps: delta is less by exp(epsilon) P[binomial(N, 1/t) >= b] an epoch."""
        plan = once(22)
        found = plan.guarantee.epsilon
        left = BUDGET.delta - math.exp(found) * EPOCHS * float(stats.binom(ROWS, 1 / EACH).sf(21))
        assert 0 < left < 0.99 * BUDGET.delta
        whole = plan.ledger.cut(1, None)
        assert Allocated().epsilon(whole, left).value == pytest.approx(found, rel=1e-3)
        assert plan.guarantee.accountant == "Truncated(Allocated)"
        with pytest.raises(AccountingError, match="Use Truncated, which adds the price"):
            Allocated().epsilon(plan.ledger, 1e-3)


class TestFiles:
    @pytest.mark.parametrize("cap", some([None, 22], 1))
    def test_a_plan_comes_back_bit_for_bit(self, cap: int | None, tmp_path: Path) -> None:
        once(cap).save(tmp_path / "plan.json")
        again = Plan.load(tmp_path / "plan.json")
        assert again == once(cap)
        assert again.ledger == once(cap).ledger
        assert again.sha256 == once(cap).sha256
        assert '"version": 6' in once(cap).to_json()

    def test_what_was_not_written_is_refused(self) -> None:
        def body() -> dict[str, object]:
            return sealed.opened(once().to_json(), "x", "decrescendo-plan", 6)

        for change, says in (
            ({"version": 1}, "got another version"),
            ({"sampling": {"dataset_size": ROWS, "expected_batch_size": 8.0}}, "got another version"),
            ({"sampling": {"dataset_size": ROWS, "steps_per_epoch": 4}}, "whole epochs of 4 steps, got 15"),
            ({"sampling": {"dataset_size": ROWS, "steps_per_epoch": 1}}, "steps_per_epoch must be >= 2"),
        ):
            with pytest.raises(FileRefused, match=says):
                Plan.from_json(sealed.seal(body() | change))

    def test_words(self) -> None:
        assert "once an epoch of 5 steps, in one drawn evenly (8 expected a batch)" in once().describe()
        assert "each record once in 5 steps" in repr(once().ledger)

    def test_the_second_opinion_catches_a_promise_that_is_too_small(self) -> None:
        first, second = once().confirm(once().ledger)
        assert first.startswith("Allocated again: epsilon in [")
        assert "epsilon at least" in second
        assert "consistent" in second
        low = 0.9 * (once().guarantee.epsilon_lower or 0.0)
        lie = replace(once(), guarantee=Guarantee(low, 1e-3, Unit.EXAMPLE, "Pld", "upper"))
        assert "CONTRADICTS" in str(lie.verify())
        with pytest.raises(AccountingError, match="must not be below the true epsilon"):
            list(lie.confirm(lie.ledger))
        with pytest.raises(InvalidValue, match="must promise what its releases spend"):
            trainer_of(lie)

    def test_what_is_promised_between_the_two_ends_is_no_guarantee(self) -> None:
        """The bracket is wide: what contradicts no lower end was verified and trained by."""
        given = once().guarantee
        low = (given.epsilon + (given.epsilon_lower or 0.0)) / 2
        assert low < 0.9 * given.epsilon
        between = replace(once(), guarantee=replace(given, epsilon=low, epsilon_lower=None))
        with pytest.raises(AccountingError, match="must not be below what its accountant says"):
            list(between.confirm(between.ledger))
        with pytest.raises(InvalidValue, match="must promise what its releases spend"):
            trainer_of(between)

    @pytest.mark.slow
    def test_every_accountant_side_by_side(self) -> None:
        first, *others = verdicts(once().ledger, 1e-3)
        assert first.accountant == "Allocated"
        assert all(verdict.bound is None for verdict in others)
        power = 1 - trade_off(once().ledger, [0.01, 0.1])
        assert (power > [0.01, 0.1]).all()
        assert (power < 1).all()


def model_of() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.2))


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(ROWS, 3, generator=generator), torch.randint(0, 2, (ROWS,), generator=generator)


def trainer_of(plan: Plan | ClipController, seed: int | Secure = 5, **more: object) -> tuple[Trainer, nn.Module]:
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return Trainer(model, loss, plan, optimizer, seed=seed, **more), model  # type: ignore[arg-type]


def batches_of(
    folder: Path | None,
    seed: int | Secure,
    stops: tuple[int, ...] = (),
    workers: int = 0,
    cap: int | None = None,
) -> list[tuple[int, ...]]:
    """Row numbers of every step of a run that is killed after so many steps, and gone on with."""
    plan = Plan.without_privacy(replace(SAMPLING, max_batch_size=cap), steps=STEPS)
    seen: dict[int, tuple[int, ...]] = {}
    for stop in (*stops, STEPS):
        model = nn.Linear(1, 1)
        trainer = Trainer(
            model, lambda model, batch: model(batch)[:, 0], plan, torch.optim.SGD(model.parameters(), lr=0), seed=seed,
            checkpoints=None if folder is None else Checkpoints(folder, 1, resume=True),
        )  # fmt: skip
        if len(trainer.ledger) < STEPS:
            for batch in trainer.batches(torch.arange(float(ROWS))[:, None], num_workers=workers):
                rows = () if batch is None else tuple(int(row) for row in batch[:, 0])
                # A step that is done again, because it came after the last checkpoint, has its batch again.
                assert seen.setdefault(len(trainer.ledger), rows) == rows
                trainer.step(batch)
                if len(trainer.ledger) == stop:
                    break
    return [seen[step] for step in range(STEPS)]


class TestTraining:
    def test_each_step_is_the_sum_of_its_bin_over_the_expected_size(self) -> None:
        """Without clipping or noise, against the stream drawn again by hand."""
        plan, rows = Plan.without_privacy(SAMPLING, steps=STEPS), data()
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        means: list[torch.Tensor] = []
        optimizer.register_step_pre_hook(lambda *_: means.append(model.weight.grad.clone()))  # type: ignore[union-attr, func-returns-value]
        train(model, loss, rows, plan, optimizer, seed=3)
        rng = Streams(3).numpy("sampling")
        for epoch in range(EPOCHS):
            bins = rng.integers(EACH, size=ROWS)
            for step in range(EACH):
                drawn = torch.as_tensor(bins == step)
                model.zero_grad()
                loss(model, (rows[0][drawn], rows[1][drawn])).sum().backward()
                torch.testing.assert_close(means[EACH * epoch + step], model.weight.grad / (ROWS / EACH))  # type: ignore[operator]

    @pytest.mark.parametrize("seed", some([7, Secure()], 1))
    def test_every_row_takes_part_once_an_epoch_whenever_the_run_was_killed(
        self, seed: int | Secure, tmp_path: Path
    ) -> None:
        seen = batches_of(tmp_path / "run", seed, stops=(1, 3, 5, 9, 14))
        for start in range(0, STEPS, EACH):
            rows = [row for batch in seen[start : start + EACH] for row in batch]
            assert sorted(rows) == list(range(ROWS))
        assert seen[:EACH] != seen[EACH : 2 * EACH]
        if isinstance(seed, int):
            assert seen == batches_of(None, seed)

    @pytest.mark.parametrize("workers", [0, 2])
    def test_batches_made_ahead_and_cut_are_the_same(self, workers: int) -> None:
        assert batches_of(None, 7, workers=workers) == batches_of(None, 7)
        cut = batches_of(None, 7, workers=workers, cap=6)
        assert cut == batches_of(None, 7, cap=6)
        assert max(map(len, cut)) == 6

    @pytest.mark.slow
    def test_a_later_iterator_goes_on_in_the_midst_of_an_epoch(self) -> None:
        trainer, _ = trainer_of(once())
        whole, _ = trainer_of(once())
        expected = [None if batch is None else batch[0].clone() for batch in self.steps(whole)]
        found = [*self.steps(trainer, 3), *self.steps(trainer, 4), *self.steps(trainer)]
        for one, other in zip(found, expected, strict=True):
            assert (one is None) == (other is None)
            assert one is None or torch.equal(one[0], other)

    def steps(self, trainer: Trainer, most: int = STEPS) -> list:
        found = []
        for batch in trainer.batches(data()):
            found.append(batch)
            trainer.step(batch)
            if len(found) == most:
                break
        return found

    @pytest.mark.parametrize(("every", "stop"), some([(2, 3), (2, 6), (5, 10), (4, 7)], 1))
    def test_killed_and_resumed_it_is_the_same_run(self, every: int, stop: int, tmp_path: Path) -> None:
        def life(folder: str, stop: int | None) -> tuple[nn.Module, Run | None]:
            trainer, model = trainer_of(once(), checkpoints=Checkpoints(tmp_path / folder, every, resume=True))
            for batch in trainer.batches(data()):
                trainer.step(batch)
                if len(trainer.ledger) == stop:
                    return model, None
            return model, trainer.finish()

        life("broken", stop)
        again, run = life("broken", None)
        straight, whole = life("straight", None)
        assert run is not None
        assert whole is not None
        assert run.ledger == whole.ledger == once().ledger
        assert run.guarantee == whole.guarantee == once().guarantee
        for one, other in zip(again.parameters(), straight.parameters(), strict=True):
            assert torch.equal(one, other)

    @pytest.mark.slow
    def test_what_is_spent_within_an_epoch_is_the_whole_epochs(self) -> None:
        trainer, _ = trainer_of(once())
        ledger, spent = once().ledger, []
        for batch in trainer.batches(data()):
            trainer.step(batch)
            spent.append(trainer.epsilon_spent())
        for step, epsilon in enumerate(spent):
            whole = ledger.first(EACH * (step // EACH + 1))
            assert epsilon == Allocated().epsilon(whole, 1e-3).value
        assert spent[-1] == once().guarantee.epsilon
        assert set(trainer.spent.steps.tolist()) == {5, 10, 15}

    def test_a_run_that_ends_early_is_charged_for_the_whole_plan(self, tmp_path: Path) -> None:
        trainer, _ = trainer_of(once())
        self.steps(trainer, 7)
        run = trainer.finish()
        assert run.guarantee == once().guarantee
        assert len(run.statement(spent=3).facts["spent"]) == 1
        run.save(tmp_path / "run")
        assert Run.load(tmp_path / "run").ledger == once().ledger.first(7)

    def test_store_run_and_statement_say_it(self, tmp_path: Path) -> None:
        store = Store.create(tmp_path / "ledger.db", rows=ROWS, budget=Budget(9.0, 1e-2), dataset="toy")
        trainer, _ = trainer_of(once(), store=store)
        self.steps(trainer)
        run = trainer.finish()
        (entry,) = Store(tmp_path / "ledger.db").entries()
        assert entry.released == run.ledger == once().ledger
        assert "reserved (4, 0.001)" in store.describe()
        run.save(tmp_path / "run")
        again = Run.load(tmp_path / "run")
        assert again.ledger == once().ledger
        statement = again.statement(spent=20)
        page = statement.to_markdown()
        assert "random allocation: each example takes part once an epoch of 5 steps" in page
        assert "Poisson" not in page
        assert "random allocation with independent draws" in page
        assert statement.facts["accounting"]["clt"] is None
        assert [point["step"] for point in statement.facts["spent"]] == [5, 10, 15]
        assert statement.facts["spent"][-1]["epsilon"] == once().guarantee.epsilon

    def test_stores_add_it_up_or_refuse(self, tmp_path: Path) -> None:
        made = {
            rule: Store.create(tmp_path / rule[:5], Budget(9.0, 1e-2), dataset="toy", rows=ROWS, composition=rule)
            for rule in ("sum", "declared", "renyi:8")
        }
        poisson = calibrate(BUDGET, PoissonSampling(ROWS, 8), steps=3, privacy=[1.0] * 3, clip=[1.0] * 3)
        with pytest.raises(InvalidValue, match="a run whose records take part once an epoch"):
            made["renyi:8"].start(once())
        for plan in (once(), poisson):
            made["sum"].start(plan)
        made["declared"].start(once())
        with pytest.raises(InvalidValue, match="must all draw Poisson batches, or all"):
            made["declared"].start(poisson)
        made["declared"].start(replace(once(), schedule=Schedule(2 * once().noise_multiplier, once().clip_norm)))
        joint = once().ledger + once().ledger.with_noise(lambda z: 2 * z)
        assert f"{Truncated().epsilon(joint, 1e-2).value:.6g}" in made["declared"].describe()

    def test_a_clip_norm_that_follows_the_gradients_is_covered(self) -> None:
        plan = calibrate(BUDGET, SAMPLING, steps=STEPS, privacy=curves.growing_mu(1.5), clip=curves.constant(1.0))
        trainer, _ = trainer_of(ClipController(plan))
        self.steps(trainer)
        run = trainer.finish()
        assert run.ledger == plan.ledger
        assert run.guarantee == plan.guarantee


class TestElsewhere:
    @pytest.mark.slow
    def test_what_is_proven_for_poisson_batches_refuses_it(self) -> None:
        plan = calibrate(Budget(4.0, 1e-3, Unit.CLIENT), SAMPLING, steps=EACH, privacy=[1.0] * EACH, clip=[1.0] * EACH)
        model = model_of()
        with pytest.raises(InvalidValue, match="a federated run must have Poisson batches"):
            Server(model, plan, torch.optim.SGD(model.parameters(), lr=0.1), seed=0, placement=Placement.CENTRAL)
        budget_filter = RenyiFilter(BUDGET, 8)
        with pytest.raises(AccountingError, match="grants releases of Poisson batches only"):
            budget_filter.cost(SAMPLING.release(1.0))
        with pytest.raises(AccountingError, match="people with several examples must have Poisson batches"):
            Truncated(Pld(group=2)).epsilon(plan.ledger, 1e-3)

    @pytest.mark.slow
    def test_the_page_shows_it(self) -> None:
        subject = Subject.of("plan", once())
        assert any("8" in str(cell) for _, cell in outline(subject)["rows"])
        assert assess(subject, "spent")["spent"][1][-1] == once().guarantee.epsilon
        (first, *_) = assess(subject, "claims")["claims"]
        assert first[0] == "Once an epoch (Allocated)"
        assert assess(subject, "attack")["attack"]["power"]


def test_a_plan_without_privacy_must_be_of_whole_epochs_too() -> None:
    with pytest.raises(InvalidValue, match=r"steps must be of whole epochs of 10 steps, got steps=7\. .*take 10"):
        Plan.without_privacy(RandomAllocation(100, 10), steps=7)
