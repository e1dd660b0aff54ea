"""`ClipController`: a clip norm that follows the telemetry of gradient norms, by one of three rules."""

import math
from dataclasses import dataclass
from typing import Literal, final

from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import assumed
from decrescendo.base.limits import SMALLEST_CLIP_NORM
from decrescendo.errors import InvalidValue, check_instance, check_real
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import Sampling
from decrescendo.training.steering.reading import Reading

Rule = Literal["quantile", "clipped", "error"]
RULES: tuple[Rule, ...] = ("quantile", "clipped", "error")
# The factor stays between 1 / _MOST and _MOST: sums of noise alone must not move it without limit.
_MOST = 1e6
# Shares of norms are taken to be between _LEAST and 1 - _LEAST.
_LEAST = 1e-3
OWN_POLICY = assumed("own-policy")


@final
@dataclass(frozen=True, slots=True)
class ClipController:
    """A plan whose clip norms C_t are multiplied by a factor that follows the released gradient norms.

    Post-processing: the factor of a step depends on earlier releases alone, and with the plan's z_t a clip norm does
    not affect privacy. The certificate of the plan stays as it is, to the last digit. Each C_t of the plan is
    multiplied by the factor, which begins at 1; after each step log(factor) moves by ``rate`` times

    ``quantile``
        target - b, with b the released share of examples that are not clipped (Andrew et al. 2021, who pay for b):
        C_t goes to the ``target`` quantile of the norms.
    ``clipped``
        the same with 1 - ``target``: C_t goes to where this share of the examples is clipped.
    ``error``
        (A - N) / (A + N): C_t goes to where bias and noise of the mean gradient have the least sum of squares. With d
        coordinates N = d z^2 C^2 / B^2 is the squared noise (with correlated noise: about what later steps leave of
        it). A = C s E is what a larger C takes off the squared bias,
        with s the share clipped and E = s C (1 - 1/K) / log(r/s) the mean length cut off, if norms beyond C, which are
        not released, fall off as those between C / K and C do (r is the share beyond the middle of the first of K
        bins); clipped gradients are assumed to point one way, which bounds the bias.

    Args:
        plan: from `calibrate`; noise, batches and clip norms may move.
        rule: one of the three.
        target: in (0, 1), for ``quantile`` and ``clipped``.
        rate: > 0, at most 1: how fast C_t follows.
        rescale_to_unit_norm: divide the noisy mean gradient by the factor and by the plan's first clip norm C_1. The
            noise in it is then z_t C_t / (C_1 B) with the plan's C_t: the factor decides what is clipped, not how long
            the steps are, and a good learning rate does not depend on C_1, but for the steps until C_t has found the
            norms. Without it a smaller factor makes shorter steps as well: with SGD, ``error`` can shrink both until
            nothing is learned. Not in federated rounds, whose updates have their own length.
        min_clip_norm: >= 0: C_t does not fall below it, unless the plan's own C_t is below it. Where most examples are
            learned, their gradients are nearly 0, and ``error`` would follow them: an example with a loss of 0.01
            would count as much as one with a loss of 1. For losses of classification 0.01 does (the gamma of automatic
            clipping).
        max_clip_norm: C_t does not rise above it, unless the plan's own C_t is above it. Nodes of Flower must be told
            one, and refuse to take part if it is above their own limit.

    Raises:
        InvalidType: ``rescale_to_unit_norm`` is not a bool.
        InvalidValue: a plan without noise or with an infinite clip norm, or a number outside its range.

    >>> from decrescendo import Budget, PoissonSampling, calibrate, curves
    >>> plan = calibrate(Budget(2.0, 1e-3), PoissonSampling(500, 50), steps=9, privacy=curves.growing_mu(2),
    ...                  clip=curves.sensitivity_decay(1.0, 2.0))
    >>> ClipController(plan, "clipped", target=0.3).steps
    9
    """

    plan: Plan
    rule: Rule = "quantile"
    target: float = 0.5
    rate: float = 0.2
    rescale_to_unit_norm: bool = False
    min_clip_norm: float = 0.0
    max_clip_norm: float = math.inf

    def __post_init__(self) -> None:
        check_instance("plan", self.plan, Plan, "calibrate makes one")
        if self.rule not in RULES:
            raise InvalidValue(f"rule must be one of {', '.join(RULES)}, got rule={self.rule!r}")
        check_real("target", self.target, above=0, below=1)
        check_real("rate", self.rate, above=0, at_most=1)
        check_real("min_clip_norm", self.min_clip_norm, at_least=0)
        if self.max_clip_norm != math.inf:
            check_real("max_clip_norm", self.max_clip_norm, at_least=max(self.min_clip_norm, SMALLEST_CLIP_NORM))
        check_instance("rescale_to_unit_norm", self.rescale_to_unit_norm, bool)
        if not math.isfinite(self.plan.clip_norm.max()) or not self.plan.noise_multiplier.min() > 0:
            raise InvalidValue(
                f"a plan for ClipController must have noise at every step and finite clip norms, got {self.plan}. "
                "Without noise the norms of each batch would be published"
            )

    @property
    def sampling(self) -> Sampling:
        """The plan's sampling."""
        return self.plan.sampling

    @property
    def steps(self) -> int:
        """The plan's number of steps."""
        return self.plan.steps

    @property
    def settings(self) -> str:
        """All but the plan, as text; what is left at its default since the first version is not in it."""
        more = {"rescale_to_unit_norm": False, "min_clip_norm": 0.0, "max_clip_norm": math.inf}
        also = [f" {name}={getattr(self, name)!r}" for name, usual in more.items() if getattr(self, name) != usual]
        return f"{self.rule} {self.target!r} {self.rate!r}" + "".join(also)

    def next_factor(self, factor: float, reading: Reading, coordinates: int) -> float:
        """The factor of the next step, from ``factor`` and ``reading`` of this one.

        Args:
            factor: > 0.
            reading: the telemetry, with norms.
            coordinates: d, the number of trained coordinates.
        """
        within = min(max(reading.norms[-1].value, 0.0), 1.0)
        if self.rule == "error":
            moved = _balance(reading, coordinates)
        else:
            moved = (self.target if self.rule == "quantile" else 1 - self.target) - within
        return self.limited(factor * math.exp(self.rate * moved), reading.step)

    def limited(self, factor: float, taken: int) -> float:
        """``factor``, or the nearest that the step after ``taken`` steps allows."""
        # No C_t of the plan times the factor may be so small that the engine refuses it.
        least = max(1 / _MOST, 2 * SMALLEST_CLIP_NORM / float(self.plan.clip_norm.min()))
        following = float(self.plan.clip_norm[min(taken, self.steps - 1)])
        least, most = max(least, self.min_clip_norm / following), min(_MOST, self.max_clip_norm / following)
        return min(max(factor, min(least, 1.0)), max(most, 1.0))


def _balance(reading: Reading, coordinates: int) -> float:
    """(A - N) / (A + N) of the rule ``error``, from A / C^2 and N / C^2."""
    noise = coordinates * (reading.noise_multiplier / reading.expected_batch_size) ** 2
    # The shares of norms beyond the middles of the first bin and of the last. Where they cannot be told apart, nearly
    # all norms are either clipped or near 0; of the latter the fall since 0 tells.
    bins = len(reading.norms)
    beyond, clipped = (min(max(1 - reading.norms[k].value, _LEAST), 1 - _LEAST) for k in (0, -1))
    fall = max(math.log(beyond / clipped), -math.log(clipped) / bins)
    bias = clipped**2 * (1 - 1 / bins) / fall
    return (bias - noise) / (bias + noise)


def assumed_of_controller(controller: ClipController | None) -> tuple[Assumption, ...]:
    """What is assumed of a class of the user's own; nothing of this library's."""
    return () if controller is None or type(controller) is ClipController else (OWN_POLICY,)
