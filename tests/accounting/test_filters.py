"""Facts: whatever a policy does with a filter, what was granted is within the budget, in exact arithmetic."""

import contextlib
import math
import pickle
import time
from collections.abc import Callable
from fractions import Fraction
from threading import Barrier, Lock, Thread

import mpmath
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st

from decrescendo.accounting import (
    Filter,
    Gaussian,
    GdpFilter,
    Pld,
    RenyiFilter,
    Zcdp,
    ZcdpFilter,
    best_order,
    mu_of,
    rho_of,
)
from decrescendo.accounting.budget import Budget
from decrescendo.accounting.filters.metered import SAFE, MeteredFilter, round_down, round_up
from decrescendo.accounting.filters.renyi import ORDERS, renyi_limit, renyi_step
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.release import Release
from decrescendo.errors import AccountingError, ImpossibleBudget, InvalidValue
from decrescendo.plans.calibration import calibrate
from decrescendo.plans.curves import growing_mu
from decrescendo.plans.sampling import PoissonSampling

mp = mpmath.mp.clone()
mp.dps = 50

budgets = st.builds(
    Budget,
    st.floats(-3, 1.5).map(lambda x: 10**x),
    st.floats(-12, -1).map(lambda x: 10**x),
)


# --- independent references: the definitions, in 50 digits or in fractions -----------------------------------------


def exact_rho(budget: Budget) -> mpmath.mpf:
    e, level = mp.mpf(budget.epsilon), -mp.log(mp.mpf(budget.delta))
    return e + 2 * level - 2 * mp.sqrt(level * (e + level))


def exact_delta(epsilon: float, mu: mpmath.mpf) -> mpmath.mpf:
    e = mp.mpf(epsilon)
    return mp.ncdf(-e / mu + mu / 2) - mp.exp(e) * mp.ncdf(-e / mu - mu / 2)


def exact_epsilon(order: int, divergence: mpmath.mpf, delta: float) -> mpmath.mpf:
    a = mp.mpf(order)
    return divergence + mp.log(1 - 1 / a) - mp.log(mp.mpf(delta) * a) / (a - 1)


def exact_divergence(order: int, p: float, z: float) -> mpmath.mpf:
    """By the textbook sum, with its cancellation: in enough digits: a cost may be 1e-130."""
    with mp.workdps(200):
        q, s = mp.mpf(p), mp.mpf(z)
        total = mp.fsum(
            mp.binomial(order, k) * (1 - q) ** (order - k) * q**k * mp.exp(mp.mpf(k * (k - 1)) / (2 * s**2))
            for k in range(order + 1)
        )
        return mp.log(total) / (order - 1)


# --- limits ---------------------------------------------------------------------------------------------------------


@given(budget=budgets)
def test_the_limit_in_zcdp_is_below_the_exact_one_by_a_hair(budget: Budget) -> None:
    limit, exact = mp.mpf(ZcdpFilter(budget).limit), exact_rho(budget)
    assert exact * (1 - mp.mpf(2e-13)) < limit < exact


@given(budget=budgets)
def test_the_limit_in_gaussian_dp_is_below_the_exact_one_by_a_hair(budget: Budget) -> None:
    mu = mp.sqrt(mp.mpf(GdpFilter(budget).limit))
    assert exact_delta(budget.epsilon, mu) < mp.mpf(budget.delta)
    assert exact_delta(budget.epsilon, mu * (1 + mp.mpf(1e-11))) > mp.mpf(budget.delta)


@given(budget=budgets, order=st.integers(2, 1024))
def test_the_limit_at_an_order_is_below_the_exact_one_by_a_hair(budget: Budget, order: int) -> None:
    limit = mp.mpf(renyi_limit(budget, order))
    slack = mp.mpf(budget.epsilon) - exact_epsilon(order, limit, budget.delta)
    assert 0 < slack < 3e-13 * (budget.epsilon + 1 - math.log(budget.delta))
    if limit <= 0:
        with pytest.raises(ImpossibleBudget, match="Take a larger one"):
            RenyiFilter(budget, order)
    else:
        assert RenyiFilter(budget, order).limit == limit


def test_the_figures_of_hong() -> None:
    assert round(ZcdpFilter(Budget(4.0, 1e-8)).limit, 6) == 0.196352
    # Their R counts 1/z^2: twice as much.
    assert round(2 * ZcdpFilter(Budget(4.0, 1e-8)).limit, 6) == 0.392704


# --- costs ----------------------------------------------------------------------------------------------------------


@given(z=st.floats(-5, 12).map(lambda x: 10**x))
def test_a_full_step_costs_its_closed_form_rounded_up(z: float) -> None:
    release = Release(1.0, z)
    for filter, exact in (
        (ZcdpFilter(Budget(1, 1e-5)), 1 / (2 * Fraction(z) ** 2)),
        (GdpFilter(Budget(1, 1e-5)), 1 / Fraction(z) ** 2),
        (RenyiFilter(Budget(1, 1e-5), 32), 32 / (2 * Fraction(z) ** 2)),
    ):
        cost = Fraction(filter.cost(release))
        assert exact <= cost <= exact * (1 + Fraction(1, 2**52))


@given(
    order=st.sampled_from([2, 3, 5, 16, 33, 64, 200, 512]),
    p=st.one_of(st.floats(-7, -0.001).map(lambda x: 10**x), st.floats(0.5, 0.999999)),
    z=st.floats(-1, 7).map(lambda x: 10**x),
)
def test_a_sampled_step_costs_the_textbook_divergence_rounded_up(order: int, p: float, z: float) -> None:
    exact, cost = exact_divergence(order, p, z), renyi_step(order, p, z)
    assert exact <= cost
    assert cost == math.inf or cost <= exact * (1 + mp.mpf(3e-10)) + mp.mpf(5e-324)


def test_in_usual_ranges_it_is_what_dp_accounting_says() -> None:
    for order in (2, 8, 32, 63):
        for p, z in ((0.004, 1.1), (0.01, 0.7), (0.3, 5.0), (1.0, 10.0)):
            event = PoissonSampledDpEvent(p, GaussianDpEvent(z))
            theirs = RdpAccountant([order]).compose(event)._rdp[0]
            assert renyi_step(order, p, z) == pytest.approx(theirs, rel=1e-8)


def test_tiny_steps_do_not_drown_in_rounding() -> None:
    # The library's sum over all terms is 1 + something: it says 26 % too much here, and elsewhere might say too little.
    theirs = RdpAccountant([8]).compose(PoissonSampledDpEvent(1e-3, GaussianDpEvent(1e6)))._rdp[0]
    exact = exact_divergence(8, 1e-3, 1e6)
    assert abs(theirs / float(exact) - 1) > 0.1
    assert renyi_step(8, 1e-3, 1e6) == pytest.approx(float(exact), rel=2e-10)


def test_a_divergence_beyond_all_floats_is_infinite() -> None:
    assert renyi_step(64, 0.5, 1e-3) > 1e6
    assert renyi_step(1024, 1e-8, 1e-200) == math.inf


# --- policies that choose by each answer -----------------------------------------------------------------------------


def granted_to_a_policy(draw: Callable[..., object], filter: Filter, rates: st.SearchStrategy[float]) -> list[Release]:
    """Tries to get more than it should: moves are chosen after each answer, and may depend on all of them."""
    granted: list[Release] = []
    refused: list[Release] = []
    for _ in range(draw(st.integers(1, 25), label="requests")):
        rate = draw(rates, label="rate")
        edge = filter.smallest_noise_multiplier(rate, draw(st.integers(1, 5), label="of"))
        edge = edge if math.isfinite(edge) else 1e9
        move = draw(st.sampled_from(["edge", "below", "share", "any", "tiny cost", "again", "undo"]), label="move")
        noise = {
            "edge": edge,
            "below": math.nextafter(edge, 0),
            "share": edge * draw(st.floats(0.5, 4), label="share"),
            "any": draw(st.floats(0.01, 1e6), label="z"),
            "tiny cost": 10 ** draw(st.floats(6, 60), label="log z"),
            "again": granted[-1].noise_multiplier if granted else edge,
            "undo": refused[-1].noise_multiplier if refused else 0.0,
        }[move]
        release = Release(rate, noise, draw(st.sampled_from([1, 1, 1, 2, 1000]), label="count"))
        before = filter.spent, filter.remaining
        if filter.request(release):
            granted.append(release)
        else:
            refused.append(release)
            assert (filter.spent, filter.remaining) == before
    return granted


@given(data=st.data(), budget=budgets)
def test_no_policy_gets_more_than_the_budget_in_zcdp(data: st.DataObject, budget: Budget) -> None:
    filter = ZcdpFilter(budget)
    granted = granted_to_a_policy(data.draw, filter, st.sampled_from([1.0, 0.3]))
    spent = sum((r.count / (2 * Fraction(r.noise_multiplier) ** 2) for r in granted), Fraction(0))
    assert mp.mpf(spent.numerator) / spent.denominator <= exact_rho(budget)
    assert Fraction(filter.spent) >= spent
    assert Fraction(filter.remaining) <= Fraction(filter.limit) - spent


@given(data=st.data(), budget=budgets)
def test_no_policy_gets_more_than_the_budget_in_gaussian_dp(data: st.DataObject, budget: Budget) -> None:
    filter = GdpFilter(budget)
    granted = granted_to_a_policy(data.draw, filter, st.just(1.0))
    spent = sum((r.count / Fraction(r.noise_multiplier) ** 2 for r in granted), Fraction(0))
    assert Fraction(filter.spent) >= spent
    if spent > Fraction(1, 10**9):  # below it delta is 0 in any number of digits
        mu = mp.sqrt(mp.mpf(spent.numerator) / spent.denominator)
        assert exact_delta(budget.epsilon, mu) <= mp.mpf(budget.delta)


@given(data=st.data(), order=st.sampled_from([4, 16, 40]), epsilon=st.floats(0.5, 10))
def test_no_policy_gets_more_than_the_budget_at_an_order(data: st.DataObject, order: int, epsilon: float) -> None:
    budget = Budget(epsilon, 1e-5 if order > 4 else 0.4)
    if renyi_limit(budget, order) <= 0:
        return
    filter = RenyiFilter(budget, order)
    granted = granted_to_a_policy(data.draw, filter, st.sampled_from([1.0, 0.25, 0.01, 1e-4]))
    spent = mp.fsum(r.count * exact_divergence(order, r.sample_rate, r.noise_multiplier) for r in granted)
    assert exact_epsilon(order, spent, budget.delta) <= mp.mpf(epsilon)
    assert mp.mpf(filter.spent) >= spent
    # And by an independent library, at the same order.
    accountant = RdpAccountant([order])
    for r in granted:
        if r.noise_multiplier < 1e3:  # its sums are not to be trusted beyond
            event = PoissonSampledDpEvent(r.sample_rate, GaussianDpEvent(r.noise_multiplier))
            accountant.compose(event, r.count)
    assert accountant.get_epsilon(budget.delta) <= epsilon * (1 + 1e-6)


def test_a_filter_that_adds_in_floats_would_be_found() -> None:
    """The power of the tests above: a float sum loses steps below half its last place, and grants them for ever."""
    filter = ZcdpFilter(Budget(4.0, 1e-8))
    first = Release(1.0, filter.smallest_noise_multiplier(1.0) * 1.01)
    small = Release(1.0, 1e9)  # 5e-19, below half an ulp of the sum
    naive = filter.cost(first)
    assert filter.request(first)
    for _ in range(1000):
        assert filter.request(small)
        naive += filter.cost(small)
    exact = 1 / (2 * Fraction(first.noise_multiplier) ** 2) + 1000 / (2 * Fraction(1e9) ** 2)
    assert Fraction(naive) < exact <= Fraction(filter.spent)


# --- exactly spent schedules ----------------------------------------------------------------------------------------


def test_equality_fits_and_the_strict_inequality_of_the_paper_would_lose_a_step() -> None:
    meter = MeteredFilter(Budget(1.0, 1e-5), "metered", 3 / 32, lambda _, z: 1 / (2 * z * z))
    assert [bool(meter.request(Release(1.0, 4.0))) for _ in range(4)] == [True, True, True, False]
    assert meter.remaining == 0
    # Algorithm 1 as printed asks for residual > cost.
    residual, printed = Fraction(3, 32), []
    for _ in range(4):
        printed.append(residual > Fraction(1, 32))
        residual -= Fraction(1, 32) if printed[-1] else 0
    assert printed == [True, True, False, False]


@pytest.mark.parametrize("steps", [1, 3, 150, 1_000])
@pytest.mark.parametrize("budget", [Budget(4.0, 1e-8), Budget(0.4, 1 / 600_000)])
def test_an_equal_schedule_that_spends_everything_is_admitted_up_to_a_hair(steps: int, budget: Budget) -> None:
    """With the textbook's z times 1 + 1e-13 all steps are; with the textbook's own rounded z perhaps one is not."""
    hair = 1 + 2 * SAFE
    cases = (
        (ZcdpFilter, math.sqrt(steps / (2 * rho_of(budget.epsilon, budget.delta))), hair),
        (GdpFilter, math.sqrt(steps) / mu_of(budget.epsilon, budget.delta), 1 + 1e-11),
    )
    for make, z, enough in cases:
        exact, raised = make(budget), make(budget)
        assert sum(bool(exact.request(Release(1.0, z))) for _ in range(steps)) >= steps - 1
        assert all(raised.request(Release(1.0, z * enough)) for _ in range(steps))


def test_calibrated_plans_are_admitted_whole() -> None:
    budget, full = Budget(3.0, 1e-6), PoissonSampling(100, 100)
    for accountant, filter in ((Zcdp(), ZcdpFilter(budget)), (Gaussian(), GdpFilter(budget))):
        plan = calibrate(budget, full, steps=200, privacy=growing_mu(3.0), clip=growing_mu(1.0), accountant=accountant)
        assert all(filter.request(release) for release in plan.ledger)
        assert filter.remaining < 2e-4 * filter.limit


@given(st.lists(st.tuples(st.integers(1, 400), st.floats(1.0, 1.3)), min_size=1, max_size=5), st.integers(2, 60))
def test_a_run_that_spends_its_filter_exactly_is_granted_again_in_one_go(
    parts: list[tuple[int, float]], last: int
) -> None:
    """Costs of repetitions were rounded up where they were asked for at once: 2 of 150 such runs were refused."""
    budget = Budget(1.0, 1e-5)
    one, again = ZcdpFilter(budget), ZcdpFilter(budget)
    taken: list[Release] = []
    for count, above in parts:
        z = one.smallest_noise_multiplier(1.0, 2 * count) * above
        taken += [Release(1.0, z)] * count
        assert all(one.request(release) for release in taken[-count:])
    taken += [Release(1.0, one.smallest_noise_multiplier(1.0, last))] * last
    assert all(one.request(release) for release in taken[-last:])
    assert all(again.request(release) for release in Ledger(taken).distinct())
    assert again.spent == one.spent


@pytest.mark.slow
@pytest.mark.parametrize("steps", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_very_many_tiny_steps_are_admitted_to_the_last_and_never_more(steps: int) -> None:
    budget = Budget(2.0, 1e-6)
    filter = ZcdpFilter(budget)
    z = filter.smallest_noise_multiplier(1.0, steps)
    rng = np.random.default_rng(0)
    taken, exact = 0, Fraction(0)
    release, each = Release(1.0, z), 1 / (2 * Fraction(z) ** 2)
    while filter.request(release):
        taken += 1
        exact += each
        if taken % 100 == 0:  # attempts in between that must change nothing
            assert not filter.request(Release(1.0, float(rng.uniform(0, 1e-3))))
    assert taken == steps
    assert Fraction(filter.limit) * (1 - Fraction(1, 10**12)) < exact <= Fraction(filter.limit)
    assert mp.mpf(exact.numerator) / exact.denominator < exact_rho(budget)


@given(noise=st.lists(st.floats(0.5, 1e3), min_size=1, max_size=20), seed=st.integers(0, 2**32))
def test_the_order_of_requests_does_not_matter(noise: list[float], seed: int) -> None:
    budget = Budget(50.0, 1e-5)
    shuffled = np.random.default_rng(seed).permutation(noise).tolist()
    for make in (ZcdpFilter, GdpFilter, lambda b: RenyiFilter(b, 4)):
        one, two = make(budget), make(budget)
        first = [bool(one.request(Release(1.0, z))) for z in noise]
        second = [bool(two.request(Release(1.0, z))) for z in shuffled]
        if all(first):  # what fits in one order fits in every order
            assert all(second)
            assert one.spent == two.spent


# --- several threads ------------------------------------------------------------------------------------------------


class SlowToCompare(Fraction):
    """A limit that lets every other thread run between a check and what follows it."""

    __slots__ = ()

    def __lt__(self, other: object) -> bool:
        time.sleep(2e-3)
        return super().__lt__(other)  # type: ignore[operator]


def overspent(lock: object) -> Fraction:
    """What four threads are granted of a limit of 3, at a price of 1, beyond the limit."""
    meter = MeteredFilter(Budget(1.0, 1e-5), "metered", 3.0, lambda _, __: 1.0)
    meter._limit, meter._lock = SlowToCompare(3), lock
    start, granted = Barrier(4), []

    def ask() -> None:
        start.wait()
        while answer := meter.request(Release(1.0, 1.0)):
            granted.append(answer.cost)

    threads = [Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(map(Fraction, granted), Fraction(-3))


def test_a_request_is_checked_and_written_down_under_one_lock() -> None:
    assert overspent(Lock()) == 0
    # The same without it: four threads find the last place free. So the test can fail.
    assert overspent(contextlib.nullcontext()) > 0


# --- what filters are for -------------------------------------------------------------------------------------------


def test_a_fixed_schedule_that_a_filter_grants_is_within_the_budget_by_the_certified_accountant() -> None:
    budget = Budget(1.0, 1e-5)
    for filter, rate in (
        (RenyiFilter(budget, 16), 0.01),
        (GdpFilter(budget), 1.0),
        (ZcdpFilter(budget), 1.0),
    ):
        z = filter.smallest_noise_multiplier(rate, 300)
        lower, upper = Pld().bracket(Ledger.of([z] * 300, rate), budget.delta)
        assert lower <= budget.epsilon
        if isinstance(filter, GdpFilter):  # exact: the whole budget is used
            assert upper > 0.999 * budget.epsilon


def test_gaussian_dp_grants_more_than_zcdp_and_sampling_more_than_none() -> None:
    budget = Budget(1.0, 1e-5)
    gdp, zcdp = GdpFilter(budget), ZcdpFilter(budget)
    assert gdp.smallest_noise_multiplier(1.0, 50) < 0.9 * zcdp.smallest_noise_multiplier(1.0, 50)
    renyi = RenyiFilter(budget, 14)
    assert renyi.smallest_noise_multiplier(0.01, 500) < 0.1 * zcdp.smallest_noise_multiplier(0.01, 500)


def test_gaussian_dp_refuses_sampled_releases_with_the_remedy() -> None:
    filter = GdpFilter(Budget(1.0, 1e-5))
    with pytest.raises(AccountingError, match=r"sample_rate=1 only, got sample_rate=0.1.*RenyiFilter"):
        filter.request(Release(0.1, 5.0))
    assert filter.spent == 0


@pytest.mark.parametrize("rate", [0.004, 0.05, 1.0])
def test_the_best_order_is_the_best(rate: float) -> None:
    budget = Budget(1.5, 1e-5)
    start = RenyiFilter(budget, 20).smallest_noise_multiplier(rate, 60)
    expected = Ledger.of(np.linspace(1.2, 0.9, 60) * start, rate)
    chosen = best_order(budget, expected)

    def share(order: int) -> float:
        filter = RenyiFilter(budget, order)
        return sum(filter.cost(release) for release in expected) / filter.limit

    possible = [order for order in ORDERS if renyi_limit(budget, order) > 0]
    # The choice rounds the noise onto a few values: as good as the best within a percent.
    assert share(chosen) <= 1.01 * min(share(order) for order in possible[::3])
    assert share(chosen) < share(possible[0])


def test_best_order_refuses_what_it_cannot_use() -> None:
    budget = Budget(1.0, 1e-5)
    for expected in (Ledger(), Ledger.of([1.0, 0.0], 0.1)):
        with pytest.raises(InvalidValue, match="Declare the schedule"):
            best_order(budget, expected)
    with pytest.raises(ImpossibleBudget, match="larger orders or a larger budget"):
        best_order(budget, Ledger.of([1.0], 0.1), orders=(2, 3))


@pytest.mark.parametrize(("order", "error"), [(1, InvalidValue), (0, InvalidValue), (2**15, InvalidValue)])
def test_orders_outside_their_range_are_refused(order: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="order must be"):
        RenyiFilter(Budget(50.0, 1e-5), order)  # type: ignore[arg-type]


def test_roundings_are_on_their_side() -> None:
    for x in (Fraction(1, 3), Fraction(2, 3), Fraction(10**400, 3 * 10**400), Fraction(1, 10**400)):
        assert Fraction(round_down(x)) <= x <= Fraction(round_up(x))
        assert round_up(x) <= math.nextafter(round_down(x), math.inf)
    assert round_up(Fraction(10**400)) == math.inf
    assert round_up(Fraction(1, 4)) == round_down(Fraction(1, 4)) == 0.25


def test_a_forked_process_does_not_spend_the_budget_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes were granted 14 releases each, of a budget for 14."""
    filter = RenyiFilter(Budget(1.0, 1e-4), order=16)
    assert filter.request(Release(0.1, 2.0))
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(InvalidValue, match="in the process that made it, got another one"):
        filter.request(Release(0.1, 2.0))


def test_a_filter_out_of_a_pickle_is_asked_where_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of processes pickles what it is given: each was granted the whole budget."""
    filter = RenyiFilter(Budget(1.0, 1e-4), order=16)
    assert pickle.loads(pickle.dumps(filter)).request(Release(0.1, 2.0))  # (in the process that made it: a copy)
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(InvalidValue, match="in the process that made it, got another one"):
        pickle.loads(pickle.dumps(filter)).request(Release(0.1, 2.0))
