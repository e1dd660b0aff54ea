"""Curves: how a quantity moves over training, as functions of the progress u = t/T in (0, 1], t = 1..T.

A *privacy* curve gives relative mu_t = 1/z_t (only its shape matters: `calibrate` scales it); a *clip* curve gives C_t
itself. One combinator a line; the papers' names with their equations.


===============================  =============================  ==================================================
schedule                         privacy                        clip
===============================  =============================  ==================================================
constant (vanilla DP-SGD)        ``constant(1)``                ``constant(clip_0)``
growing mu                       ``growing_mu(rho_mu)``         ``constant(clip_0)``
sensitivity decay                ``constant(1)``                ``sensitivity_decay(clip_0, rho_c)``
dynamic (Du Algorithm 2)         ``growing_mu(rho_mu)``         ``sensitivity_decay(clip_0, rho_c)``
optimal for a clip sequence      ``from_clip(clip)``            ``clip``
local curvature                  ``curvature(clip, q)``         ``clip``
influence (Hong Lemma 4.3)       ``influence(q)``               ``constant(clip_0)``
noise decays (Yu et al.)         ``*_noise_decay(...)``         ``constant(clip_0)``
===============================  =============================  ==================================================
"""

import inspect
import math
from collections.abc import Sequence
from functools import partial
from numbers import Real
from typing import Any, cast

import numpy as np
from jaxtyping import Float

from decrescendo.errors import DecrescendoError, InvalidType, InvalidValue, check_array, check_real
from decrescendo.plans.noise_decays import (
    exponential_noise_decay,
    polynomial_noise_decay,
    step_noise_decay,
    time_noise_decay,
)
from decrescendo.plans.progress import Curve, CurveOrValues, progress

__all__ = [
    "Curve", "CurveOrValues", "constant", "cosine", "curvature", "evaluate", "exponential",
    "exponential_noise_decay", "from_array", "from_clip", "growing_mu", "influence", "join", "linear",
    "piecewise_constant", "polynomial_noise_decay", "progress", "sensitivity_decay", "step_noise_decay",
    "time_noise_decay",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)


# Curves of which only the shape matters: for these "constant" is a complete description.
_SHAPES = ("privacy", "noise", "influence", "each")


def evaluate(name: str, curve: CurveOrValues | str, steps: int) -> Float[np.ndarray, " steps"]:
    """The curve at every step, checked: positive, finite, one value a step. A number is the same at every step.

    Raises:
        InvalidType: neither a function, a number nor an array.
        InvalidValue: a value that is not positive, or the wrong length.

    >>> evaluate("clip", linear(1.0, 0.5), 2)
    array([0.75, 0.5 ])
    """
    found = as_curve(name, curve)(progress(steps))
    hint = "It must stay above 0 up to the last step, where u is 1"
    if np.ndim(found) != 1:
        hint = "A curve gives one value for each entry of an array of progress"
    return check_array(name, found, above=0, length=steps, hint=hint)


def _called(curve: Curve, u: Float[np.ndarray, " steps"]) -> Float[np.ndarray, " steps"]:
    """The curve at every ``u``; of a function of one number (``math.cos``, ``if u < 0.8``), one by one."""
    try:
        found = curve(u)
    except DecrescendoError:
        raise
    except (TypeError, ValueError) as error:
        try:
            return np.array([float(cast("Any", curve)(float(one))) for one in u])
        except (TypeError, ValueError, AttributeError, LookupError):
            raise error from None
    return np.array([found]) if u.size == 1 and np.ndim(found) == 0 else found


def as_curve(name: str, curve: object) -> Curve:
    """A curve from itself, from a number (the same at every step) or from an array of values."""
    if callable(curve):
        return partial(_called, cast(Curve, curve))
    if hasattr(curve, "detach"):  # a tensor of torch's, which is not loaded for this
        curve = np.asarray(cast("Any", curve).detach().cpu())
    if isinstance(curve, np.ndarray) and not curve.ndim:
        curve = cast("object", curve.item())
    if isinstance(curve, Real) and not isinstance(curve, bool):
        return _flat(name, curve)
    if isinstance(curve, str) and curve == "constant" and name in _SHAPES:
        return _flat(name, 1.0)
    if isinstance(curve, (str, bytes)) or not isinstance(curve, (Sequence, np.ndarray)):
        raise InvalidType(
            f"{name} must be a curve (a function of progress), a number or an array, got "
            + (f"{name}={curve!r}" if isinstance(curve, str) else type(curve).__name__)
            + _how_to_say(curve)
        )
    return _as_they_are(name, cast(Sequence[float], curve))


def _flat(name: str, value: object) -> Curve:
    level = check_real(name, value, above=0)
    return lambda u: np.full(u.shape, level)


def _how_to_say(curve: object) -> str:
    """The remedy if a text was given as a curve: the call that makes the curve of that name."""
    asked = curve.replace("-", "_") if isinstance(curve, str) else ""
    if asked not in __all__ or asked in ("Curve", "CurveOrValues", "evaluate", "progress", "constant"):
        return ". Write the number itself for a constant, or curves.exponential(start, end)"
    return f". Write curves.{asked}({', '.join(inspect.signature(globals()[asked]).parameters)})"


def constant(value: float) -> Curve:
    """value at every step; ``value`` > 0. Du Eq. (6).

    >>> constant(2.0)(progress(3))
    array([2., 2., 2.])
    """
    return _flat("value", value)


def linear(start: float, end: float) -> Curve:
    """start + (end - start) u; both > 0; ``end`` is reached at the last step.

    >>> linear(2.0, 1.0)(progress(2))
    array([1.5, 1. ])
    """
    a, b = check_real("start", start, above=0), check_real("end", end, above=0)
    return lambda u: a + (b - a) * u


def exponential(start: float, end: float) -> Curve:
    """start (end/start)^u; both > 0.

    >>> exponential(4.0, 1.0)(progress(2))
    array([2., 1.])
    """
    a, b = check_real("start", start, above=0), check_real("end", end, above=0)
    return lambda u: a * (b / a) ** u


def cosine(start: float, end: float) -> Curve:
    """end + (start - end)(1 + cos(pi u))/2; both > 0.

    >>> cosine(3.0, 1.0)(progress(2))
    array([2., 1.])
    """
    a, b = check_real("start", start, above=0), check_real("end", end, above=0)
    return lambda u: b + (a - b) * (1 + np.cos(math.pi * u)) / 2


def piecewise_constant(levels: Sequence[float], boundaries: Sequence[float]) -> Curve:
    """``levels[i]`` up to and including progress ``boundaries[i]``, the last level to the end.

    Args:
        levels: > 0, one more than boundaries.
        boundaries: ascending, inside (0, 1).

    >>> piecewise_constant([1.0, 2.0], [0.5])(progress(4))
    array([1., 1., 2., 2.])
    """
    return join([constant(level) for level in levels], boundaries)


def join(curves: Sequence[Curve | float], boundaries: Sequence[float]) -> Curve:
    """Curves one after another: ``curves[i]`` up to and including progress ``boundaries[i]``, each from its own u = 0.
    A number is a constant.

    >>> join([1.0, linear(1.0, 3.0)], [0.5])(progress(4))
    array([1., 1., 2., 3.])
    """
    edges = check_array("boundaries", boundaries, above=0)
    if len(curves) != edges.size + 1:
        raise InvalidValue(
            f"there must be one curve more than boundaries, got {len(curves)} curves and {edges.size} boundaries"
        )
    if np.any(edges >= 1) or np.any(np.diff(edges) <= 0):
        raise InvalidValue(f"boundaries must ascend inside (0, 1), got boundaries={edges.tolist()}")
    ends = np.r_[0.0, edges, 1.0]
    pieces = [as_curve(f"curves[{i}]", curve) for i, curve in enumerate(curves)]

    def joined(u: Float[np.ndarray, " steps"]) -> Float[np.ndarray, " steps"]:
        # The tolerance keeps t/T on the left of a boundary it equals but for rounding.
        piece = np.searchsorted(edges, u - 1e-12, side="left")
        result = np.empty(u.shape)
        for i, curve in enumerate(pieces):
            inside = piece == i
            if inside.any():
                result[inside] = curve((u[inside] - ends[i]) / (ends[i + 1] - ends[i]))
        return result

    return joined


def from_array(array: Sequence[float] | Float[np.ndarray, " steps"]) -> Curve:
    """The given values as they are, one a step; all > 0. A run of another length is refused.

    >>> from_array([3.0, 2.0, 1.0])(progress(3))
    array([3., 2., 1.])
    """
    return _as_they_are("values", array)


def _as_they_are(name: str, array: Sequence[float] | Float[np.ndarray, " steps"]) -> Curve:
    given = check_array(name, array, above=0)

    def as_they_are(u: Float[np.ndarray, " steps"]) -> Float[np.ndarray, " steps"]:
        if u.size != given.size:
            raise InvalidValue(f"{name} must have one value a step ({u.size}), got {given.size} values")
        return given.copy()

    return as_they_are


def growing_mu(rho_mu: float) -> Curve:
    """Privacy curve rho_mu^(t/T), Du Eq. (8)-(11); ``rho_mu`` > 0, below 1 mu falls.

    >>> growing_mu(4.0)(progress(2))
    array([2., 4.])
    """
    rho = check_real("rho_mu", rho_mu, above=0)
    return lambda u: rho**u


def sensitivity_decay(clip_0: float, rho_c: float) -> Curve:
    """Clip curve C_0 rho_c^(-t/T), Du Eq. (12)-(14); both > 0, with ``rho_c`` below 1 the clip norm grows.

    >>> sensitivity_decay(2.0, rho_c=4.0)(progress(2))
    array([1. , 0.5])
    """
    level, rho = check_real("clip_0", clip_0, above=0), check_real("rho_c", rho_c, above=0)
    return lambda u: level * rho**-u


def from_clip(clip: CurveOrValues) -> Curve:
    """Privacy curve sqrt(C_t): optimal for a given clip sequence in the small-mu regime, Du Eq. (52)-(55).

    >>> from_clip(sensitivity_decay(1.0, rho_c=16.0))(progress(2))
    array([0.5 , 0.25])
    """
    return curvature(clip, constant(1.0))


def curvature(clip: CurveOrValues, influence: CurveOrValues) -> Curve:
    """Privacy curve sqrt(C_t) Q_t^(1/4) for influences Q_t of the noise variance of the sum, Du Eq. (59)-(62).

    Their section 5 prints the noise as sqrt(C_t) Q_t^(1/4); Eq. (61), sqrt(C_t)/Q_t^(1/4), is right.

    >>> curvature(constant(4.0), from_array([1.0, 16.0]))(progress(2))
    array([2., 4.])
    """
    c, q = as_curve("clip", clip), as_curve("influence", influence)
    return lambda u: np.sqrt(c(u)) * q(u) ** 0.25


def influence(each: CurveOrValues) -> Curve:
    """Privacy curve q_t^(1/4) for influences q_t on z_t^2: Hong Lemma 4.3, z_t^2 proportional to q_t^(-1/2).

    >>> influence([1.0, 16.0, 81.0])(progress(3))
    array([1., 2., 3.])
    """
    q = as_curve("each", each)
    return lambda u: q(u) ** 0.25
