"""The price of a search on private data: the best of a random number of trials, through Google's dp-accounting.

Source: Papernot and Steinke 2022, *Hyperparameter Tuning with Renyi Differential Privacy*, Theorems 2 and 6.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, final

import numpy as np
from scipy.optimize import brentq

from decrescendo.accounting.budget import Bound
from decrescendo.accounting.gaussian import check_delta
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.protocol import Accountant
from decrescendo.accounting.rdp import accountant_of, event_of, is_trivial
from decrescendo.errors import (
    AccountingError,
    InvalidType,
    InvalidValue,
    check_instance,
    check_real,
    uninherited,
)

if TYPE_CHECKING:
    from dp_accounting.rdp import RdpAccountant

_LARGEST_MEAN, _SMALLEST_SHAPE, _LARGEST_SHAPE = 1e4, 1e-6, 100.0
_REMEDY = (
    "A fixed number of trials costs their composition, the ledgers of all of them added up; a random number costs much "
    "less: use Trials(mean=10, shape=0)"
)


@final
@uninherited("Its law is what a search costs: give another mean or shape")
@dataclass(frozen=True, slots=True)
class Trials:
    """How many trials a search makes: a random number K, drawn before the first of them.

    ============  =====================  ===============================================================
    shape (eta)   distribution           what it costs
    ============  =====================  ===============================================================
    0             logarithmic            cheapest; often few trials, sometimes very many
    1             geometric              between
    other, <=100  negative binomial      truncated: at least one trial
    inf           Poisson                close to its mean, dearer for many; K = 0 gives no result at all
    ============  =====================  ===============================================================

    Args:
        mean: of K, in [1, 10000].
        shape: eta, 0, in [1e-6, 100] or ``inf``.

    Raises:
        InvalidValue, InvalidType: a number outside its range or of another kind.

    >>> trials = Trials(mean=10, shape=0)
    >>> print(trials)
    10 expected trials (logarithmic)
    >>> trials.draw(np.random.default_rng(0))
    7
    """

    mean: float
    shape: float = 0.0

    def __post_init__(self) -> None:
        mean = check_real("mean", self.mean, at_least=1, at_most=_LARGEST_MEAN, hint=_REMEDY)
        object.__setattr__(self, "mean", mean)
        if isinstance(self.shape, float) and self.shape == math.inf:
            return
        hint = "Use inf (Poisson) for a number of trials closer to its mean"
        shape = check_real("shape", self.shape, at_least=0, at_most=_LARGEST_SHAPE, hint=hint)
        if 0 < shape < _SMALLEST_SHAPE:
            raise InvalidValue(f"shape must be 0 or >= {_SMALLEST_SHAPE:g}, got shape={shape}. Use 0 (logarithmic)")
        object.__setattr__(self, "shape", shape)

    def __str__(self) -> str:
        known = {0.0: "logarithmic", 1.0: "geometric", math.inf: "Poisson"}
        kind = known.get(self.shape, f"truncated negative binomial, eta {self.shape:g}")
        return f"{self.mean:g} expected trials ({kind})"

    @property
    def gamma(self) -> float:
        """The parameter gamma in (0, 1] of the truncated negative binomial with this mean; 0 for Poisson.

        Rounded so that the mean of what is drawn is never above the mean that is paid for.
        """
        return 0.0 if self.shape == math.inf else math.exp(-_log_inverse_gamma(self.mean, self.shape))

    def draw(self, rng: np.random.Generator) -> int:
        """A number of trials; exact but for the rounding of float64 (1e-12 in total variation).

        Args:
            rng: secret, and used for nothing else that is published: the guarantee needs that nobody knows K.
        """
        check_instance("rng", rng, np.random.Generator)
        if self.shape == math.inf:
            return int(rng.poisson(self.mean))
        left = float(rng.random())
        count = 1
        for count, probability in enumerate(self.probabilities(), start=1):
            if left < probability or (count > self.mean and probability < 2.0**-60):
                break
            left -= probability
        return count

    def probabilities(self) -> Iterator[float]:
        """P(K = 1), P(K = 2), ..., without end; not for Poisson.

        P(K = k) is in proportion to (1 - gamma)^k prod_{l<k} (l + eta) / (l + 1) (Definition 1 of the paper).
        """
        if self.shape == math.inf:
            raise InvalidType("shape must be finite, got shape=inf. Use scipy.stats.poisson(mean)")
        x, eta = _log_inverse_gamma(self.mean, self.shape), self.shape
        stop = -math.expm1(-x)  # 1 - gamma
        first = 1.0 if x == 0 else stop / x if eta == 0 else stop * eta / math.expm1(eta * x)
        k = 1
        while True:
            yield first
            first *= stop * (k + eta) / (k + 1)
            k += 1


@dataclass(frozen=True, slots=True)
class Selection(Accountant):
    """Upper bound on the cost of *the best of a random number of trials*; the ledger is that of one trial.

    Theorem 2: if one trial is (l, e(l))-RDP at all orders l, the whole search is, at every order l > 1,

        e(l) + (1 + eta) min_l' [(1 - 1/l') e(l') + ln(1/gamma)/l'] + ln(mean)/(l - 1)

    and by Theorem 6 for Poisson e(l) + mean delta + ln(mean)/(l - 1), delta being the trial's at ln(1 + 1/(l - 1)).

    Args:
        trials: how many.

    Guarantee:
        an upper bound for what is released at the end, one trial's whole output with its score, provided that

        - K was drawn by ``trials.draw`` before the first trial, all K trials were run, and neither K nor anything of
          the other trials is shown (running times and numbers of files tell K);
        - the trials are independent runs of one procedure, with fresh noise and sampling: their settings are drawn at
          random, each time anew, from a distribution that does not depend on the data, and no trial learns from the
          results of another (a random search; neither a grid nor an adaptive optimiser);
        - whatever settings were drawn, the trial's own ledger costs no more than the one given at every order: for
          example the same sampling, no more steps, and no less noise at any step (rate, clip norms and model are free);
        - the score is computed from the trial's output and public data alone. A score on private data is one more
          release of each trial, with noise, and belongs into the ledger; without noise there is no guarantee;
        - ties are broken by a rule that does not look at the data.

    Edge cases:
        an empty ledger costs 0. The mean 1 is a single trial, billed a little above `Rdp`, never below.

    Raises:
        InvalidType: ``trials`` is no `Trials`; a number of trials that is fixed costs composition.

    >>> one = Ledger.of([2.9] * 4_800, sample_rate=250 / 60_000)
    >>> Selection(Trials(mean=10, shape=0)).epsilon(one, delta=1 / 600_000)
    Bound(value=0.7599..., kind='upper')
    """

    trials: Trials

    def __post_init__(self) -> None:
        check_instance("trials", self.trials, Trials, _REMEDY)

    def epsilon(self, ledger: Ledger, delta: float) -> Bound:
        """Upper bound on the epsilon of the whole search at ``delta``."""
        check_delta(delta)
        if is_trivial(ledger, self.name):
            return Bound(0.0 if not len(ledger) else math.inf, "upper")
        return Bound(float(self._accountant(ledger).get_epsilon(delta)), "upper")

    def delta(self, ledger: Ledger, epsilon: float) -> Bound:
        """Upper bound on the delta of the whole search at ``epsilon``."""
        check_real("epsilon", epsilon, at_least=0)
        if is_trivial(ledger, self.name):
            return Bound(0.0 if not len(ledger) else 1.0, "upper")
        return Bound(float(self._accountant(ledger).get_delta(epsilon)), "upper")

    def _accountant(self, ledger: Ledger) -> "RdpAccountant":
        from dp_accounting.dp_event import RepeatAndSelectDpEvent

        try:
            return accountant_of(RepeatAndSelectDpEvent(event_of(ledger), self.trials.mean, self.trials.shape))
        except ValueError as error:  # the logarithm of 1 - exp(-r) where r is below a rounding of 1
            raise AccountingError(
                f"{self.name} accounts trials that cost 1e-15 and more, got {ledger}. Take less noise"
            ) from error


@lru_cache(maxsize=256)
def _log_inverse_gamma(mean: float, shape: float) -> float:
    """x = ln(1/gamma) >= 0 with mean = (e^x - 1) eta / (1 - e^(-eta x)), rounded down."""

    def mean_at(x: float) -> float:
        return math.expm1(x) / (x if shape == 0 else -math.expm1(-shape * x) / shape)

    if mean == 1:
        return 0.0
    high = 1.0
    while mean_at(high) < mean:
        high *= 2
    low = 1e-9
    if mean_at(low) >= mean:
        return 0.0
    x = float(brentq(lambda t: math.log(mean_at(t) / mean), low, high, xtol=1e-15, rtol=8.9e-16))
    while mean_at(x) > mean:
        x *= 1 - 1e-14
    return x
