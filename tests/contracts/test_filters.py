"""Laws that every filter keeps (accounting/filters/protocol.py)."""

import copy
import math
import pickle
import sys
from collections.abc import Callable, Iterator
from itertools import permutations
from threading import Barrier, Thread

import pytest

from decrescendo.accounting import Filter, GdpFilter, RenyiFilter, ZcdpFilter
from decrescendo.accounting.budget import Budget
from decrescendo.accounting.release import Release
from decrescendo.errors import DecrescendoError, InvalidType, InvalidValue

BUDGET = Budget(2.0, 1e-6)
Make = Callable[[Budget], Filter]

# Each with a sample rate within its conditions.
CASES = [
    pytest.param(ZcdpFilter, 1.0, id="Zcdp"),
    pytest.param(ZcdpFilter, 0.1, id="Zcdp-sampled"),
    pytest.param(GdpFilter, 1.0, id="Gdp"),
    pytest.param(lambda budget: RenyiFilter(budget, 16), 1.0, id="Renyi"),
    pytest.param(lambda budget: RenyiFilter(budget, 16), 0.1, id="Renyi-sampled"),
    pytest.param(lambda budget: RenyiFilter(budget, 64), 1e-4, id="Renyi-64"),
]


def state(filter: Filter) -> tuple[object, ...]:
    return filter.spent, filter.remaining, filter.limit, filter.guarantee, repr(filter)


def granted_to_threads(filter: Filter, release: Release, threads: int = 4) -> int:
    """How many requests for ``release`` are granted to all threads together, each asking until it is refused."""
    counts, start = [0] * threads, Barrier(threads)

    def ask(me: int) -> None:
        start.wait()
        while filter.request(release):
            counts[me] += 1

    workers = [Thread(target=ask, args=(me,)) for me in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts)


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads are switched every microsecond, not every five milliseconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize(("make", "rate"), CASES)
class TestLaws:
    @pytest.mark.usefixtures("hasty")
    def test_threads_are_granted_together_what_fits(self, make: Make, rate: float) -> None:
        steps = 200
        z = make(BUDGET).smallest_noise_multiplier(rate, steps)
        for _ in range(10):
            filter = make(BUDGET)
            assert granted_to_threads(filter, Release(rate, z)) == steps
            assert filter.spent <= filter.limit

    def test_a_copy_has_spent_as_much_and_spends_on_its_own(self, make: Make, rate: float) -> None:
        filter = make(BUDGET)
        filter.request(Release(rate, 9.0))
        for other in (copy.deepcopy(filter), pickle.loads(pickle.dumps(filter))):
            assert state(other) == state(filter)
            z = other.smallest_noise_multiplier(rate, 40)
            assert granted_to_threads(other, Release(rate, z)) == 40
            assert other.spent > filter.spent

    def test_it_is_a_filter_with_a_name_and_a_guarantee_that_never_moves(self, make: Make, rate: float) -> None:
        filter = make(BUDGET)
        assert isinstance(filter, Filter)
        before = filter.guarantee
        assert (before.epsilon, before.delta, before.unit) == (2.0, 1e-6, BUDGET.unit)
        assert (before.kind, before.accountant, before.epsilon_lower) == ("upper", filter.name, None)
        assert filter.request(Release(rate, 100.0))
        assert filter.guarantee == before
        assert filter.budget == BUDGET

    def test_a_fresh_filter_has_spent_nothing(self, make: Make, rate: float) -> None:
        filter = make(BUDGET)
        assert filter.spent == 0
        assert filter.remaining == filter.limit > 0

    def test_what_fits_exactly_is_granted_and_nothing_after_it(self, make: Make, rate: float) -> None:
        for steps in (1, 2, 3, 7, 100):
            filter = make(BUDGET)
            z = filter.smallest_noise_multiplier(rate, steps)
            assert all(filter.request(Release(rate, z)) for _ in range(steps))
            assert not filter.request(Release(rate, z))
            assert filter.remaining < 1e-11 * filter.limit

    def test_the_smallest_noise_multiplier_is_the_smallest(self, make: Make, rate: float) -> None:
        filter = make(BUDGET)
        filter.request(Release(rate, 9.0, count=2))
        z = filter.smallest_noise_multiplier(rate)
        assert not filter.request(Release(rate, z * (1 - 1e-12)))
        assert filter.request(Release(rate, z))

    def test_asking_for_the_smallest_spends_nothing(self, make: Make, rate: float) -> None:
        filter = make(BUDGET)
        before = state(filter)
        filter.smallest_noise_multiplier(rate, 5)
        filter.cost(Release(rate, 3.0))
        assert state(filter) == before

    def test_a_refusal_leaves_no_trace(self, make: Make, rate: float) -> None:
        filter = make(BUDGET)
        filter.request(Release(rate, 9.0))
        before = state(filter)
        answer = filter.request(Release(rate, 1e-3))
        assert not answer
        assert answer.remaining == filter.remaining
        assert answer.cost > answer.remaining
        assert "costs" in str(answer)
        assert state(filter) == before

    def test_no_noise_is_refused(self, make: Make, rate: float) -> None:
        filter = make(BUDGET)
        assert filter.cost(Release(rate, 0.0)) == math.inf
        assert not filter.request(Release(rate, 0.0))

    def test_tiny_and_huge_noise_is_answered(self, make: Make, rate: float) -> None:
        filter = make(BUDGET)
        assert not filter.request(Release(rate, 5e-324))
        answer = filter.request(Release(rate, 1.7e308, count=2**53))
        assert answer
        assert answer.cost > 0  # never free: rounding is upwards

    def test_more_noise_never_costs_more(self, make: Make, rate: float) -> None:
        filter = make(BUDGET)
        costs = [filter.cost(Release(rate, 0.05 * 1.3**k)) for k in range(60)]
        assert costs == sorted(costs, reverse=True)
        assert costs[0] > filter.limit

    def test_a_count_costs_what_its_releases_cost(self, make: Make, rate: float) -> None:
        filter = make(BUDGET)
        assert filter.cost(Release(rate, 5.0, 3)) == pytest.approx(3 * filter.cost(Release(rate, 5.0)), rel=1e-15)

    def test_the_order_of_requests_does_not_matter(self, make: Make, rate: float) -> None:
        releases = [Release(rate, z) for z in (5.0, 7.5, 11.3, 40.0)]
        ends = set()
        for order in permutations(releases):
            filter = make(BUDGET)
            assert all(filter.request(release) for release in order)
            ends.add((filter.spent, filter.remaining))
        assert len(ends) == 1

    def test_a_larger_budget_grants_more(self, make: Make, rate: float) -> None:
        assert make(Budget(4.0, 1e-6)).limit > make(BUDGET).limit
        assert make(Budget(2.0, 1e-5)).limit > make(BUDGET).limit

    @pytest.mark.parametrize("wrong", [None, 1.0, "release"])
    def test_only_releases_can_be_asked_for(self, make: Make, rate: float, wrong: object) -> None:
        filter = make(BUDGET)
        with pytest.raises((InvalidType, TypeError)):
            filter.request(wrong)  # type: ignore[arg-type]
        assert filter.spent == 0

    def test_ranges_are_checked(self, make: Make, rate: float) -> None:
        filter = make(BUDGET)
        for given, words in (((0.0, 1), "sample_rate"), ((1.1, 1), "sample_rate"), ((rate, 0), "steps")):
            with pytest.raises(InvalidValue, match=words) as caught:
                filter.smallest_noise_multiplier(*given)
            assert isinstance(caught.value, DecrescendoError)
