"""`Turns`: the mean of several composed laws, as of a record that draws in secret which of several runs it is in.

The hockey-stick divergence is jointly convex: of mixtures with the same weights it is at most the mean of those of what
is mixed. So delta(e) <= sum_g w_g delta_g(e), in each direction by itself, and the right side is delta of the mechanism
that publishes g, too. It is linear in the laws, and so in their transforms: one inversion of sum_g w_g M_g bounds it.

From below the mean is no bound, for nobody publishes g. A record that adds something at the turns of one of b groups
only is, if it is in that group, in a run of this group's steps, and else unseen: delta of P/b + (1 - 1/b) Q against Q
is delta_g(e')/b at e' = log(1 + b (exp(e) - 1)), exactly, with delta_g from record to none: see `least_epsilon` of
`accountant`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from decrescendo.accounting.pld.transform import Cumulants, Part, Transform, log_mgfs, transforms
from decrescendo.accounting.pld.waves import Direction


@dataclass(frozen=True, slots=True)
class Turns:
    """Runs of steps and their probabilities; parts at the same place of each run have the same masses."""

    weights: Float[np.ndarray, " t"]
    parts: tuple[tuple[Part, ...], ...]

    @classmethod
    def of(cls, run: "Run") -> "Turns":
        """``run``, or one run that is sure."""
        return run if isinstance(run, Turns) else cls(np.ones(1), (tuple(run),))

    def cumulants(self, direction: Direction) -> Cumulants:
        """To steer with: of the run that costs most."""
        if len(self.parts) == 1:
            return Cumulants(self.parts[0], direction)
        worst = int(np.argmax(log_mgfs(self.parts, direction, [1.0])[:, 0]))
        return Cumulants(self.parts[worst], direction)

    def log_mgfs(self, direction: Direction, c: Sequence[float]) -> Float[np.ndarray, "t k"]:
        """Upper bounds on log M_g(c), c real, of each run."""
        return log_mgfs(self.parts, direction, c)

    def mean(self, logs: Float[np.ndarray, "t k"]) -> Float[np.ndarray, " k"]:
        """log of the mean of exp(``logs``), at least."""
        if len(self.parts) == 1:
            return logs[0]
        found = np.asarray(logsumexp(logs, axis=0, b=self.weights[:, None]))
        return found + 2.0**-50 * (len(self.parts) + np.abs(found))

    def transforms(self, direction: Direction, c: float, v: Float[np.ndarray, " f"]) -> list[Transform]:
        """M_g(c + iv) of each run."""
        return transforms(self.parts, direction, c, v)

    def infinite(self, direction: Direction) -> float:
        """The probability of an infinite loss, at most."""
        each = [sum(part.infinite_mass(direction) for part in parts) for parts in self.parts]
        return float(self.weights @ each)

    @property
    def error(self) -> float:
        """The sum of the relative errors of a run's curves, at most."""
        return max(sum(part.error * float(part.mixtures.counts.sum()) for part in parts) for parts in self.parts)


Run: TypeAlias = Turns | Sequence[Part]
