"""`Truncated`: what it costs to leave rows out of batches that are too large; and by whom each ledger is judged.

A batch is drawn by Poisson sampling; where more than b rows are drawn, a rule that looks at nothing but which they are
leaves all but b of them out. Let one of two neighbours have n records and the other one more, x. Draw the n records'
rows S for both. If |S| < b, the two releases are a Poisson-sampled step with x and one without. If |S| >= b and x is
not drawn, they have one law. Only if |S| >= b and x is drawn may x have pushed another row out, which the accountant
knows nothing about: with probability p_t P[binomial(n, p_t) >= b], whatever was released before. Let tau be the sum of
that over steps. Without these events the run with x is one that the accountant judges; with them it is tau away from
that one in total variation:

    P(run with x in A)  <=  P(judged in A) + tau  <=  exp(e) P(run without x in A) + delta(e) + tau,
    P(run without x in A)  <=  exp(e) P(judged in A) + delta(e)  <=  exp(e) P(run with x in A) + delta(e) + exp(e) tau.

Where each record is in one of the t steps of an epoch, by a draw of its own, x meets a full batch in at most one of
them, with probability P[binomial(n, 1/t) >= b]: the same sum, of p_t = 1/t over the t steps. The run that is judged
then is the one in which x is added to the sum of its step whether that is full or not: the sums without x are the same
in both, and independent of where x is, which is all that `pld.allocation` needs.
"""

import math
from dataclasses import dataclass, field
from functools import singledispatch

from decrescendo.accounting.allocated import Allocated
from decrescendo.accounting.budget import Bound, Budget, Guarantee, Kind, check_one_example
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.pld import Pld
from decrescendo.accounting.protocol import Accountant, estimate
from decrescendo.accounting.selection import Selection
from decrescendo.errors import AccountingError, check_instance, check_integer, check_real

_SLACK = 1 + 1e-8  # what a binomial tail may be off by, relatively, and its sum
_ATTEMPTS = 30
_NEAR = 1e-3  # of delta: so much may be paid too much for the cap


@dataclass(frozen=True, slots=True)
class Truncated(Accountant):
    """Any accountant, for batches of which the ledger says that they are cut to a largest size (`Ledger.cut`).

    delta(e) + exp(e) sum_t p_t P[binomial(N, p_t) >= b] in the place of delta(e); the module has the proof.

    Args:
        judge: the accountant of the batches that are not cut; in the place of `Pld`, `Allocated` for a ledger of
            records that are each in one step of an epoch.

    Guarantee:
        what it says is a bound (or an estimate) if ``judge`` says one of Poisson batches; rows over the cap are left
        out by a rule that looks at which rows were drawn and at nothing in them (an even choice, the first b), and the
        noisy sum is divided by the expected batch size as ever.

    Edge cases:
        where no batch is cut it is ``judge``, name and all; so it is for a cap that no batch can exceed (b > N); where
        the cap alone costs delta or more, epsilon is infinite: ask `smallest_cap`.

    Raises:
        AccountingError: (when asked) a search of several trials whose batches are cut, which no proof here covers.

    >>> run = Ledger.of([1.0] * 500, sample_rate=250 / 60_000)
    >>> for cap in (300, 340, 60_001):
    ...     print(Truncated().epsilon(run.cut(60_000, cap), delta=1e-6).shown(3))
    inf
    0.659
    0.65
    """

    judge: Accountant = field(default_factory=Pld)

    def __post_init__(self) -> None:
        check_instance("judge", self.judge, Accountant, "Try accounting.Pld()")

    @property
    def name(self) -> str:
        """The judge's, in brackets."""
        return f"Truncated({self.judge.name})"

    def delta(self, ledger: Ledger, epsilon: float) -> Bound:
        """The judge's delta and the cap's."""
        judge, uncut = self._judged(ledger)
        found = judge.delta(uncut, epsilon)
        price = _price(ledger, epsilon)
        if not price:
            return found
        return Bound(min(1.0, math.nextafter(found.value + price, 2.0)), _kind(found.kind))

    def epsilon(self, ledger: Ledger, delta: float) -> Bound:
        """The judge's epsilon at what the cap leaves of ``delta``."""
        judge, uncut = self._judged(ledger)
        if not ledger.is_cut:
            return judge.epsilon(uncut, delta)
        # The cap costs exp(epsilon) tau for any epsilon that the answer is not above.
        guess = self.estimate(ledger, delta)
        if left_of(ledger, delta, guess) <= 0:  # the estimate may be too large; this is not
            guess = judge.epsilon(uncut, delta).value
        for _ in range(_ATTEMPTS):
            left = left_of(ledger, delta, guess)
            if left <= 0:
                break
            found = judge.epsilon(uncut, left)
            if found.value > guess:
                guess = found.value + 0.05 * (found.value - guess)
            elif left_of(ledger, delta, found.value) - left <= _NEAR * delta:
                return Bound(found.value, _kind(found.kind))
            else:
                guess = found.value
        return Bound(math.inf, "upper")

    def certify(self, ledger: Ledger, budget: Budget) -> Guarantee:
        """The judge's own certificate where no batch is cut."""
        judge, _ = self._judged(ledger)
        if not ledger.is_cut:
            return judge.certify(ledger, budget)
        name = Truncated(judge).name
        check_one_example(budget, name)
        bound = self.epsilon(ledger, budget.delta)
        return Guarantee(bound.value, budget.delta, budget.unit, name, bound.kind)

    def protecting(self, budget: Budget) -> "Truncated":
        """The judge for whom ``budget`` protects."""
        return Truncated(self.judge.protecting(budget))

    def estimate(self, ledger: Ledger, delta: float) -> float:
        """Epsilon to search with."""
        judge, uncut = self._judged(ledger)
        found = estimate(judge, uncut, delta)
        for _ in range(_ATTEMPTS if ledger.is_cut else 0):
            left, before = left_of(ledger, delta, found), found
            if left <= 0:
                return math.inf
            found = estimate(judge, uncut, left)
            if found <= before * (1 + _NEAR):
                break
        return found

    def _judged(self, ledger: Ledger) -> tuple[Accountant, Ledger]:
        """Who judges it, and what: the ledger of batches that are not cut."""
        check_instance("ledger", ledger, Ledger)
        judge = self.judge
        if ledger.is_allocated:
            judge = of_epochs(judge)
        if not ledger.is_cut:
            return judge, ledger
        if getattr(self.judge, "group", 1) > 1:
            raise AccountingError(
                f"people with several examples must have batches that are not cut, got {ledger}: what one of them "
                "pushes out is not proven here. Leave max_batch_size out"
            )
        if isinstance(self.judge, Selection):
            raise AccountingError(
                f"{self.name} accounts batches of any size only: what the cut of each trial costs the search is not "
                f"proven here, got {ledger}. Leave max_batch_size out"
            )
        return judge, ledger.cut(1, None)


@singledispatch
def of_epochs(judge: Accountant) -> Accountant:
    """Who judges records that are each in one step of an epoch where ``judge`` is asked: `Allocated` for `Pld`.

    >>> of_epochs(Pld()).name
    'Allocated'
    """
    return judge


@of_epochs.register
def _of_pld(judge: Pld) -> Accountant:
    if judge.group > 1:
        raise AccountingError(
            f"people with several examples must have Poisson batches, got {judge.name} for a ledger of epochs: what "
            "several records of one epoch show together is not proven here. Take PoissonSampling"
        )
    return Allocated()


def overflow_of(ledger: Ledger) -> float:
    """tau: the probability that a record is ever drawn into a batch that is full without it; an upper bound."""
    check_instance("ledger", ledger, Ledger)
    return min(1.0, float(ledger.count @ ledger.overflow) * _SLACK)


def left_of(ledger: Ledger, delta: float, epsilon: float) -> float:
    """What the cap leaves of ``delta`` at ``epsilon``: delta - exp(epsilon) tau, below or at 0 where it leaves nothing.

    A promise of (epsilon, delta) is right by `Truncated` if the batches that are not cut keep (epsilon, what is left).

    >>> left_of(Ledger.of([1.0], 0.5), 1e-5, 2.0)
    1e-05
    """
    return delta - _price(ledger, epsilon) * _SLACK


def least_epsilon(ledger: Ledger, guarantee: Guarantee) -> float:
    """The lower end, by `Pld` or `Allocated`, of batches that are not cut, at what the cap leaves of delta if
    ``guarantee`` is right.

    A guarantee below it is wrong by `Truncated`; where the cap costs all of delta it is infinite.
    """
    left = left_of(ledger, guarantee.delta, guarantee.epsilon)
    if left <= 0:
        return math.inf
    uncut = ledger.cut(1, None)
    return Allocated().least_epsilon(uncut, left) if ledger.is_allocated else Pld().bracket(uncut, left)[0]


def _price(ledger: Ledger, epsilon: float) -> float:
    return overflow_of(ledger) * math.exp(min(epsilon, 700.0))


def _kind(found: Kind) -> Kind:
    """With the price, a bound if it was one or exact."""
    return "upper" if found == "exact" else found


def smallest_cap(
    ledger: Ledger, dataset_size: int, epsilon: float, delta: float, *, share: float = 0.01
) -> int:
    """The least ``max_batch_size`` that costs at most ``share`` of ``delta`` at ``epsilon``.

    Args:
        ledger: the planned releases; of their noise nothing is asked.
        dataset_size: N.
        epsilon, delta: the budget, epsilon >= 0.
        share: in (0, 1).

    >>> smallest_cap(Ledger.of([1.0] * 500, sample_rate=250 / 60_000), 60_000, epsilon=1.2, delta=1e-6)
    350
    """
    price = check_real("share", share, above=0, below=1) * check_real("delta", delta, above=0, below=1)
    limit = price * math.exp(-min(check_real("epsilon", epsilon, at_least=0), 700.0))
    low, high = 0, check_integer("dataset_size", dataset_size, at_least=1) + 1  # the latter costs nothing
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if overflow_of(ledger.cut(dataset_size, middle)) <= limit else (middle, high)
        )
    return high
