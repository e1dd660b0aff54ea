"""What the page's controls say, as a plan, and as the code that makes the same plan."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from decrescendo.accounting import Budget, Pld, Unit
from decrescendo.accounting.budget import check_unit
from decrescendo.errors import InvalidType, InvalidValue, check_array, check_integer, check_real
from decrescendo.plans import Curve, Plan, PoissonSampling, calibrate, curves
from decrescendo.plans.passes import usual_cap
from decrescendo.plans.schedule import check_steps

HAND = 5  # sliders of a curve drawn by hand, evenly spaced from start to end
STEPS = 100_000  # of a plan that is made while somebody waits


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a function of `plans.curves`: what it makes, and how it is written.

    >>> Call("sensitivity_decay", (1.5, 3.0)).code()
    'dc.curves.sensitivity_decay(1.5, 3.0)'
    """

    name: str
    arguments: tuple[Any, ...]

    def curve(self) -> Curve:
        """The curve."""
        return getattr(curves, self.name)(*(_made(argument) for argument in self.arguments))

    def code(self) -> str:
        """The curve as Python."""
        return f"dc.curves.{self.name}({', '.join(_written(argument) for argument in self.arguments)})"


def _made(argument: Any) -> Any:
    if isinstance(argument, Call):
        return argument.curve()
    if isinstance(argument, tuple):
        return [_made(part) for part in argument]
    return argument


def _written(argument: Any) -> str:
    if isinstance(argument, tuple):
        return f"[{', '.join(_written(part) for part in argument)}]"
    return argument.code() if isinstance(argument, Call) else repr(argument)


@dataclass(frozen=True, slots=True)
class Settings:
    """A budget, a sampling, a number of steps and the curves; ``batch``: of expected batch sizes, where they move."""

    budget: Budget
    sampling: PoissonSampling
    steps: int
    privacy: Call
    clip: Call
    batch: Call | None = None

    def plan(self, *, quick: bool = False) -> Plan:
        """The calibrated plan; ``quick``: by an accountant whose bracket is a percent wide, three times faster."""
        return calibrate(
            self.budget, self.sampling, steps=self.steps, privacy=self.privacy.curve(), clip=self.clip.curve(),
            batch=None if self.batch is None else self.batch.curve(), accountant=Pld(rtol=1e-2) if quick else None,
        )  # fmt: skip

    def code(self) -> str:
        """Python that makes the plan."""
        budget, sampling = self.budget, self.sampling
        several = budget.examples_per_person
        people = f", examples_per_person={several}" if several > 1 else ""
        cap = sampling.max_batch_size
        cut = "" if cap is None else f", max_batch_size={cap}"
        moving = "" if self.batch is None else f"\n    batch={self.batch.code()},  # expected B_t"
        return f"""dc.calibrate(
    dc.Budget(epsilon={budget.epsilon!r}, delta={budget.delta!r}, unit=dc.Unit.{budget.unit.name}{people}),
    dc.PoissonSampling(
        dataset_size={sampling.dataset_size}, expected_batch_size={sampling.expected_batch_size!r}{cut}
    ),
    steps={self.steps},
    privacy={self.privacy.code()},  # relative 1/z_t: its shape; calibrate finds its height
    clip={self.clip.code()},  # C_t{moving}
)"""


def read(form: Mapping[str, Any]) -> Settings:
    """The settings that a form says.

    Args:
        form: ``epsilon``, ``delta``, ``unit``, ``dataset_size``, ``batch``, ``steps``; ``noise`` and ``clip``, each
            with a ``shape`` and what belongs to it: ``fall`` (start over end), ``levels`` (one a slider), and of the
            clip norm its ``start``; and ``batches``, with a ``shape`` and the ``end`` that batch sizes move to, where
            they do. If need be ``examples_per_person``, and ``cap``, with a ``shape`` (any, auto, hand) and the
            ``size`` that batches are truncated to.

    Raises:
        InvalidValue, InvalidType: named by the control that says it.

    >>> form = {"epsilon": 1, "delta": 1e-5, "unit": "example", "dataset_size": 1000, "batch": 50, "steps": 20}
    >>> shapes = {"noise": {"shape": "optimal"}, "clip": {"shape": "exponential", "start": 1, "fall": 2}}
    >>> found = read(form | shapes | {"batches": {"shape": "constant"}})
    >>> print(found.privacy.code())
    dc.curves.from_clip(dc.curves.sensitivity_decay(1.0, 2.0))
    """
    try:
        clip = _clip(_part(form, "clip"))
        rows = check_integer("dataset_size", form["dataset_size"], at_least=1)
        unit, steps = check_unit(form["unit"]), check_steps(form["steps"])
        if steps > STEPS:
            raise InvalidValue(
                f"steps must be <= {STEPS} in the studio, got steps={steps}. decrescendo plan makes longer plans, and "
                "the studio opens their files"
            )
        several = form["examples_per_person"] if unit is Unit.PERSON else 1
        budget = Budget(_real(form, "epsilon"), _real(form, "delta"), unit, several)
        whole = PoissonSampling(rows, _real(form, "batch"))
        batches = _batches(_part(form, "batches"), whole.expected_batch_size, rows)
        cap = _cap(_part(form, "cap"), budget, whole, steps, batches) if "cap" in form else None
        sampling = PoissonSampling(rows, whole.expected_batch_size, cap)
        return Settings(budget, sampling, steps, _privacy(_part(form, "noise"), clip), clip, batches)
    except KeyError as missing:
        raise InvalidValue(f"{missing.args[0]} must be given, got a form without it") from None


def _real(form: Mapping[str, Any], name: str) -> float:
    return check_real(name, form[name], above=0)


def _part(form: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if not isinstance(form[name], dict):
        raise InvalidType(f"{name} must be an object with a shape, got {type(form[name]).__name__}")
    return form[name]


def _privacy(part: Mapping[str, Any], clip: Call) -> Call:
    shape = part["shape"]
    if shape == "constant":
        return Call("constant", (1.0,))
    if shape == "optimal":
        return Call("from_clip", (clip,))
    if shape == "hand":
        return _by_hand("noise", part, power=-1)
    fall = check_real("noise fall", part["fall"], above=0)
    known = {
        "exponential": Call("growing_mu", (fall,)),
        "linear": Call("linear", (1.0, fall)),
        "cosine": Call("cosine", (1.0, fall)),
    }
    return _known("noise", shape, known, "constant", "optimal", "hand")


def _clip(part: Mapping[str, Any]) -> Call:
    shape = part["shape"]
    if shape == "hand":
        return _by_hand("clip", part, power=1)
    start = check_real("clip norm", part["start"], above=0)
    if shape == "constant":
        return Call("constant", (start,))
    fall = check_real("clip fall", part["fall"], above=0)
    known = {
        "exponential": Call("sensitivity_decay", (start, fall)),
        "linear": Call("linear", (start, start / fall)),
        "cosine": Call("cosine", (start, start / fall)),
    }
    return _known("clip", shape, known, "constant", "hand")


def _batches(part: Mapping[str, Any], start: float, rows: int) -> Call | None:
    shape = part["shape"]
    if shape == "constant":
        return None
    end = check_real("batch end", part["end"], above=0, at_most=rows)
    known = {"exponential": Call("exponential", (start, end)), "linear": Call("linear", (start, end))}
    return _known("batches", shape, known, "constant")


def _cap(
    part: Mapping[str, Any], budget: Budget, sampling: PoissonSampling, steps: int, batches: Call | None
) -> int | None:
    shape = part["shape"]
    if shape == "any":
        return None
    if shape == "hand":
        return check_integer("max_batch_size", part["size"], at_least=1)
    if shape != "auto":
        raise InvalidValue(f"cap shape must be one of any, auto, hand, got shape={shape!r}")
    return usual_cap(sampling, steps, budget, None if batches is None else batches.curve())


def _known(name: str, shape: object, known: Mapping[str, Call], *others: str) -> Call:
    if not isinstance(shape, str) or shape not in known:
        raise InvalidValue(f"{name} shape must be one of {', '.join([*others, *known])}, got shape={shape!r}")
    return known[shape]


def _by_hand(name: str, part: Mapping[str, Any], *, power: int) -> Call:
    """Exponential pieces between levels, to the ``power``."""
    levels = check_array(f"{name} levels", part["levels"], above=0)
    if levels.size != HAND:
        raise InvalidValue(f"{name} levels must be {HAND}, got {levels.size}")
    at: list[float] = [float(f"{level:.4g}") for level in (levels**power).tolist()]
    pieces = tuple(Call("exponential", pair) for pair in pairwise(at))
    return Call("join", (pieces, tuple(i / (HAND - 1) for i in range(1, HAND - 1))))
