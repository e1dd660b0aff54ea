"""What a search may move, as data: a range or a few values a setting, and how drawn values become a spec."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decrescendo import training
from decrescendo.errors import InvalidValue, check_real
from decrescendo.training import Among, Between
from decrescendo_papers.experiments.spec import Spec
from decrescendo_papers.experiments.table import base_spec
from decrescendo_papers.experiments.tasks import Task

# What stands for another setting. The stride is learning_rate * clip / (1 - momentum): how far the weights move in a
# step whose gradients are all clipped. Good strides hardly depend on clip norm and momentum; good rates do.
STANDS_FOR = {"epochs": "steps", "stride": "learning_rate"}

# Said by the search itself, never searched over.
_DECIDED = {
    "task", "epsilon", "accountant", "seed", "stand_in", "trace", "noise", "noise_decay"
}  # fmt: skip
_TYPES: dict[str, Any] = {
    **{field.name: field.type for field in dataclasses.fields(Spec) if field.name not in _DECIDED},
    **dict.fromkeys(STANDS_FOR, float),
}
SETTINGS = tuple(_TYPES)

# Which methods read these; for others they are left out, so that they are no noise for the optimiser.
READ_BY = {
    "rho_mu": ("growing-mu", "dynamic", "exponential-decay", "time-decay", "step-decay", "polynomial-decay"),
    "rho_c": ("sensitivity-decay", "dynamic", "optimal"),
}

Dimension = Between | Among
Value = float | int | str
Choose = Callable[[str, Dimension], Value]


@dataclass(frozen=True, slots=True)
class Space:
    """Settings that move, and settings that are fixed; what is in neither is the task's own.

    Args:
        moving: from a name of `SETTINGS` to what it may be.
        fixed: from a name of `SETTINGS` to its value.

    Raises:
        InvalidValue: an unknown setting, one that is both moving and fixed, or one beside what stands for it.

    >>> space = Space({"clip": Between(0.5, 2.0, log=True)}, {"method": "constant"})
    >>> space.spec("mnist", 0.4, {"clip": 1.0}).clip
    1.0
    """

    moving: Mapping[str, Dimension]
    fixed: Mapping[str, Value] = field(default_factory=dict[str, Value])

    def __post_init__(self) -> None:
        names = [*self.moving, *self.fixed]
        for name in names:
            if name not in SETTINGS:
                raise InvalidValue(f"a setting must be one of {', '.join(SETTINGS)}, got {name!r}")
            if name in self.moving and name in self.fixed:
                raise InvalidValue(f"a setting must be moving or fixed, got both for {name}")
            if STANDS_FOR.get(name) in names:
                raise InvalidValue(f"{name} stands for {STANDS_FOR[name]}, got both. Leave out one of them")
        if "delta" in self.moving:
            raise InvalidValue("delta must be fixed, got a range: it is a promise and no setting to search over")
        if not self.moving:
            raise InvalidValue("a search must move at least one setting, got none")

    def choose(self, choose: Choose) -> dict[str, Value]:
        """A value for each moving setting that the method reads; ``choose`` is asked for one after the other."""
        found: dict[str, Value] = {}
        # The method first: it decides what else is asked for.
        for name in sorted(self.moving, key=lambda name: name != "method"):
            method = found.get("method", self.fixed.get("method", "constant"))
            if name not in READ_BY or method in READ_BY[name]:
                found[name] = choose(name, self.moving[name])
        return found

    def draw(self, rng: np.random.Generator) -> dict[str, Value]:
        """Settings at random, each independently of the others."""
        return self.choose(lambda _, dimension: dimension.draw(rng))

    def spec(
        self,
        task: str,
        epsilon: float,
        values: Mapping[str, Value],
        *,
        stand_in: str = "",
        accountant: str = "pld",
    ) -> Spec:
        """The run with these values for what moves, certified unless another accountant is named.

        Raises:
            InvalidValue, InvalidType: a value outside the range of its setting.
        """
        settings: dict[str, Any] = {**self.fixed, **values, "stand_in": stand_in}
        stride = settings.pop("stride", None)
        method = settings.get("method", "constant")
        settings = {name: value for name, value in settings.items() if method in READ_BY.get(name, (method,))}
        spec = base_spec(task, epsilon=epsilon, accountant=accountant, settings=settings)
        if stride is None:
            return spec
        inertia = check_real("momentum", spec.momentum, at_least=0, below=1)
        rate = check_real("stride", stride, above=0) * (1 - inertia) / spec.clip
        return dataclasses.replace(spec, learning_rate=rate)

    def corners(self) -> Iterator[dict[str, Value]]:
        """Settings at the ends of every range, one range at a time: to find what is wrong before the first trial."""
        start = self.choose(lambda _, dimension: dimension.ends()[0])
        yield start
        for name, dimension in self.moving.items():
            for end in dimension.ends()[1:]:
                yield {**start, name: end}

    def changed(self, moving: Mapping[str, Dimension], fixed: Mapping[str, Value]) -> "Space":
        """The same with more of both; what stands for a setting gives way to it, and the other way round."""
        given = {*moving, *fixed}
        gone = given | {other for pair in STANDS_FOR.items() if given & set(pair) for other in pair}
        kept = {name: dimension for name, dimension in self.moving.items() if name not in gone}
        held = {name: value for name, value in self.fixed.items() if name not in gone}
        return Space({**kept, **moving}, {**held, **fixed})

    def describe(self) -> dict[str, str]:
        """As text, for a file and for people."""
        moving = {name: str(dimension) for name, dimension in self.moving.items()}
        return moving | {name: _shown(value) for name, value in self.fixed.items()}


_RHO_C = Between(1.2, 8.0, log=True)


def default_space(task: Task) -> Space:
    """Where a search for ``task`` begins: batch and epochs, clip norm, rate and its decay, momentum, averaging, method.

    >>> from decrescendo_papers.experiments.tasks import find_task
    >>> str(default_space(find_task("mnist")).moving["batch"])
    '250,500,1000,2000,4000'
    """
    batches = (task.batch * 2**power for power in range(5))
    moving: dict[str, Dimension] = {
        "method": Among(("constant", "dynamic", "sensitivity-decay", "optimal")),
        "batch": Among(tuple(batch for batch in batches if batch <= task.rows / 2) or (task.batch,)),
        "epochs": Among((task.epochs / 2, task.epochs, 2.0 * task.epochs)),
        "rho_mu": Between(1.05, 2.0),
        "rho_c": _RHO_C,
    }
    return Space({**moving, **_free(task)})


def starting_values(space: Space, task: Task) -> dict[str, Value]:
    """The task's own settings, as far as the space has them: a search tries them first."""
    start: dict[str, Value] = {
        "method": "constant", "batch": task.batch, "epochs": task.epochs, "steps": task.steps, "clip": task.clip,
        "learning_rate": task.learning_rate, "stride": task.learning_rate * task.clip, "momentum": 0.0,
        "lr_decay": "none", "averaging": 0.0, "model": "paper", "optimizer": task.optimizer,
    }  # fmt: skip
    return {name: value for name, value in start.items() if name in space.moving and space.moving[name].has(value)}


def _free(task: Task) -> dict[str, Dimension]:
    shared: dict[str, Dimension] = {
        "clip": Between(task.clip / 8, task.clip * 2, log=True),
        "lr_decay": Among(("none", "linear", "cosine")),
        "averaging": Among((0.0, 0.9, 0.99)),
    }
    if task.optimizer != "sgd":  # Adam divides by the length of the gradient: clip norm and rate do not mix
        rate = Between(task.learning_rate / 10, task.learning_rate * 5, log=True)
        return {**shared, "learning_rate": rate}
    stride = task.learning_rate * task.clip
    return {
        **shared,
        "stride": Between(stride / 4, stride * 16, log=True),  # large batches have less noise and take larger ones
        "momentum": Among((0.0, 0.5, 0.9)),
    }


parse_fixed = functools.partial(training.parse_fixed, types=_TYPES)
parse_moving = functools.partial(training.parse_moving, types=_TYPES)


def _shown(value: Value) -> str:
    return value if isinstance(value, str) else f"{value:.12g}"
