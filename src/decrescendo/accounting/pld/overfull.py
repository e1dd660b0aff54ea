"""One step of truncated batches: a record that is drawn into a full batch takes the place of another record.

Of two neighbouring data sets let one have the records D and the other one x besides. Draw the rows S of D for both, and
let tau be the probability that |S| >= b, the largest batch size. The draw of S is the same in both, so it may be shown.

* |S| < b: the sum without x, and the sum with x added if it is drawn. That is Q = N(0, z^2) against
  (1 - p) Q + p N(1, z^2), as without truncation.
* |S| >= b: the b rows that are kept without x are also those that are kept if x is not drawn, or is drawn and left out.
  Otherwise x stands in the place of one of them, which moves the sum by a difference of two clipped vectors, at most
  2 C long. That is Q against (1 - q) Q + q N(2, z^2) with q <= p, which q = p dominates.

So a step is dominated by a public coin of probability tau between a Gaussian step of mu = 1/z and one of 2 mu, both
sampled at rate p, and steps compose as dominating pairs do. Source: Ganesh et al. 2025 (arXiv 2508.15089), where the
second case is one of replacing a record, which costs more.

*Interpolation.* The curve is (1 - tau) delta(e; mu) + tau delta(e; 2 mu). With x = e/mu - mu/2 and x' = e/(2 mu) - mu
its derivative in mu is G = (1 - tau) phi(x) + 2 tau phi(x'), and

    d phi(x)/d mu  = (e^2/mu^3 - mu/4) phi(x)       >=  -mu phi(x),
    d phi(x')/d mu = (e^2/(4 mu^3) - mu) phi(x')    >=  -mu phi(x'),

so that d log G/d mu >= -mu: the curve is convex in the total variation of a Gaussian step of parameter 2 mu (as in
`groups`, with c = 1).
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from decrescendo.accounting.pld.discretisation import (
    CURVE_ERROR,
    LARGEST_MU,
    LossGrid,
    Lowered,
    OneRecord,
    excess,
)
from decrescendo.errors import AccountingError

# A difference of two clipped vectors is twice as long as one.
LEAST_NOISE = 2 / LARGEST_MU


@dataclass(frozen=True, slots=True)
class Overfull:
    """The curves of steps of truncated batches.

    Args:
        rate: p in (0, 1), the probability that a record is drawn.
        full: tau in (0, 1], the probability that a batch is full without it.

    >>> half = Overfull(0.1, 0.5)
    >>> float(half.excess(np.array([0.0]), np.array([1.0]))[0, 0])  # of 0.3829 and 0.6827
    0.5328...
    """

    rate: float
    full: float

    @property
    def error(self) -> float:
        """That of one curve, and of a sum of two positive terms."""
        return CURVE_ERROR + 4 * 2.0**-52

    @property
    def bend(self) -> float:
        """2, by the module's inequality."""
        return 2.0

    def excess(self, e: Float[np.ndarray, " n"], mu: Float[np.ndarray, " k"]) -> Float[np.ndarray, "k n"]:
        """D(exp(e); mu), both cases mixed."""
        return (1 - self.full) * excess(e, mu) + self.full * excess(e, 2 * mu)

    def ends(self, mu: float, left: float, right: float) -> tuple[float, float]:
        """Those of the larger step."""
        return OneRecord(self.rate).ends(2 * mu, left, right)

    def lowered(self, loss_grid: LossGrid, mu: Float[np.ndarray, " k"], tail: float) -> Lowered:
        """None: the pair dominates a step, and need not be one of its own pairs."""
        del loss_grid, mu, tail
        raise AccountingError("truncated batches have no lower end here; this is a bug, please report it")
