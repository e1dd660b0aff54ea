"""The whole privacy curve that a ledger promises, against the errors of a distinguisher.

One (epsilon, delta) is a single point of what releases of known noise promise. The accountant's delta(e) for *every* e
is a claim too, and a test with few trials can contradict it where one with e^epsilon trials would be needed at the
promised point: 1 - FNR <= e^e FPR + delta(e) must hold for all e >= 0, and with the errors exchanged.

Turned into an epsilon: of all ledgers with the plan's noise times a factor, those are refuted whose noise is too large
for what was seen. The least noise refuted has an epsilon, and that is the bound (as Nasr et al. 2023 do with Gaussian
DP, here with the exact curve of composed, sampled releases instead of a Gaussian one). It is a bound within that
family: it says how much noise must be missing if what is wrong is the noise.
"""

import functools
import math
from dataclasses import dataclass, replace
from typing import final

from decrescendo.accounting import Allocated, Ledger, Pld, Truncated
from decrescendo.accounting.overflow import overflow_of
from decrescendo.accounting.pld.allocation import LEAST_NOISE
from decrescendo.audit.error_rates import ErrorRates
from decrescendo.errors import AccountingError, check_real

# Its upper ends are valid whatever the accuracy; a percent is nothing beside what is random here.
_ACCOUNTANT = Pld(rtol=1e-2)
_LEAST_NOISE = 1 / 12  # below, `Pld` refuses
_MOST_NOISE = 100.0
_POINTS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
_REFINEMENTS = 5


@functools.lru_cache(maxsize=4096)
def _delta(ledger: Ledger, group: int, epsilon: float) -> float:
    return Truncated(replace(_ACCOUNTANT, group=group)).delta(ledger, epsilon).value


@final
@dataclass(frozen=True, slots=True)
class PrivacyCurve:
    """delta(e) of ``ledger`` by `accounting.Pld`, an upper end at every e; of a ``group`` of records.

    >>> curve = PrivacyCurve(Ledger.of([1.0], 1.0))
    >>> curve.excess(*ErrorRates(0, 1000, 10, 1000).upper(confidence=0.95)) > 0
    True
    >>> curve.excess(*ErrorRates(310, 1000, 310, 1000).upper(confidence=0.95)) > 0
    False
    """

    ledger: Ledger
    group: int = 1

    def excess(self, positive: float, negative: float) -> float:
        """By how much error rates of (FPR, FNR) go beyond the curve, in delta; below or at 0 where they do not."""
        return max(margin - _delta(self.ledger, self.group, e) for e, margin in _points(positive, negative))

    def _beyond(self, positive: float, negative: float) -> bool:
        # The widest margins first: most often they decide.
        points = sorted(_points(positive, negative), key=lambda point: -point[1])
        return any(margin > 0 and margin > _delta(self.ledger, self.group, e) for e, margin in points)

    def epsilon(self, rates: ErrorRates, delta: float, confidence: float) -> float:
        """The epsilon of the least noise, in multiples of the ledger's, that is refuted with ``confidence``; or 0.

        Args:
            rates: over independent trials of a test fixed beforehand.
            delta: in (0, 1).
            confidence: in (0, 1).

        Edge cases: noise below a twelfth of C is not gone into, so that a training without any noise still gets a
        finite number.
        """
        check_real("delta", delta, above=0, below=1)
        positive, negative = rates.upper(confidence)
        if 1 - positive - negative <= 0:
            return 0.0

        def refuted(factor: float) -> bool:
            try:
                return self.scaled(factor)._beyond(positive, negative)
            except AccountingError:  # no epsilon: not refuted
                return False

        floor = LEAST_NOISE if self.ledger.is_allocated else _LEAST_NOISE
        least = floor / float(self.ledger.noise_multiplier.min()) * (1 + 1e-9)
        known, step = 1.0, 2.0
        if refuted(known):
            while known > least and refuted(max(known / step, least)):
                known = max(known / step, least)
            low = max(known / step, least)
        else:
            low = known
            while not refuted(known := known * step):
                low = known
                if known > _MOST_NOISE:
                    return 0.0
        for _ in range(_REFINEMENTS if low < known else 0):
            middle = math.sqrt(low * known)
            low, known = (low, middle) if refuted(middle) else (middle, known)
        return self.scaled(known)._least(delta)

    def _least(self, delta: float) -> float:
        """Its epsilon at ``delta``, a lower end: that of whole batches at a delta which is larger by how far truncated
        batches may differ from them, on either side."""
        if self.ledger.is_cut:
            spent = Truncated(_ACCOUNTANT).epsilon(self.ledger, delta).value
            delta = min(delta + 2 * overflow_of(self.ledger) * math.exp(min(spent, 700.0)), 0.5)
        if self.ledger.is_allocated:
            return Allocated().least_epsilon(self.ledger.cut(1, None), delta)
        return replace(_ACCOUNTANT, group=self.group).bracket(self.ledger.cut(1, None), delta)[0]

    def scaled(self, factor: float) -> "PrivacyCurve":
        """The curve of ``factor`` times the noise."""
        return PrivacyCurve(self.ledger.with_noise(lambda z: z * factor), self.group)


def _points(positive: float, negative: float) -> list[tuple[float, float]]:
    """(e, delta that error rates ask for at e), in both directions; every one must be within the curve."""
    found: list[tuple[float, float]] = []
    for wrong, missed in ((positive, negative), (negative, positive)):
        found += [(e, 1 - missed - math.exp(e) * wrong) for e in _POINTS]
    return [point for point in found if point[1] > 0] or found[:1]
