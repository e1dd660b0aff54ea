"""Zero-concentrated and truncated concentrated differential privacy: the accountants of the paper's baselines.

Sources: Bun and Steinke 2016 (zCDP); Bun, Dwork, Rothblum and Steinke 2018 (tCDP); Yu et al. 2019 and Zhang et al.
2021, the baselines *rho-zCDP-SGD* and *tCDP-SGD* of Du et al.
"""

import math
from dataclasses import dataclass

import numpy as np

from decrescendo.accounting.budget import Bound, Kind
from decrescendo.accounting.gaussian import check_delta
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.protocol import Accountant, check_poisson, with_finite_squares
from decrescendo.errors import AccountingError, check_integer, check_real


def rho_of(epsilon: float, delta: float) -> float:
    """The rho whose conversion gives (epsilon, delta): rho = e + 2L - 2 sqrt(L (e + L)), L = ln(1/delta).

    Hong et al. print a plus in Lemma C.3; their own figures need this minus.

    >>> round(rho_of(4, 1e-8), 6)
    0.196352
    """
    e, level = check_real("epsilon", epsilon, at_least=0), -math.log(check_delta(delta))
    # The printed difference cancels for small epsilon: multiply by its conjugate.
    return e * e / (e + 2 * level + 2 * math.sqrt(level * (e + level)))


def _epsilon(rho: float, level: float) -> float:
    return rho + 2 * math.sqrt(rho * level)


@dataclass(frozen=True, slots=True)
class Zcdp(Accountant):
    """rho-zCDP: a Gaussian step costs 1/(2 z^2), costs add, epsilon = rho + 2 sqrt(rho ln(1/delta)).

    Sampling is not amplified: sample_rate is ignored, which is safe and loose.

    Args:
        batches_per_epoch: 1, or the number of consecutive releases that read *disjoint* parts of the data, which
            together cost what the dearest of them costs. That is how *rho-zCDP-SGD* (Yu et al. 2019) counts shuffled
            epochs. Poisson batches are not disjoint, and this library draws no others, so the result is then only an
            estimate: what that baseline would claim.

    Guarantee: an upper bound for ``batches_per_epoch=1``; otherwise none.

    >>> ledger = Ledger.of([58.10] * 4_800, sample_rate=250 / 60_000)
    >>> Zcdp(batches_per_epoch=240).epsilon(ledger, delta=1 / 600_000)
    Bound(value=0.4000..., kind='estimate')
    """

    batches_per_epoch: int = 1

    @property
    def name(self) -> str:
        """Name in guarantees; with its assumption if the value is no bound."""
        own = type(self).__name__
        return own if self.batches_per_epoch == 1 else f"{own}(batches_per_epoch={self.batches_per_epoch})"

    def __post_init__(self) -> None:
        check_integer("batches_per_epoch", self.batches_per_epoch, at_least=1)

    @property
    def _kind(self) -> Kind:
        return "upper" if self.batches_per_epoch == 1 else "estimate"

    def rho(self, ledger: Ledger) -> float:
        """Total rho; infinite if a release has no noise."""
        check_poisson(ledger, self.name)
        with np.errstate(divide="ignore"):
            costs = 1 / (2 * with_finite_squares(ledger).noise_multiplier ** 2)
        if self.batches_per_epoch == 1:
            return float(ledger.count @ costs)
        each = np.repeat(costs, ledger.count)
        starts = np.arange(0, each.size, self.batches_per_epoch)
        return float(np.maximum.reduceat(each, starts).sum()) if each.size else 0.0

    def epsilon(self, ledger: Ledger, delta: float) -> Bound:
        """Epsilon at ``delta``."""
        level = -math.log(check_delta(delta))
        return Bound(_epsilon(self.rho(ledger), level), self._kind)

    def delta(self, ledger: Ledger, epsilon: float) -> Bound:
        """Delta at ``epsilon``: exp(-(e - rho)^2 / (4 rho)) for e > rho, else 1."""
        e, rho = check_real("epsilon", epsilon, at_least=0), self.rho(ledger)
        if rho == 0:
            return Bound(0.0, self._kind)
        return Bound(math.exp(-((e - rho) ** 2) / (4 * rho)) if e > rho else 1.0, self._kind)


@dataclass(frozen=True, slots=True)
class Tcdp(Accountant):
    """(rho, omega)-tCDP with amplification by sampling, as *tCDP-SGD* (Zhang et al. 2021) counts.

    With rho' = 1/(2 z^2), a sampled step is (13 p^2 rho', ln(1/p)/(4 rho'))-tCDP, provided that rho' <= 0.1,
    p <= 0.1 and ln(1/p) >= 3 rho' (2 + log2(1/rho')) (which the first two imply). Composition adds rho and keeps
    the smallest omega; with L = ln(1/delta), epsilon = rho + 2 sqrt(rho L) if L <= (omega - 1)^2 rho, else
    rho omega + L/(omega - 1).

    Guarantee: none for Poisson batches. The theorem (Bun et al. 2018) is for samples of fixed size and neighbours
    that replace one record; for Poisson batches and one record more or less its value was seen to stay above the
    truth, which is not a proof. Hence kind "estimate".

    Raises:
        AccountingError: a release outside the three conditions, by name.

    >>> Tcdp().epsilon(Ledger.of([13.52] * 4_800, sample_rate=250 / 60_000), delta=1 / 600_000)
    Bound(value=0.400..., kind='estimate')
    """

    def rho_omega(self, ledger: Ledger) -> tuple[float, float]:
        """Total (rho, omega); (0, infinity) for an empty ledger, (infinity, 1) if a release has no noise."""
        check_poisson(ledger, self.name)
        if not len(ledger):
            return 0.0, math.inf
        ledger = with_finite_squares(ledger)
        if (ledger.noise_multiplier == 0).any():
            return math.inf, 1.0
        step, p = 1 / (2 * ledger.noise_multiplier**2), ledger.sample_rate
        conditions = [
            (step <= 0.1, "1/(2 z^2) <= 0.1"),
            (p <= 0.1, "sample_rate <= 0.1"),
            (
                np.log(1 / p) >= 3 * step * (2 + np.log2(1 / step)),
                "ln(1/p) >= 3 rho (2 + log2(1/rho)), rho = 1/(2 z^2)",
            ),
        ]
        for holds, condition in conditions:
            if not holds.all():
                first = int(np.argmin(holds))
                raise AccountingError(
                    f"Tcdp accounts releases with {condition} only, got release {first + 1} of {len(ledger)} with "
                    f"sample_rate={p[first]:.4g}, noise_multiplier={ledger.noise_multiplier[first]:.4g}. Use Pld"
                )
        return float(ledger.count @ (13 * p**2 * step)), float(np.min(np.log(1 / p) / (4 * step)))

    def epsilon(self, ledger: Ledger, delta: float) -> Bound:
        """Epsilon at ``delta``."""
        level = -math.log(check_delta(delta))
        rho, omega = self.rho_omega(ledger)
        if math.isinf(rho):
            return Bound(math.inf, "estimate")
        gentle = level <= (omega - 1) ** 2 * rho or math.isinf(omega)
        return Bound(_epsilon(rho, level) if gentle else rho * omega + level / (omega - 1), "estimate")

    def delta(self, ledger: Ledger, epsilon: float) -> Bound:
        """Delta at ``epsilon``: the inverse of the above."""
        e = check_real("epsilon", epsilon, at_least=0)
        rho, omega = self.rho_omega(ledger)
        if rho == 0:
            return Bound(0.0, "estimate")
        if e <= rho:
            return Bound(1.0, "estimate")
        level = (e - rho) ** 2 / (4 * rho)
        if level > (omega - 1) ** 2 * rho:
            level = (e - rho * omega) * (omega - 1)
        return Bound(math.exp(-max(level, 0.0)), "estimate")
