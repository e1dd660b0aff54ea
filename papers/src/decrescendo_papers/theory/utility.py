"""What bounds the mean squared gradient of dynamic DP-SGD, term by term: Du et al., Theorems 1 and 2, Corollary 2.

Theorem 1 drops the dimension in Eq. (44): the squared norm of N(0, s^2 I) is d s^2 in expectation, not s^2. Here it is.
The optimal schedules (`curves.from_clip`, `curves.curvature`) do not depend on it.

s_t is the standard deviation of the noise on the *sum*; the sum is divided by p N.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from decrescendo.accounting import Bound
from decrescendo.errors import InvalidValue, check_array, check_integer, check_real


@dataclass(frozen=True, slots=True)
class UtilityTerms:
    """The right side of Eq. (16) or (57), term by term: (1/T) sum E|grad L(theta_t)|^2 is at most ``total``.

    Args:
        progress: [E L(theta_1) - E L(theta_{T+1})]/(eta T).
        gradient: (eta/2T) sum Q_t E|g_t|^2, g_t the clipped batch gradient without noise.
        bias: (1/T) sum E[|grad L| P_t(C_t)] G: what clipping costs.
        noise: (eta d/(2 p^2 N^2)) (1/T) sum Q_t s_t^2.

    >>> terms = UtilityTerms(progress=0.2, gradient=0.1, bias=0.0, noise=0.4)
    >>> round(terms.total, 6), terms.dominant
    (0.7, 'noise')
    """

    progress: float
    gradient: float
    bias: float
    noise: float

    @property
    def total(self) -> float:
        """The bound."""
        return self.progress + self.gradient + self.bias + self.noise

    @property
    def dominant(self) -> str:
        """The name of the largest term: what to work on first."""
        terms = {"progress": self.progress, "gradient": self.gradient, "bias": self.bias, "noise": self.noise}
        return max(terms, key=lambda name: terms[name])


def theorem_1(
    noise_std: object,
    *,
    learning_rate: float,
    smoothness: float,
    loss_drop: float,
    squared_gradient: object,
    clipped: object,
    largest_gradient: float,
    dimension: int,
    sample_rate: float,
    examples: int,
) -> UtilityTerms:
    """The terms of Du Theorem 1, Eq. (16), with the dimension put back.

    Args:
        noise_std: s_t = z_t C_t >= 0, one a step, at least one.
        learning_rate: eta > 0, plain SGD.
        smoothness: Q > 0 of the loss L.
        loss_drop: E[L(theta_1) - L(theta_{T+1})]; may be negative.
        squared_gradient: E|g_t|^2 >= 0, one a step.
        clipped: E[|grad L(theta_t)| P_t(C_t)] >= 0, one a step, P_t the share of examples that are clipped.
        largest_gradient: G >= 0, a bound on every example's gradient before clipping.
        dimension: d >= 1.
        sample_rate: p in (0, 1].
        examples: N >= 1.

    Raises:
        InvalidValue: a value outside its range, or arrays of different lengths.

    >>> terms = theorem_1(
    ...     [1.0, 1.0], learning_rate=0.1, smoothness=1.0, loss_drop=0.5, squared_gradient=[1.0, 0.8],
    ...     clipped=[0.0, 0.0], largest_gradient=2.0, dimension=100, sample_rate=0.5, examples=20,
    ... )
    >>> round(terms.noise, 6), terms.dominant
    (0.05, 'progress')
    """
    s = _steps(noise_std)
    return theorem_2(
        s,
        learning_rate=learning_rate,
        curvature=np.full(s.size, check_real("smoothness", smoothness, above=0)),
        loss_drop=loss_drop,
        squared_gradient=squared_gradient,
        clipped=clipped,
        largest_gradient=largest_gradient,
        dimension=dimension,
        sample_rate=sample_rate,
        examples=examples,
    )


def theorem_2(
    noise_std: object,
    *,
    learning_rate: float,
    curvature: object,
    loss_drop: float,
    squared_gradient: object,
    clipped: object,
    largest_gradient: float,
    dimension: int,
    sample_rate: float,
    examples: int,
) -> UtilityTerms:
    """The terms of Du Theorem 2, Eq. (57): a curvature Q_t of its own for each step, the dimension put back.

    Args:
        curvature: Q_t >= 0 in Eq. (56), one a step. Du et al. call the assumption optimistic: nobody knows Q_t
            beforehand. The other arguments are those of `theorem_1`.

    >>> terms = theorem_2(
    ...     [1.0, 1.0], learning_rate=0.1, curvature=[1.0, 3.0], loss_drop=0.5, squared_gradient=[1.0, 0.8],
    ...     clipped=[0.0, 0.0], largest_gradient=2.0, dimension=100, sample_rate=0.5, examples=20,
    ... )
    >>> round(terms.noise, 6)
    0.1
    """
    s = _steps(noise_std)
    eta = check_real("learning_rate", learning_rate, above=0)
    q = check_array("curvature", curvature, at_least=0, length=s.size)
    squares = check_array("squared_gradient", squared_gradient, at_least=0, length=s.size)
    lost = check_array("clipped", clipped, at_least=0, length=s.size)
    G = check_real("largest_gradient", largest_gradient, at_least=0)
    return UtilityTerms(
        progress=check_real("loss_drop", loss_drop) / (eta * s.size),
        gradient=eta / 2 * float(np.mean(q * squares)),
        bias=float(np.mean(lost)) * G,
        noise=noise_term(
            s, learning_rate=eta, curvature=q, dimension=dimension, sample_rate=sample_rate, examples=examples
        ),
    )


def noise_term(
    noise_std: object,
    *,
    learning_rate: float,
    curvature: object,
    dimension: int,
    sample_rate: float,
    examples: int,
) -> float:
    """(eta d/(2 p^2 N^2)) (1/T) sum Q_t s_t^2: the one term that the schedule of the noise decides directly.

    >>> noise_term(
    ...     [1.0, 2.0], learning_rate=0.1, curvature=[1.0, 1.0], dimension=100, sample_rate=0.5, examples=20
    ... )
    0.125
    """
    s = _steps(noise_std)
    q = check_array("curvature", curvature, at_least=0, length=s.size)
    eta, d = (
        check_real("learning_rate", learning_rate, above=0),
        check_integer("dimension", dimension, at_least=1),
    )
    p = check_real("sample_rate", sample_rate, above=0, at_most=1)
    count = check_integer("examples", examples, at_least=1)
    return eta * d / (2 * p**2 * count**2) * float(np.mean(q * s**2))


def printed_d1(noise_std: object) -> float:
    """D_1 = (1/T) sum s_t^2 as Du et al. print it below Eq. (16): without the factor before it and without d.

    >>> printed_d1([1.0, 2.0])
    2.5
    """
    return float(np.mean(_steps(noise_std) ** 2))


def clt_noise_scale(shape: object, clip_norm: object, *, sample_rate: float, total_mu: float) -> Bound:
    """s~ with s_t = s~ w_t, s~ = (p/mu_tot) sqrt(2 sum C_t^2/w_t^2): Corollary 2, Eq. (15). A CLT *estimate*.

    Valid while every mu_t = C_t/(s~ w_t) <= 1, where e^x < 1 + 2x; it rests on the central limit theorem of Eq. (7),
    which is no bound, and asks for up to sqrt 2 times too much noise besides. To train, use `calibrate`.

    Args:
        shape: w_t > 0, one a step.
        clip_norm: C_t > 0, one a step.
        sample_rate: p in (0, 1].
        total_mu: mu_tot > 0, the Gaussian-DP parameter aimed at.

    Returns:
        s~, of kind "estimate".

    Raises:
        InvalidValue: some mu_t above 1 (the first is named).

    >>> clt_noise_scale([1.0] * 4_800, [1.0] * 4_800, sample_rate=250 / 60_000, total_mu=0.10363)
    Bound(value=3.93..., kind='estimate')
    """
    w = _steps(shape, name="shape", above=0)
    c = check_array("clip_norm", clip_norm, above=0, length=w.size)
    p = check_real("sample_rate", sample_rate, above=0, at_most=1)
    scale = p / check_real("total_mu", total_mu, above=0) * math.sqrt(2 * float(np.sum((c / w) ** 2)))
    mu = c / (scale * w)
    if np.any(mu > 1):
        first = int(np.argmax(mu > 1))
        raise InvalidValue(
            "Corollary 2 needs mu_t = C_t/(s~ w_t) <= 1 at every step (e^x < 1 + 2x ends at x near 1), got "
            f"mu_t={mu[first]:.6g} at step {first + 1} of {mu.size}. Use calibrate, which has no such condition"
        )
    return Bound(scale, "estimate")


def _steps(values: object, name: str = "noise_std", above: float | None = None) -> Float[np.ndarray, " steps"]:
    array = check_array(name, values, at_least=0, above=above)
    if not array.size:
        raise InvalidValue(f"{name} must have at least one step, got none")
    return array
