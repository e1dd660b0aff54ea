"""`Truncated`: privacy cost of truncated batches, and which accountant a ledger needs.

A batch is drawn by Poisson sampling; where more than b rows are drawn, a rule that looks at nothing but which they are
leaves all but b of them out. Let one of two neighbours have n records and the other one more, x. At a step t of sample
rate p_t a batch is full without x with probability tau_t = P[binomial(n, p_t) >= b], whatever was released before, and
only then may x take the place of another record. `pld.overfull` proves what dominates a step: a public coin of
probability tau_t between Gaussian steps of noise z and of noise z/2, both sampled at p_t. `Pld` composes that pair.

*Any other accountant.* In either direction, at any y >= 0, the curve of a mechanism sampled at rate p lies between
max(0, 1 - y) and that plus p: its likelihood ratio is 1 - p + p l with E[l] = 1. So the two cases of the coin differ by
at most p. Exchanging steps one after the other, each weighted by a probability (of the larger of the two laws), costs

    delta(e) + sum_t p_t tau_t        in the place of delta(e), in both directions.

*Once an epoch.* Where each record is in one of the t steps of an epoch, by a draw of its own, x meets a full batch with
probability tau = P[binomial(n, 1/t) >= b]. The run that is judged then is the one in which x is added to the sum of its
step whether that is full or not: the sums without x are the same in both, and independent of where x is, which is all
that `pld.allocation` needs. The run with x is tau away from it in total variation, so that

    P(run with x in A)  <=  P(judged in A) + tau  <=  exp(e) P(run without x in A) + delta(e) + tau,
    P(run without x in A)  <=  exp(e) P(judged in A) + delta(e)  <=  exp(e) P(run with x in A) + delta(e) + exp(e) tau.

What holds at an epsilon holds at every larger one: delta(e) + exp(e) tau is taken where it is least.
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache, singledispatch

from decrescendo.accounting.allocated import Allocated
from decrescendo.accounting.budget import Bound, Budget, Guarantee, Kind, check_one_example
from decrescendo.accounting.gaussian import check_delta
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.overflow import left_of, overflow_of, price_of
from decrescendo.accounting.pld import Pld
from decrescendo.accounting.pld.accountant import truncated_delta, truncated_epsilon, truncated_estimate
from decrescendo.accounting.pld.overfull import LEAST_NOISE
from decrescendo.accounting.protocol import Accountant, estimate
from decrescendo.accounting.selection import Selection
from decrescendo.errors import AccountingError, check_instance, check_real

_ATTEMPTS, _TRIED = 30, 16
_NEAR = 1e-3  # of delta: so much may be paid too much for the cap


@dataclass(frozen=True, slots=True)
class Truncated(Accountant):
    """Any accountant, for truncated batches: those of which the ledger says that they have a largest size
    (`Ledger.cut`).

    By `Pld` the composition of what dominates a truncated step; by any other accountant of Poisson batches delta(e) +
    sum_t p_t P[binomial(N, p_t) >= b] in the place of delta(e); the module has the proofs.

    Args:
        judge: the accountant of the batches that are not cut; in the place of `Pld`, `Allocated` for a ledger of
            records that are each in one step of an epoch.

    Guarantee:
        for adding or removing one record, what it says is a bound (or an estimate) if ``judge`` says one of Poisson
        batches; rows over the cap are left out by a rule that looks at which rows were drawn and at nothing in them (an
        even choice, the first b), and the noisy sum is divided by the expected batch size as ever.

    Edge cases:
        where no batch is cut it is ``judge``, name and all; so it is for a cap that no batch can exceed (b > N). By
        `Pld`, noise multipliers below 1/6 are accounted as by the others; where that costs delta or more, epsilon is
        infinite.

    Raises:
        AccountingError: (when asked) a search of several trials with truncated batches, which no proof here covers.

    >>> run = Ledger.of([1.0] * 500, sample_rate=250 / 60_000)
    >>> for cap in (300, 340, 60_001):
    ...     print(Truncated().epsilon(run.cut(60_000, cap), delta=1e-6).shown(3))
    2.71
    0.65
    0.65
    """

    judge: Accountant = field(default_factory=Pld)

    def __post_init__(self) -> None:
        check_instance("judge", self.judge, Accountant, "Try accounting.Pld()")

    @property
    def name(self) -> str:
        """The wrapped accountant's name, in brackets."""
        return f"Truncated({self.judge.name})"

    def delta(self, ledger: Ledger, epsilon: float) -> Bound:
        """Delta at ``epsilon``; never more than at a smaller epsilon."""
        judge, uncut = self._accounted(ledger)
        if not ledger.is_cut:
            return judge.delta(uncut, epsilon)
        near = check_real("epsilon", epsilon, at_least=0)
        if (pld := _composer(judge)) is not None and _composes(ledger):
            return Bound(min(1.0, truncated_delta(pld, ledger, near)), "upper")
        found = _paid(judge, ledger, near)
        if ledger.is_allocated:
            known = [value for at, value in _paid_somewhere(judge, ledger) if at <= near]
            found = Bound(min([found.value, *known]), found.kind)
        return found

    def epsilon(self, ledger: Ledger, delta: float) -> Bound:
        """Epsilon at ``delta``: by composition, or the wrapped accountant's at the ``delta`` left by truncation."""
        judge, uncut = self._accounted(ledger)
        if not ledger.is_cut:
            return judge.epsilon(uncut, delta)
        if (pld := _composer(judge)) is not None and _composes(ledger):
            return Bound(truncated_epsilon(pld, ledger, check_delta(delta)), "upper")
        # Of epochs the cap costs exp(epsilon) tau, for any epsilon that the answer is not above.
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
        """The wrapped accountant's own certificate if no batch is truncated."""
        judge, _ = self._accounted(ledger)
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
        judge, uncut = self._accounted(ledger)
        if ledger.is_cut and _composer(judge) is not None and _composes(ledger):
            return truncated_estimate(ledger, check_delta(delta))
        found = estimate(judge, uncut, delta)
        for _ in range(_ATTEMPTS if ledger.is_cut else 0):
            left, before = left_of(ledger, delta, found), found
            if left <= 0:
                return math.inf
            found = estimate(judge, uncut, left)
            if found <= before * (1 + _NEAR):
                break
        return found

    def _accounted(self, ledger: Ledger) -> tuple[Accountant, Ledger]:
        """Who judges it, and what: the ledger of batches that are not cut."""
        check_instance("ledger", ledger, Ledger)
        judge = self.judge
        if ledger.is_allocated:
            judge = of_epochs(judge)
        if not ledger.is_cut:
            return judge, ledger
        if getattr(self.judge, "group", 1) > 1:
            raise AccountingError(
                f"people with several examples must have batches that are not truncated, got {ledger}: there is no "
                "theorem here for the rows that they displace. Leave max_batch_size out"
            )
        if isinstance(self.judge, Selection):
            raise AccountingError(
                f"{self.name} accounts batches of any size only: there is no theorem here for searches of truncated "
                f"trials, got {ledger}. Leave max_batch_size out"
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
            f"people with several examples must have Poisson batches, got {judge.name} for a ledger of epochs: there "
            "is no theorem here for several records in one epoch. Take PoissonSampling"
        )
    return Allocated()


def spent_on_the_cap(ledger: Ledger, guarantee: Guarantee) -> float:
    """What of the guarantee's delta pays for the cap, at most: what `left_of` does not leave, or, where it leaves
    nothing, delta less the lower end of that of batches that are not cut.

    >>> run = Ledger.of([1.0] * 500, sample_rate=250 / 60_000).cut(60_000, 300)
    >>> spent = spent_on_the_cap(run, Truncated().certify(run, Budget(3.0, 1e-6)))
    >>> round(1e6 * spent, 3), overflow_of(run) > 1e-4
    (1.0, True)
    """
    delta, epsilon = guarantee.delta, guarantee.epsilon
    if (left := left_of(ledger, delta, epsilon)) > 0 or ledger.is_allocated or math.isinf(epsilon):
        return delta - max(left, 0.0)
    return delta - min(delta, Pld().delta_bracket(ledger.cut(1, None), epsilon)[0])


def least_epsilon(ledger: Ledger, guarantee: Guarantee) -> float:
    """The lower end, by `Pld`, of batches that are not cut at the delta of ``guarantee``; by `Allocated`, at what the
    cap leaves of delta if ``guarantee`` is right.

    A guarantee below it is wrong by `Truncated`; where the cap costs all of an epoch's delta it is infinite.
    """
    uncut = ledger.cut(1, None)
    if not ledger.is_allocated:
        return Pld().bracket(uncut, guarantee.delta)[0]
    left = left_of(ledger, guarantee.delta, guarantee.epsilon)
    return Allocated().least_epsilon(uncut, left) if left > 0 else math.inf


def composes(judge: Accountant, ledger: Ledger) -> bool:
    """Whether ``judge`` (or the one that it wraps) composes truncated steps of ``ledger`` themselves, so that no cap
    costs more than any delta.

    >>> composes(Truncated(), Ledger.of([1.0], 0.5)), composes(Truncated(), Ledger.of([0.1], 0.5))
    (True, False)
    """
    own = judge.judge if isinstance(judge, Truncated) else judge
    return _composer(own) is not None and _composes(ledger)


@singledispatch
def _composer(judge: Accountant) -> Pld | None:
    """Who composes truncated steps where ``judge`` is asked: `Pld` itself, of one record."""
    del judge
    return None


@_composer.register
def _of_one_record(judge: Pld) -> Pld | None:
    return judge if judge.group == 1 else None


def _composes(ledger: Ledger) -> bool:
    noise = ledger.noise_multiplier
    return not ledger.is_allocated and not ((noise > 0) & (noise < LEAST_NOISE)).any()


def _paid(judge: Accountant, ledger: Ledger, epsilon: float) -> Bound:
    """The judge's delta and the cap's."""
    found = judge.delta(ledger.cut(1, None), epsilon)
    price = price_of(ledger, epsilon)
    return Bound(min(1.0, math.nextafter(found.value + price, 2.0)), _kind(found.kind))


@lru_cache(maxsize=32)
def _paid_somewhere(judge: Accountant, ledger: Ledger) -> list[tuple[float, float]]:
    """(epsilon, delta) around the least of delta(e) + exp(e) tau, by sections of where it may be: each is a bound."""
    share = (math.sqrt(5) - 1) / 2
    low, high = 0.0, max(1e-3, -math.log(max(overflow_of(ledger), 1e-300)))

    def point(at: float) -> tuple[float, float]:
        return at, _paid(judge, ledger, at).value

    found = [point(0.0)]
    left, right = point(high - share * high), point(share * high)
    for _ in range(_TRIED):
        found += [left, right]
        if left[1] <= right[1]:
            high, right = right[0], left
            left = point(high - share * (high - low))
        else:
            low, left = left[0], right
            right = point(low + share * (high - low))
    return found


def _kind(found: Kind) -> Kind:
    """With the price, a bound if it was one or exact."""
    return "upper" if found == "exact" else found
