"""`Workload`: the optimiser's effect on the steps' noise; the variance of the noise in its iterates."""

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from jaxtyping import Float

from decrescendo.errors import InvalidValue, check_real
from decrescendo.plans.curves import evaluate
from decrescendo.plans.progress import CurveOrValues
from decrescendo.plans.strategy import Strategy


@final
@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """The optimiser that uses the noisy gradients (``torch.optim.SGD``): its iterates are linear in the noise.

        v_t = momentum v_{t-1} + noise_t + weight_decay w_{t-1},      w_t = w_{t-1} - eta_t v_t

    `calibrate` (with ``bands``) makes the *cost* small: the sum over t of iterates_t times the variance of w_t's noise
    in a coordinate. With ``weight_decay`` in the place of a curvature of the loss it is also a model of a quadratic.

    Args:
        learning_rate: curve (or array) of eta_t > 0, or a number; only ratios matter without weight decay.
        momentum: in [0, 1).
        weight_decay: >= 0; eta_t weight_decay below 1.
        iterates: how much the noise of each iterate matters: "all" alike, "last" only, or one value >= 0 a step.

    Raises:
        InvalidValue: a number outside its range.

    >>> noise = np.array([1.0, 2.0])
    >>> round(Workload(1.0).cost(noise), 9)  # 1, then 1 + 4
    6.0
    >>> Workload(1.0, momentum=0.5).cost(noise)  # 1, then 1.5^2 + 4
    7.25
    """

    learning_rate: CurveOrValues
    momentum: float = 0.0
    weight_decay: float = 0.0
    iterates: Literal["all", "last"] | Float[np.ndarray, " steps"] = "all"

    def __post_init__(self) -> None:
        object.__setattr__(self, "momentum", check_real("momentum", self.momentum, at_least=0, below=1))
        decay = check_real("weight_decay", self.weight_decay, at_least=0)
        object.__setattr__(self, "weight_decay", decay)

    @classmethod
    def of_influence(cls, influence: Float[np.ndarray, " steps"]) -> "Workload":
        """The last iterate, in which the variance of independent noise on the sum of step t has the weight q_t.

        Only q_t is known of it, so that the noise of all steps is taken to go there with the same sign.

        >>> round(Workload.of_influence(np.array([1.0, 4.0])).cost(np.array([1.0, 1.0])), 9)  # in units of the largest
        1.25
        """
        return cls(np.sqrt(influence), iterates="last")

    def cost(
        self,
        noise: "Strategy | Float[np.ndarray, ' steps']",
        scale: Float[np.ndarray, " steps"] | float = 1.0,
    ) -> float:
        """The sum over t of iterates_t times the variance of the noise in iterate t.

        Args:
            noise: the strategy of noise of sensitivity 1, or z_t of independent noise.
            scale: what the noise of step t is multiplied by before it is in a gradient: C_t / B_t.
        """
        std = self.noise_std(noise, scale)
        return float(_importance(self.iterates, std.size) @ std**2)

    def noise_std(
        self,
        noise: "Strategy | Float[np.ndarray, ' steps']",
        scale: Float[np.ndarray, " steps"] | float = 1.0,
    ) -> Float[np.ndarray, " steps"]:
        """The standard deviation of the noise in each iterate, of arguments as of `cost`.

        >>> Workload(1.0).noise_std(np.array([3.0, 4.0]))
        array([3., 5.])
        """
        steps = noise.steps if isinstance(noise, Strategy) else noise.size
        return np.sqrt(System.of(self, np.broadcast_to(scale, steps)).variances(*recursion(noise))[1])


def recursion(
    noise: "Strategy | Float[np.ndarray, ' steps']",
) -> tuple[Float[np.ndarray, "steps bands_less_1"], Float[np.ndarray, " steps"]]:
    """(w, a) of n_t = a_t xi_t - sum_k w_{t,k} n_{t-k}, k = 1 .. b - 1."""
    if not isinstance(noise, Strategy):
        return np.zeros((noise.size, 0)), noise
    matrix = noise.matrix
    weights = np.zeros((noise.steps, noise.bands - 1))
    for k in range(1, min(noise.bands, noise.steps)):
        weights[k:, k - 1] = matrix[k, :-k] / matrix[0, k:]
    return weights, 1 / matrix[0]


@dataclass(frozen=True, slots=True)
class System:
    """A workload as a linear system with the state (w, v, n_t, n_{t-1}, ..).

    ``still[t]``: the map from (w, v) before step t to after it, without noise; ``gain[t]``: the effect of step t's
    noise on (w, v); ``importance``: the weight of each iterate.
    """

    still: Float[np.ndarray, "steps 2 2"]
    gain: Float[np.ndarray, "steps 2"]
    importance: Float[np.ndarray, " steps"]

    @classmethod
    def of(cls, workload: Workload, scale: Float[np.ndarray, " steps"]) -> "System":
        """The system of a workload whose noise is multiplied by ``scale`` before it is in a gradient."""
        steps = scale.size
        eta = evaluate("learning_rate", workload.learning_rate, steps)
        if not workload.weight_decay:
            eta = eta / eta.max()
        elif eta.max() * workload.weight_decay >= 1:
            raise InvalidValue(
                "weight_decay times the largest learning rate must be below 1, got "
                f"{workload.weight_decay:g} x {eta.max():g}. Weights would be forgotten in one step"
            )
        m, d = workload.momentum, workload.weight_decay
        still = np.zeros((steps, 2, 2))
        still[:, 0, 0], still[:, 0, 1] = 1 - eta * d, -eta * m
        still[:, 1, 0], still[:, 1, 1] = d, m
        gain = np.stack([-eta * scale, np.asarray(scale, dtype=np.float64)], axis=1)
        return cls(still, gain, _importance(workload.iterates, steps))

    def independent(self) -> tuple[float, Float[np.ndarray, " steps"]]:
        """The cost of independent noise of standard deviation 1, and the weight of each step's variance in it."""
        steps = len(self.gain)
        cost, _, influence = self.gradient(np.zeros((steps, 0)), np.ones(steps))
        return cost, influence

    def variances(
        self, weights: Float[np.ndarray, "steps k"], fresh: Float[np.ndarray, " steps"]
    ) -> tuple[Float[np.ndarray, "steps d d"], Float[np.ndarray, " steps"]]:
        """The covariance of the state before each step, and the variance of the iterate after it."""
        top, into = self._moves(weights)
        news = fresh[:, None, None] ** 2 * (into[:, :, None] * into[:, None, :])
        before = np.zeros((len(top) + 1, top.shape[2], top.shape[2]))
        for t, rows in enumerate(top):
            after, half = before[t + 1], rows @ before[t]
            after[:3, :3] = half @ rows.T + news[t]
            after[:3, 3:] = half[:, 2:-1]
            after[3:, :3] = half[:, 2:-1].T
            after[3:, 3:] = before[t, 2:-1, 2:-1]
        return before[:-1], before[1:, 0, 0].copy()

    def gradient(
        self, weights: Float[np.ndarray, "steps k"], fresh: Float[np.ndarray, " steps"]
    ) -> tuple[float, Float[np.ndarray, "steps k"], Float[np.ndarray, " steps"]]:
        """The cost, and its derivatives in the weights and in the squares of ``fresh``."""
        top, into = self._moves(weights)
        before, found = self.variances(weights, fresh)
        back, by_fresh = np.zeros((len(top), top.shape[2])), np.zeros(fresh.size)
        later = np.zeros((top.shape[2], top.shape[2]))
        for t in range(len(top) - 1, -1, -1):
            later[0, 0] += self.importance[t]
            seen = into[t] @ later[:3]
            by_fresh[t] = seen[:3] @ into[t]
            back[t] = seen[:3] @ top[t]
            back[t, 2:-1] += seen[3:]
            half = top[t].T @ later[:3]
            half[2:-1] += later[3:]
            later = half[:, :3] @ top[t]
            later[:, 2:-1] += half[:, 3:]
        by_past = -2 * (back[:, None, :] @ before)[:, 0, 2 : 2 + weights.shape[1]]
        return float(self.importance @ found), by_past, by_fresh

    def _moves(
        self, weights: Float[np.ndarray, "steps k"]
    ) -> tuple[Float[np.ndarray, "steps 3 d"], Float[np.ndarray, "steps 3"]]:
        """The matrices from each state to the next, and the effect of a step's noise on its entries: of w, v and n_t,
        the first three. Each other entry is the one before it, of a step earlier."""
        steps, lags = weights.shape
        into = np.concatenate([self.gain, np.ones((steps, 1))], axis=1)
        top = np.zeros((steps, 3, 2 + max(lags, 1)))
        top[:, :2, :2] = self.still
        top[:, :, 2 : 2 + lags] -= into[:, :, None] * weights[:, None, :]
        return top, into


def _importance(iterates: object, steps: int) -> Float[np.ndarray, " steps"]:
    if isinstance(iterates, str) and iterates in ("all", "last"):
        return np.ones(steps) if iterates == "all" else np.r_[np.zeros(steps - 1), 1.0]
    found = np.asarray(iterates, dtype=np.float64) if not isinstance(iterates, str) else np.zeros(0)
    if found.shape != (steps,) or not np.isfinite(found).all() or found.min() < 0 or not found.max() > 0:
        raise InvalidValue(
            f'iterates must be "all", "last" or one value >= 0 for each of the {steps} steps, not all 0, got others'
        )
    return found


def as_workload(given: "Workload | CurveOrValues | None") -> Workload:
    """The workload ``given``, or the one of learning rates; of a constant rate if nothing is given."""
    return given if isinstance(given, Workload) else Workload(1.0 if given is None else given)
