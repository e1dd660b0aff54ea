"""The central limit theorem of the dynamic DP-SGD paper: fast, and NOT a bound.

Source: Du et al., Eq. (6) and (7). Calibrated to a claimed epsilon of 1.2 by these formulas, a growing-mu run of
5,000 steps truly spends 1.32 (docs/explanation/clt.md has the table). They exist here to reproduce the paper.
"""

from dataclasses import dataclass

import numpy as np

from decrescendo.accounting.budget import Bound
from decrescendo.accounting.gaussian import check_delta, delta_of, epsilon_of
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.protocol import Accountant, check_poisson
from decrescendo.errors import check_real


def clt_mu(ledger: Ledger) -> float:
    """mu_tot = sqrt(sum_t p_t^2 (exp(mu_t^2) - 1)), mu_t = 1/z_t: Du Eq. (6) and (7); infinite without noise.

    >>> round(clt_mu(Ledger.of([1.205] * 4_800, sample_rate=250 / 60_000)), 4)
    0.2874
    """
    check_poisson(ledger, "GdpClt")
    with np.errstate(divide="ignore", over="ignore"):
        growth = np.expm1(ledger.noise_multiplier**-2.0)
    squares = np.maximum(ledger.sample_rate**2, 5e-324)  # zero times infinity is no number
    return float(np.sqrt(np.sum(ledger.count * squares * growth)))


@dataclass(frozen=True, slots=True)
class GdpClt(Accountant):
    """Du et al.'s accountant: the CLT total (`clt_mu`) read as Gaussian DP.

    Guarantee: none. The values are estimates, usually below the truth, the more so the larger mu_t gets.

    >>> GdpClt().epsilon(Ledger.of([1.205] * 4_800, sample_rate=250 / 60_000), delta=1 / 600_000)
    Bound(value=1.200..., kind='estimate')
    """

    def epsilon(self, ledger: Ledger, delta: float) -> Bound:
        """Estimate of epsilon at ``delta``."""
        return Bound(epsilon_of(check_delta(delta), clt_mu(ledger)), "estimate")

    def delta(self, ledger: Ledger, epsilon: float) -> Bound:
        """Estimate of delta at ``epsilon``."""
        mu, e = clt_mu(ledger), check_real("epsilon", epsilon, at_least=0)
        return Bound(delta_of(e, mu), "estimate")
