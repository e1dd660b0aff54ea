"""Plans of correlated noise: the strategy, its rounding, its cost, and what is refused."""

import dataclasses
import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decrescendo as dc
from decrescendo.accounting import Gaussian, Ledger, Pld, Truncated
from decrescendo.accounting.budget import Budget, Unit
from decrescendo.base.rng import SecureStream
from decrescendo.errors import FileRefused, InvalidValue
from decrescendo.plans import CyclicPoissonSampling, Plan, RandomAllocation, allocate, noise_cost
from decrescendo.plans.correlating import Task, best_strategy, equal_columns
from decrescendo.plans.schedule import Schedule
from decrescendo.plans.strategy import Strategy
from decrescendo.plans.workload import Workload

BUDGET = Budget(4.0, 1e-6)
SAMPLING = dc.PoissonSampling(2_500, 50)
STEPS = 40
RATES = (1 + np.cos(np.pi * np.arange(STEPS) / STEPS)) / 2


@pytest.fixture(scope="module")
def plan() -> Plan:
    return dc.calibrate(BUDGET, SAMPLING, steps=STEPS, clip=np.linspace(1.0, 0.5, STEPS), bands=4, workload=RATES)


def square(strategy: np.ndarray) -> np.ndarray:
    """S as a matrix, of the rows of its bands."""
    bands, steps = strategy.shape
    found = np.zeros((steps, steps))
    for k, t in itertools.product(range(bands), range(steps)):
        if t + k < steps:
            found[t + k, t] = strategy[k, t]
    return found


class TestPlan:
    def test_columns_are_what_is_accounted_for_and_what_is_certified(self, plan: Plan) -> None:
        whole = square(plan.strategy)
        norms = np.linalg.norm(whole, axis=0)
        assert plan.strategy.shape == (plan.bands, plan.steps) == (4, STEPS)
        assert np.all(plan.noise_multiplier <= 1 / norms)
        np.testing.assert_allclose(plan.noise_multiplier, 1 / norms, rtol=1e-12)
        assert not plan.strategy[np.add.outer(np.arange(4), np.arange(STEPS)) >= STEPS].any()
        rates = np.full(STEPS, 4 * 50 / 2_500)
        assert plan.ledger == Ledger.of(plan.noise_multiplier, rates).banded(4)
        assert Pld().epsilon(plan.ledger, 1e-6).value == plan.guarantee.epsilon <= 4.0
        assert plan.guarantee.epsilon > 3.999
        np.testing.assert_array_equal(plan.batch_size, 50.0)

    def test_the_recursion_is_the_inverse_of_the_strategy(self, plan: Plan) -> None:
        noises = np.zeros((STEPS, STEPS))  # rows: n_t as a sum of xi
        for t in range(STEPS):
            weights = plan.noise_coefficients(t)
            assert np.all(weights * 2**12 % 1 == 0)
            assert weights.shape == (3,)
            noises[t, t] = plan.noise_scale(t)
            for k, weight in enumerate(weights, start=1):
                if t >= k:
                    noises[t] -= weight * noises[t - k]
                else:
                    assert weight == 0
        np.testing.assert_allclose(noises @ square(plan.strategy), np.eye(STEPS), atol=1e-12)
        np.testing.assert_allclose(plan.noise_std, plan.clip_norm * np.linalg.norm(noises, axis=1), rtol=1e-12)

    def test_it_is_saved_hashed_copied_and_verified(self, plan: Plan) -> None:
        again = Plan.from_json(plan.to_json())
        assert again == plan
        assert again.sha256 == plan.sha256
        assert pickle.loads(pickle.dumps(plan)) == plan
        assert not plan.strategy.flags.writeable
        assert plan.verify().consistent
        assert "4 bands" in str(plan)
        assert "one of 4 secret groups" in plan.describe()

    def test_another_strategy_is_another_file(self, plan: Plan) -> None:
        assert plan.correlation is not None
        turned = plan.strategy.copy()
        turned[1:] *= -1
        other = dataclasses.replace(plan, correlation=Strategy(turned))
        assert other.noise_multiplier.tolist() == plan.noise_multiplier.tolist()
        assert other.sha256 != plan.sha256

    def test_its_ledger_is_what_its_sampling_releases(self, plan: Plan) -> None:
        taken = [plan.sampling.at(t).release(float(plan.noise_multiplier[t])) for t in range(7)]
        assert plan.begins(Ledger(taken))
        assert plan.allows(3, taken[3])
        assert not plan.allows(4, taken[3])
        assert not plan.begins(Ledger(taken[1:]))
        plan.check(plan.ledger, plan.guarantee)
        assert plan.held_up(plan.price(Pld())) == []

    @pytest.mark.parametrize("build", ["group", "band", "norms before the cut", "rate"])
    def test_broken_builds_make_no_plan(self, plan: Plan, build: str) -> None:
        assert plan.correlation is not None
        wrong = plan.correlation
        sampling = CyclicPoissonSampling(2_500, 50, 4)
        z = wrong.noise_multiplier
        if build == "group":
            sampling = sampling.at(1)
        if build == "band":
            sampling = CyclicPoissonSampling(2_500, 50, 3)
        if build == "norms before the cut":
            z = z.copy()
            z[-1] = z[-5]
        if build == "rate":
            with pytest.raises(InvalidValue, match="as many bands"):
                dataclasses.replace(plan, sampling=SAMPLING)
            return
        with pytest.raises(InvalidValue, match=r"as many bands|norms of its strategy"):
            Plan(BUDGET, sampling, Schedule(z, plan.clip_norm), plan.guarantee, wrong)

    def test_a_changed_file_is_refused(self, plan: Plan) -> None:
        from decrescendo.base import sealed

        body = sealed.opened(plan.to_json(), "it", "decrescendo-plan", 7, keys={7: _keys(plan)})
        for change in ({"bands": 3}, {"bands": 1}):
            told = {**body, "sampling": body["sampling"] | change}
            with pytest.raises(FileRefused):
                Plan.from_json(sealed.seal(_plain(told)))
        rows = [list(row) for row in body["strategy"]]
        rows[1][2] *= 1 + 1e-9
        with pytest.raises(FileRefused, match="multiples of 2"):
            Plan.from_json(sealed.seal(_plain({**body, "strategy": rows})))

    def test_one_band_is_derived_and_not_stored(self) -> None:
        one = dc.calibrate(Budget(1.0, 1e-5), SAMPLING, steps=5, clip=1.0)
        assert one.bands == 1
        np.testing.assert_array_equal(one.strategy, 1 / one.noise_multiplier[None])
        assert one.noise_coefficients(2).size == 0
        assert one.noise_scale(2) == one.noise_multiplier[2]
        assert "strategy" not in one.to_json()
        assert dc.calibrate(Budget(1.0, 1e-5), SAMPLING, steps=5, clip=1.0, bands=1).to_json() == one.to_json()


def _keys(plan: Plan) -> set[str]:
    return {"format", "version", "budget", "sampling", "schedule", "guarantee", "strategy"}


def _plain(body: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in body.items() if name != "sha256"}


class TestStrategy:
    @given(
        st.integers(2, 5), st.integers(1, 12), st.integers(0, 10**6), st.floats(1e-3, 1e3),
    )  # fmt: skip
    @settings(max_examples=60, deadline=None)
    def test_rounding_keeps_ratios_dyadic_and_norms_on_the_safe_side(
        self, bands: int, steps: int, seed: int, scale: float
    ) -> None:
        rng = np.random.default_rng(seed)
        matrix = np.r_[rng.uniform(0.2, 3, (1, steps)), rng.uniform(-1, 1, (bands - 1, steps))]
        found = Strategy.rounded(matrix, scale)
        assert Strategy(found.matrix) == found
        whole = square(found.matrix)
        for t in range(steps):
            own = [whole[t, t - k] / whole[t, t] if k <= t else 0.0 for k in range(1, bands)]
            np.testing.assert_array_equal(found.weights(t), own)
        assert np.all(found.noise_multiplier <= 1 / np.linalg.norm(whole, axis=0) * (1 - 2.0**-52))
        near = square(scale * matrix)
        assert np.abs(whole - near).max() <= 2.0**-12 * np.diag(near).max()
        np.testing.assert_allclose(found.noise_std(), np.linalg.norm(np.linalg.inv(whole), axis=1), rtol=1e-9)

    @pytest.mark.parametrize(
        "matrix",
        [[[1.0, 1.0], [0.3, 0.0]], [[1.0, 1.0], [0.5, 0.5]], [[1.0, 0.0], [0.5, 0.0]], [[1.0, 1.0]], 3.0],
    )
    def test_others_are_refused(self, matrix: object) -> None:
        with pytest.raises(InvalidValue, match="a strategy must"):
            Strategy(matrix)

    def test_columns_that_move_too_fast_are_refused(self) -> None:
        with pytest.raises(InvalidValue, match="move too fast"):
            Strategy.rounded([[1.0, 1e-5], [0.5, 0.0]])


class TestWorkload:
    @pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.5, 0.1)])
    def test_the_cost_is_the_variance_in_the_iterates_of_sgd(self, momentum: float, decay: float) -> None:
        rng = np.random.default_rng(1)
        strategy = Strategy.rounded(np.r_[rng.uniform(1, 2, (1, 9)), rng.uniform(-1, 1, (2, 9))])
        rates, scale, matters = rng.uniform(0.3, 1, 9), rng.uniform(0.5, 2, 9), rng.uniform(0, 1, 9)
        noises = np.linalg.inv(square(strategy.matrix))
        iterate, velocity, cost = np.zeros(9), np.zeros(9), 0.0
        for t in range(9):
            velocity = momentum * velocity + scale[t] * noises[t] + decay * iterate
            iterate = iterate - (rates[t] if decay else rates[t] / rates.max()) * velocity
            cost += matters[t] * iterate @ iterate
        workload = Workload(rates, momentum, decay, iterates=matters)
        assert workload.cost(strategy, scale) == pytest.approx(cost, rel=1e-12)

    def test_the_influence_of_a_last_iterate_is_that_of_independent_noise(self) -> None:
        q, z = np.array([1.0, 4.0, 9.0]), np.array([1.0, 2.0, 0.5])
        assert Workload.of_influence(q).cost(z) == pytest.approx(float(q @ z**2) / 9)

    @pytest.mark.parametrize("wrong", ["some", [1.0, 2.0], [-1.0] * 3, [0.0] * 3])
    def test_iterates_that_are_none_are_refused(self, wrong: object) -> None:
        with pytest.raises(InvalidValue, match="iterates must be"):
            Workload(1.0, iterates=wrong).cost(np.ones(3))  # type: ignore[arg-type]


class TestSearch:
    def test_it_is_never_worse_than_its_start_and_beats_it_where_rates_fall(self) -> None:
        task = Task(BUDGET, Workload(RATES), np.ones(STEPS), np.full(STEPS, 0.02))
        plans = {}
        for name, shape in (("best", best_strategy(task, 4)), ("equal", equal_columns(task, 4))):
            scale = 1.0
            ledger = Ledger.of(Strategy.rounded(shape).noise_multiplier, 0.08).banded(4)
            for _ in range(12):
                epsilon = Pld().estimate(ledger.with_noise(lambda z: z / scale), 1e-6)  # noqa: B023
                scale *= (4.0 / epsilon) ** 0.7
            plans[name] = task.workload.cost(Strategy.rounded(shape, scale))
        assert plans["best"] < 0.85 * plans["equal"]

    def test_auto_is_at_most_as_costly_as_each_of_the_bands(self) -> None:
        workload = Workload(RATES[::3][:12])
        costs = {
            bands: workload.cost(found.correlation or found.noise_multiplier)
            for bands in (1, 4, "auto")
            for found in [dc.calibrate(BUDGET, SAMPLING, steps=12, clip=1.0, bands=bands, workload=workload)]
        }
        assert costs["auto"] <= costs[4] * (1 + 1e-3)
        assert costs["auto"] <= costs[1]

    def test_auto_keeps_independent_noise_where_it_is_better(self) -> None:
        every = dc.PoissonSampling(50, 50)  # two groups would be half the batch
        found = dc.calibrate(Budget(1.0, 1e-5), every, steps=6, clip=1.0, bands="auto", workload=1.0)
        assert found.bands == 1
        assert found.sampling == every

    @pytest.mark.slow
    def test_allocate_takes_bands_and_a_workload(self) -> None:
        q = np.linspace(1, 4, 12)
        found = allocate(BUDGET, SAMPLING, steps=12, influence=q, clip=1.0, bands=2)
        assert found.bands == 2
        assert noise_cost(found, q) < noise_cost(allocate(BUDGET, SAMPLING, steps=12, influence=q, clip=1.0), q)
        assert allocate(BUDGET, SAMPLING, steps=12, workload=1.0, clip=1.0, bands=2).bands == 2
        with pytest.raises(InvalidValue, match="exactly one of influence and workload"):
            allocate(BUDGET, SAMPLING, steps=12, clip=1.0)

    @pytest.mark.slow
    def test_batches_that_move(self) -> None:
        sizes = np.linspace(30, 60, 6)
        found = dc.calibrate(BUDGET, SAMPLING, steps=6, clip=1.0, batch=sizes, bands=3, workload=1.0)
        np.testing.assert_array_equal(found.batch_size, sizes)
        np.testing.assert_array_equal(found.ledger.sample_rate, 3 * sizes / 2_500)
        assert Plan.from_json(found.to_json()) == found
        assert found.sampling.at(5).expected_batch_size == sizes[5]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            {"bands": 8, "sampling": dc.PoissonSampling(100, 20)},
            "bands times the expected batch size must be <= dataset_size",
        ),
        ({"bands": 13}, "at most the 12 steps"),
        ({"bands": 0}, "bands must be"),
        ({"bands": 2, "privacy": np.ones(12)}, "privacy must be left out"),
        ({"bands": 2, "accountant": Gaussian()}, "accountant must be Pld"),
        ({"bands": 2, "sampling": dc.PoissonSampling(2_500, 50, 90)}, "any size"),
        ({"bands": 2, "sampling": RandomAllocation(2_500, 12)}, "Poisson batches"),
        ({"bands": 2, "budget": Budget(4.0, 1e-6, Unit.PERSON, 3)}, "one example|people"),
    ],
)
def test_what_has_no_proof_is_refused_in_one_sentence(change: dict[str, object], match: str) -> None:
    asked: dict[str, object] = {"budget": BUDGET, "sampling": SAMPLING, "steps": 12, "clip": 1.0} | change
    with pytest.raises((InvalidValue, dc.errors.DecrescendoError), match=match):
        dc.calibrate(**asked)  # type: ignore[arg-type]


class TestSampling:
    @pytest.mark.parametrize("secure", [True, False])
    def test_a_record_is_drawn_at_its_own_turns_only_at_the_whole_rate(self, secure: bool) -> None:
        sampling = CyclicPoissonSampling(4_000, 400, 3)
        rng = SecureStream.fresh() if secure else np.random.default_rng(3)
        groups = sampling.groups(rng)
        assert sorted(np.concatenate(groups).tolist()) == list(range(4_000))
        batches = list(sampling.batches(30, rng, groups))
        for t, batch in enumerate(batches):
            assert np.isin(batch, groups[t % 3]).all()
            assert np.all(np.diff(batch) > 0)
        taken = np.bincount(np.concatenate(batches), minlength=4_000)
        # 10 turns at rate 0.3 each; and group sizes of binomial(4000, 1/3).
        assert abs(taken.mean() - 3) < 5 * np.sqrt(10 * 0.21 / 4_000)
        assert abs(taken.var() - 2.1) < 0.3
        assert max(abs(len(group) - 4_000 / 3) for group in groups) < 5 * np.sqrt(4_000 * 2 / 9)

    def test_groups_may_be_empty_and_more_than_records(self) -> None:
        sampling = CyclicPoissonSampling(2, 0.5, 4)
        groups = sampling.groups(np.random.default_rng(0))
        batches = list(sampling.at(5).batches(8, np.random.default_rng(1), groups))
        assert len(batches) == 8
        assert sum(map(len, batches)) == 4  # rate 1: both records, twice each
        assert sampling.at(5).group == 1

    def test_it_is_a_value(self) -> None:
        one = CyclicPoissonSampling(100, np.array([10.0, 20.0]), 2)
        assert one == CyclicPoissonSampling(100, [10.0, 20.0], 2) == pickle.loads(pickle.dumps(one))
        assert hash(one) == hash(CyclicPoissonSampling(100, [10.0, 20.0], 2))
        assert one != CyclicPoissonSampling(100, 10.0, 2)
        assert one.sample_rate == 0.4
        assert one.rates(2).tolist() == [0.2, 0.4]
        assert one.at(1).release(2.0).sample_rate == 0.4
        with pytest.raises(InvalidValue, match="one of the 2"):
            one.at(2)
        with pytest.raises(InvalidValue, match="3 x 40"):
            CyclicPoissonSampling(100, 40, 3)


def test_truncated_wraps_it() -> None:
    found = dc.calibrate(BUDGET, SAMPLING, steps=8, clip=1.0, bands=2, accountant=Truncated())
    assert found.guarantee.accountant == "Pld"
