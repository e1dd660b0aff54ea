"""The constants that Hong, Wang and Zhou's bounds are made of, checked once."""

import math
from dataclasses import dataclass

from decrescendo import Budget
from decrescendo.accounting import rho_of
from decrescendo.errors import InvalidValue, check_instance, check_integer, check_real
from decrescendo_papers.theory.influence import check_pl


@dataclass(frozen=True, slots=True)
class Problem:
    """What is assumed of a loss, its data and the budget: everything the bounds of Hong et al. depend on.

    The loss f is the mean of f(.; x_n) over N examples. Noise on the *mean* gradient has standard deviation
    z_t G/N. Their Eq. (4)-(6) are properties.

    Args:
        pl: m > 0 with |grad f|^2 >= 2 m (f - f*) everywhere (Polyak-Lojasiewicz; m-strong convexity implies it).
        smoothness: M >= m: the gradient of f is M-Lipschitz.
        lipschitz: G > 0: every f(.; x) is G-Lipschitz. G/N is the sensitivity of the mean gradient.
        examples: N >= 1.
        dimension: d >= 1, the number of trained parameters.
        initial_excess: f_1 = f(theta_1) - f* > 0, at most G^2/(2 m) or the assumptions contradict each other.
        total: R > 0, the sum of 1/z_t^2 that may be spent: twice the rho of zCDP, without amplification.

    Raises:
        InvalidValue: a constant outside its range, or two that contradict each other, by name.

    >>> problem = Problem(
    ...     pl=0.1, smoothness=1.0, lipschitz=1.0, examples=1_000, dimension=50, initial_excess=1.0, total=0.5
    ... )
    >>> problem.kappa, problem.gamma, problem.alpha
    (10.0, 0.9, 5e-05)
    """

    pl: float
    smoothness: float
    lipschitz: float
    examples: int
    dimension: int
    initial_excess: float
    total: float

    def __post_init__(self) -> None:
        m, M = check_pl(self.pl, self.smoothness)
        G = check_real("lipschitz", self.lipschitz, above=0)
        f_1 = check_real("initial_excess", self.initial_excess, above=0)
        if f_1 > G**2 / (2 * m) * (1 + 1e-9):
            raise InvalidValue(
                f"initial_excess must be at most lipschitz^2/(2 pl) = {G**2 / (2 * m):.6g}, or no function is both "
                f"G-Lipschitz and PL (2 m f_1 <= |grad f|^2 <= G^2); got initial_excess={f_1:.6g}. Restate lipschitz "
                "(with clipping: a clip norm no example reaches) or pl"
            )
        for name, value in (("pl", m), ("smoothness", M), ("lipschitz", G), ("initial_excess", f_1)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "examples", check_integer("examples", self.examples, at_least=1))
        object.__setattr__(self, "dimension", check_integer("dimension", self.dimension, at_least=1))
        object.__setattr__(self, "total", check_real("total", self.total, above=0))

    @staticmethod
    def of_budget(
        budget: Budget,
        *,
        pl: float,
        smoothness: float,
        lipschitz: float,
        examples: int,
        dimension: int,
        initial_excess: float,
    ) -> "Problem":
        """The same, with R = 2 rho for the rho of zCDP that is (epsilon, delta)-DP (`rho_of`).

        >>> problem = Problem.of_budget(
        ...     Budget(4, 1e-8), pl=0.1, smoothness=1.0, lipschitz=1.0, examples=1_000, dimension=50, initial_excess=1.0
        ... )
        >>> round(problem.total, 6)
        0.392704
        """
        check_instance("budget", budget, Budget)
        return Problem(
            pl,
            smoothness,
            lipschitz,
            examples,
            dimension,
            initial_excess,
            2 * rho_of(budget.epsilon, budget.delta),
        )

    @property
    def kappa(self) -> float:
        """M/m >= 1, Hong Eq. (5)."""
        return self.smoothness / self.pl

    @property
    def gamma(self) -> float:
        """1 - 1/kappa in [0, 1), Hong Eq. (6)."""
        return 1 - 1 / self.kappa

    @property
    def log_gamma(self) -> float:
        """ln gamma, without the rounding of 1 - 1/kappa; -infinity for kappa = 1."""
        return math.log1p(-1 / self.kappa) if self.kappa > 1 else -math.inf

    @property
    def alpha(self) -> float:
        """d G^2/(2 R M N^2 f_1), Hong Eq. (4): their "non-private ERUB"."""
        return self.noise_weight / self.total

    @property
    def noise_weight(self) -> float:
        """R alpha = d G^2/(2 M N^2 f_1): what z^2 = 1 in the last step adds to the bound."""
        square = self.lipschitz**2 * self.dimension
        return square / (2 * self.smoothness * self.examples**2 * self.initial_excess)
