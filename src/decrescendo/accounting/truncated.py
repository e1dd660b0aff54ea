"""`Truncated`: what it costs to leave rows out of batches that are too large.

A batch is drawn by Poisson sampling; where more than b rows are drawn, a rule that looks at nothing but which they are
leaves all but b of them out. Let one of two neighbours have n records and the other one more, x. Draw the n records'
rows S for both. If |S| < b, the two releases are a Poisson-sampled step with x and one without. If |S| >= b and x is
not drawn, they have one law. Only if |S| >= b and x is drawn may x have pushed another row out, which the accountant
knows nothing about: with probability p_t P[binomial(n, p_t) >= b], whatever was released before. Let tau be the sum of
that over steps. Without these events the run with x is one that the accountant judges; with them it is tau away from
that one in total variation:

    P(run with x in A)  <=  P(judged in A) + tau  <=  exp(e) P(run without x in A) + delta(e) + tau,
    P(run without x in A)  <=  exp(e) P(judged in A) + delta(e)  <=  exp(e) P(run with x in A) + delta(e) + exp(e) tau.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import binom

from decrescendo.accounting.budget import Bound, Kind
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.pld import Pld
from decrescendo.accounting.protocol import Accountant, estimate
from decrescendo.errors import InvalidValue, check_instance, check_integer, check_real

_SLACK = 1 + 1e-8  # what a binomial tail may be off by, relatively, and its sum
_ATTEMPTS = 30


@dataclass(frozen=True, slots=True)
class Truncated(Accountant):
    """Any accountant, for Poisson batches that are cut to at most ``max_batch_size`` rows.

    delta(e) + exp(e) sum_t p_t P[binomial(N, p_t) >= b] in the place of delta(e); the module has the proof.

    Args:
        dataset_size: N >= 1: the most records that the smaller of two neighbouring data sets has.
        max_batch_size: b >= 1. Rows over it are left out by a rule that looks at which rows were drawn and at nothing
            in them (an even choice, the first b); the noisy sum is divided by the expected batch size as ever.
        judge: the accountant of the batches that are not cut.

    Guarantee:
        what it says is a bound (or an estimate) if ``judge`` says one of Poisson batches.

    Edge cases:
        a cap that no batch can exceed (b > N) costs nothing; where the cap alone costs delta or more, epsilon is
        infinite: ask `smallest_cap`.

    Raises:
        InvalidValue: a number outside its range.

    >>> run = Ledger.of([1.0] * 500, sample_rate=250 / 60_000)
    >>> for cap in (300, 340, 60_001):
    ...     print(Truncated(60_000, cap).epsilon(run, delta=1e-6).shown(3))
    inf
    0.659
    0.65
    """

    dataset_size: int
    max_batch_size: int
    judge: Accountant = field(default_factory=Pld)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dataset_size", check_integer("dataset_size", self.dataset_size, at_least=1))
        cap = check_integer("max_batch_size", self.max_batch_size, at_least=1)
        object.__setattr__(self, "max_batch_size", cap)
        check_instance("judge", self.judge, Accountant, "Try accounting.Pld()")
        if isinstance(self.judge, Truncated):
            raise InvalidValue(
                "judge must be an accountant of batches that are not cut, got another Truncated"
            )

    def overflow(self, ledger: Ledger) -> float:
        """tau: the probability that a record is ever drawn into a batch that is full without it; an upper bound."""
        check_instance("ledger", ledger, Ledger)
        rate, place = np.unique(ledger.sample_rate, return_inverse=True)
        full = binom.sf(self.max_batch_size - 1, self.dataset_size, rate)
        return min(1.0, float(ledger.count @ (rate * full)[place]) * _SLACK)

    def delta(self, ledger: Ledger, epsilon: float) -> Bound:
        """The judge's delta and the cap's."""
        found = self.judge.delta(ledger, epsilon)
        price = self.overflow(ledger) * math.exp(min(epsilon, 700.0))
        total = min(1.0, math.nextafter(found.value + price, 2.0)) if price else found.value
        return Bound(total, _kind(found, price))

    def epsilon(self, ledger: Ledger, delta: float) -> Bound:
        """The judge's epsilon at what the cap leaves of ``delta``."""
        first = self.judge.epsilon(ledger, delta)
        overflow = self.overflow(ledger)
        if not overflow or not len(ledger):
            return first
        # The cap costs exp(epsilon) tau for any epsilon that the answer is not above.
        guess = first.value
        for _ in range(_ATTEMPTS):
            left = delta - _SLACK * overflow * math.exp(min(guess, 700.0))
            if left <= 0:
                return Bound(math.inf, _kind(first, overflow))
            found = self.judge.epsilon(ledger, left).value
            if found <= guess:
                return Bound(found, _kind(first, overflow))
            guess = found + 0.05 * (found - guess)
        return Bound(math.inf, _kind(first, overflow))

    def estimate(self, ledger: Ledger, delta: float) -> float:
        """Epsilon to search with."""
        first = estimate(self.judge, ledger, delta)
        left = delta - self.overflow(ledger) * math.exp(min(first, 700.0))
        return first if left == delta else estimate(self.judge, ledger, left) if left > 0 else math.inf


def _kind(found: Bound, price: float) -> Kind:
    """A bound, if what it adds to is one or exact."""
    return "upper" if price and found.kind == "exact" else found.kind


def smallest_cap(
    ledger: Ledger, dataset_size: int, epsilon: float, delta: float, *, share: float = 0.01
) -> int:
    """The least ``max_batch_size`` that costs at most ``share`` of ``delta`` at ``epsilon``.

    Args:
        ledger: the planned releases.
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
            (low, middle) if Truncated(dataset_size, middle).overflow(ledger) <= limit else (middle, high)
        )
    return high
