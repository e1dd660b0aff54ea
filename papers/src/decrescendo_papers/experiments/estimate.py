"""Measured influences of several seeds as a curve with a band, and the exponential that fits it."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy import optimize, stats

from decrescendo.errors import InvalidValue, check_integer
from decrescendo.plans import Curve, curves
from decrescendo_papers.experiments.alike import above
from decrescendo_papers.experiments.influence import Measured

LEVEL = 0.95


@dataclass(frozen=True, slots=True, eq=False)
class Influence:
    """What several seeds say about q_t.

    Args:
        steps: of the training, T.
        at: steps that were measured.
        slopes: q_t as each seed found it; a row a seed, a column a step.

    >>> two = Influence.of(10, [Measured(0, (5, 10), 0.0, (1.0, 3.0)), Measured(1, (5, 10), 0.0, (1.0, 5.0))])
    >>> two.mean, two.error
    (array([1., 4.]), array([0., 1.]))
    """

    steps: int
    at: Int[np.ndarray, " points"]
    slopes: Float[np.ndarray, "seeds points"]

    @classmethod
    def of(cls, steps: int, measured: Sequence[Measured]) -> "Influence":
        """From the same steps of several seeds.

        Raises:
            InvalidValue: none, or other steps in one than in another.
        """
        places = {one.at for one in measured}
        if len(places) != 1:
            raise InvalidValue(f"all seeds must have measured the same steps, got {len(places)} different lists")
        (at,) = places
        return cls(
            check_integer("steps", steps, at_least=1),
            np.array(at, dtype=np.int64),
            np.array([one.slopes for one in measured], dtype=np.float64),
        )

    @property
    def seeds(self) -> int:
        """How many."""
        return len(self.slopes)

    @property
    def mean(self) -> Float[np.ndarray, " points"]:
        """Over the seeds: the estimate of q_t."""
        return self.slopes.mean(axis=0)

    @property
    def error(self) -> Float[np.ndarray, " points"]:
        """Standard error of the mean; infinite for one seed."""
        if self.seeds < 2:
            return np.full(len(self.at), np.inf)
        return np.asarray(stats.sem(self.slopes, axis=0))

    def interval(self, level: float = LEVEL) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, " points"]]:
        """Student's confidence interval of each q_t on its own; infinite for one seed."""
        reach = float(stats.t.ppf((1 + level) / 2, max(1, self.seeds - 1))) * self.error
        return self.mean - reach, self.mean + reach


@dataclass(frozen=True, slots=True)
class Exponential:
    """q_t = last exp(rate (t - T)), the form that Theorem 4.1 gives: there rate = ln(1/gamma).

    Args:
        last: at the last step.
        rate: growth of ln q_t in a step; below zero, early noise weighs more.
        interval: of the rate, 95 %, from the jackknife over seeds; not a number for one seed.
        steps: T of the training that was measured.
    """

    last: float
    rate: float
    interval: tuple[float, float]
    steps: int

    def at(self, steps: Sequence[int] | Int[np.ndarray, " points"]) -> Float[np.ndarray, " points"]:
        """q_t at these steps."""
        return _exponential(np.asarray(steps, dtype=np.float64) - self.steps, self.last, self.rate)

    def rho_mu(self, steps: int | None = None) -> float:
        """By what factor mu_t grows over ``steps`` (those that were measured) in Lemma 4.3: exp(rate T / 4).

        >>> round(Exponential(1.0, 0.04, (0.03, 0.05), 100).rho_mu(), 4)
        2.7183
        """
        return float(np.exp(self.rate * (self.steps if steps is None else steps) / 4))

    def privacy(self, steps: int | None = None) -> Curve:
        """The privacy curve of Lemma 4.3 for this influence: mu_t proportional to q_t^(1/4), `curves.growing_mu`."""
        return curves.growing_mu(self.rho_mu(steps))

    def gain(self) -> float:
        """What the best noise leaves of sum_t q_t z_t^2 under uniform noise at the same sum of 1/z_t^2, in (0, 1].

        By Lemma 4.3, (sum sqrt q_t)^2 over T sum q_t; under this fit, where the loss is quadratic.

        >>> round(Exponential(1.0, 0.1, (0.0, 0.2), 100).gain(), 3)
        0.395
        """
        q = self.at(np.arange(1, self.steps + 1)) / self.last
        return float(np.sqrt(q).sum() ** 2 / (self.steps * q.sum()))

    def describe(self) -> str:
        """In a sentence, with what it rests on."""
        low, high = self.interval
        rises = above(0.0, self.rate * self.steps, size=1.0)
        way = "rises" if rises else "falls"
        factor = 1 / self.rho_mu() if rises else self.rho_mu()
        unsure = " The interval of the growth holds 1: constant noise may be as good." if low <= 0 <= high else ""
        return (
            f"exponential fit: influence times {np.exp(self.rate):.4g} a step [{np.exp(low):.4g}, {np.exp(high):.4g}]; "
            f"the best noise for it {way} by the factor {factor:.3g} over the run and leaves "
            f"{100 * self.gain():.3g} % of what constant noise adds to the final loss.{unsure}"
        )


def fit_exponential(influence: Influence) -> Exponential:
    """Least squares of q_t = last exp(rate (t - T)) on the means, by `scipy.optimize.curve_fit`.

    All points count the same: standard errors of a few seeds are too uncertain to weigh by. The interval of the rate is
    Student's for the jackknife's pseudo-values, one a seed (Tukey 1958): the steps of one seed share their noise, so
    the residuals of one fit would understate it, and a bootstrap of five seeds does.

    Args:
        influence: at three steps or more.

    Raises:
        InvalidValue: fewer than three steps, or nothing that an exponential fits: influences below zero, say.

    >>> at = (10, 40, 70, 100)
    >>> exact = Measured(0, at, 0.0, tuple(2.0 * np.exp(0.05 * (np.array(at) - 100))))
    >>> round(fit_exponential(Influence.of(100, [exact])).rate, 6)
    0.05
    """
    if len(influence.at) < 3:
        raise InvalidValue(f"an exponential must be fitted to at least 3 steps, got {len(influence.at)}")
    when = (influence.at - influence.steps).astype(np.float64)
    last, rate = _fit(when, influence.mean)
    interval = (float("nan"), float("nan"))
    seeds = influence.seeds
    if seeds > 1:
        total = influence.slopes.sum(axis=0)
        without = [_fit(when, (total - row) / (seeds - 1))[1] for row in influence.slopes]
        pseudo = seeds * rate - (seeds - 1) * np.array(without)
        reach = float(stats.t.ppf((1 + LEVEL) / 2, seeds - 1) * stats.sem(pseudo))
        interval = float(pseudo.mean()) - reach, float(pseudo.mean()) + reach
    return Exponential(last, rate, interval, influence.steps)


def _exponential(when: Float[np.ndarray, " points"], height: float, rate: float) -> Float[np.ndarray, " points"]:
    return height * np.exp(rate * when)


def _fit(when: Float[np.ndarray, " points"], values: Float[np.ndarray, " points"]) -> tuple[float, float]:
    size = float(np.abs(values).max())
    if not size > 0:
        raise InvalidValue("influences must not all be zero, got nothing else. Is there noise, and does it matter?")
    length = float(np.ptp(when))
    rises = bool(values[-1] >= values[0])
    anchor = when[-1] if rises else when[0]
    try:
        with warnings.catch_warnings(), np.errstate(over="ignore"):
            warnings.simplefilter("ignore", optimize.OptimizeWarning)  # its covariance is not used
            # In units of the largest value and of the whole run, from the larger end: both parameters are of order one.
            (top, rate), _ = optimize.curve_fit(
                _exponential, (when - anchor) / length, values / size, p0=(1.0, 1.0 if rises else -1.0)
            )  # fmt: skip
    except RuntimeError as error:
        raise InvalidValue(f"influences must look like an exponential, got {values.tolist()}: {error}") from None
    if not top > 1e-9:
        raise InvalidValue(
            f"influences must be above zero for a schedule to follow them, got {values.tolist()}. Measure more seeds"
        )
    return float(top * np.exp(-rate * anchor / length)) * size, float(rate) / length
