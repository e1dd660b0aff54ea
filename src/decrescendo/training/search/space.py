"""`Space`: the settings that a search varies, each with a range or a list of values."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decrescendo.errors import InvalidValue, check_real
from decrescendo.training.search.settings import NAMES, RHO_MU, TYPES, Settings
from decrescendo.training.tasks.task import Task

# The stride is learning_rate * clip / (1 - momentum): how far the weights move in a
# step whose gradients are all clipped. Good strides hardly depend on clip norm and momentum; good rates do.
STANDS_FOR = {"epochs": "steps", "stride": "learning_rate"}

# The schedules that use these settings; with other schedules a search leaves them out.
READ_BY = {
    "rho_mu": ("growing-mu", "dynamic", "exponential-decay", "time-decay", "step-decay", "polynomial-decay"),
    "rho_c": ("sensitivity-decay", "dynamic", "optimal"),
}

Value = float | int | str


@dataclass(frozen=True, slots=True)
class Between:
    """A number from ``low`` to ``high``, uniform; uniform in the logarithm if ``log``.

    >>> Between(1.0, 4.0, log=True).draw(np.random.default_rng(0))
    2.418...
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", check_real("low", self.low, above=0 if self.log else None))
        object.__setattr__(self, "high", check_real("high", self.high, above=self.low))

    def draw(self, rng: np.random.Generator) -> float:
        """One value at random."""
        if not self.log:
            return float(rng.uniform(self.low, self.high))
        drawn = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        return min(max(drawn, self.low), self.high)

    def has(self, value: Value) -> bool:
        """Whether ``value`` is in the range."""
        return not isinstance(value, str) and self.low <= value <= self.high

    def ends(self) -> tuple[Value, ...]:
        """Both ends of the range, to check a space with."""
        return self.low, self.high

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}" + (":log" if self.log else "")


@dataclass(frozen=True, slots=True)
class Among:
    """One of several values, with equal probabilities.

    >>> str(Among((0.0, 0.5, 0.9)))
    '0,0.5,0.9'
    """

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if len(self.values) < 1 or len(set(self.values)) < len(self.values):
            raise InvalidValue(f"values must be at least one and all different, got {self.values}")

    def draw(self, rng: np.random.Generator) -> Value:
        """One value at random."""
        return self.values[int(rng.integers(len(self.values)))]

    def has(self, value: Value) -> bool:
        """Whether ``value`` is one of the values."""
        return value in self.values

    def ends(self) -> tuple[Value, ...]:
        """All of the values."""
        return self.values

    def __str__(self) -> str:
        return ",".join(shown(value) for value in self.values)


Dimension = Between | Among
Choose = Callable[[str, Dimension], Value]


@dataclass(frozen=True, slots=True)
class Space:
    """Settings to vary and settings to fix; all others have the task's values.

    Args:
        moving: from a name of `NAMES` to its range or list of values.
        fixed: from a name of `NAMES` to its value.

    Raises:
        InvalidValue: an unknown setting, one that is both moving and fixed, or both of a pair in `STANDS_FOR`.

    >>> space = Space({"clip": Between(0.5, 2.0, log=True)}, {"schedule": "constant"})
    >>> space.draw(np.random.default_rng(0))
    {'clip': 1.209...}
    """

    moving: Mapping[str, Dimension]
    fixed: Mapping[str, Value] = field(default_factory=dict[str, Value])

    def __post_init__(self) -> None:
        names = [*self.moving, *self.fixed]
        for name in names:
            if name not in NAMES:
                raise InvalidValue(f"a setting must be one of {', '.join(NAMES)}, got {name!r}")
            if name in self.moving and name in self.fixed:
                raise InvalidValue(f"a setting must be moving or fixed, got both for {name}")
            if STANDS_FOR.get(name) in names:
                raise InvalidValue(f"{name} stands for {STANDS_FOR[name]}, got both. Leave out one of them")
        if not self.moving:
            raise InvalidValue("a search must move at least one setting, got none")

    def choose(self, choose: Choose) -> dict[str, Value]:
        """A value for each varied setting that the schedule uses; ``choose`` is called for one after the
        other."""
        found: dict[str, Value] = {}
        # The schedule first: it decides which other settings are used.
        for name in sorted(self.moving, key=lambda name: name != "schedule"):
            schedule = found.get("schedule", self.fixed.get("schedule", "dynamic"))
            if name not in READ_BY or schedule in READ_BY[name]:
                found[name] = choose(name, self.moving[name])
        return found

    def draw(self, rng: np.random.Generator) -> dict[str, Value]:
        """Random settings, each drawn independently."""
        return self.choose(lambda _, dimension: dimension.draw(rng))

    def settings(self, task: Task, values: Mapping[str, Value]) -> Settings:
        """The settings of a run on ``task`` with these values of the varied settings.

        Raises:
            InvalidValue, InvalidType: a value outside the range of its setting.
        """
        given: dict[str, Value] = {**self.fixed, **values}
        schedule = given.get("schedule", "dynamic")
        read = {name: value for name, value in given.items() if schedule in READ_BY.get(name, (schedule,))}
        return Settings.of(task, read)

    def corners(self) -> Iterator[dict[str, Value]]:
        """Settings at the ends of every range, one range at a time, to find errors before the first trial."""
        start = self.choose(lambda _, dimension: dimension.ends()[0])
        yield start
        for name, dimension in self.moving.items():
            for end in dimension.ends()[1:]:
                yield {**start, name: end}

    def pairs(self) -> Iterator[dict[str, Value]]:
        """As `corners`, with two ranges at a time: some values of one setting are invalid with some of
        another."""
        start = self.choose(lambda _, dimension: dimension.ends()[0])
        for (one, first), (other, second) in itertools.combinations(self.moving.items(), 2):
            for ends in itertools.product(first.ends(), second.ends()):
                yield {**start, one: ends[0], other: ends[1]}

    def changed(self, moving: Mapping[str, Dimension], fixed: Mapping[str, Value]) -> "Space":
        """A copy with these moving and fixed settings, in place of earlier ones and of those that stand for
        the same."""
        given = {*moving, *fixed}
        gone = given | {other for pair in STANDS_FOR.items() if given & set(pair) for other in pair}
        kept = {name: dimension for name, dimension in self.moving.items() if name not in gone}
        held = {name: value for name, value in self.fixed.items() if name not in gone}
        return Space({**kept, **moving}, {**held, **fixed})

    def describe(self) -> dict[str, str]:
        """The space as text, for a file and for people."""
        moving = {name: str(dimension) for name, dimension in self.moving.items()}
        return moving | {name: shown(value) for name, value in self.fixed.items()}


_RHO_C = Between(1.2, 8.0, log=True)


def default_space(task: Task) -> Space:
    """The default search space for ``task``: batch and epochs, clip norm, rate, decay, momentum, averaging,
    schedule.

    >>> from decrescendo.training import find_task
    >>> str(default_space(find_task("digits")).moving["batch"])
    '256,512'
    """
    batches = (task.expected_batch * 2**power for power in range(5))
    moving: dict[str, Dimension] = {
        "schedule": Among(("constant", "dynamic", "sensitivity-decay", "optimal")),
        "batch": Among(tuple(batch for batch in batches if batch <= task.count / 2) or (task.expected_batch,)),
        "epochs": Among((task.epochs / 2, task.epochs, 2.0 * task.epochs)),
        "rho_mu": Between(1.05, 2.0),
        "rho_c": _RHO_C,
    }
    return Space({**moving, **_free(task)})


def free_space(task: Task) -> Space:
    """The settings that change without a privacy cost: all that leave noise and sampling unchanged.

    With the schedule ``optimal`` the noise follows the fall of the clip norm: rho_c must be fixed there.

    >>> from decrescendo.training import find_task
    >>> "batch" in free_space(find_task("digits")).moving
    False
    """
    return Space({**_free(task), "rho_c": _RHO_C}, {"rho_mu": RHO_MU})


def starting_values(space: Space, task: Task) -> dict[str, Value]:
    """The task's own settings within the space: a search tries them first."""
    start: dict[str, Value] = {
        "schedule": "constant", "batch": task.expected_batch, "epochs": task.epochs, "clip": task.clip,
        "learning_rate": task.learning_rate, "stride": task.learning_rate * task.clip, "momentum": 0.0,
        "lr_decay": "none", "averaging": 0.0, "optimizer": task.optimizer,
    }  # fmt: skip
    return {name: value for name, value in start.items() if name in space.moving and space.moving[name].has(value)}


def _free(task: Task) -> dict[str, Dimension]:
    shared: dict[str, Dimension] = {
        "clip": Between(task.clip / 8, task.clip * 2, log=True),
        "lr_decay": Among(("none", "linear", "cosine")),
        "averaging": Among((0.0, 0.9, 0.99)),
    }
    if task.optimizer != "sgd":  # Adam's step does not grow with the gradient, nor with the clip norm
        rate = Between(task.learning_rate / 10, task.learning_rate * 5, log=True)
        return {**shared, "learning_rate": rate}
    stride = task.learning_rate * task.clip
    # Large batches have less noise and allow larger strides.
    return {
        **shared,
        "stride": Between(stride / 4, stride * 16, log=True),
        "momentum": Among((0.0, 0.5, 0.9)),
    }


def parse_fixed(text: str, types: Mapping[str, Any] = TYPES) -> tuple[str, Value]:
    """Parse ``name=value``; ``types`` gives the allowed names, and whether each is float, int or str.

    >>> parse_fixed("steps=300")
    ('steps', 300)
    """
    name, value = _halves(text, "steps=300", types)
    return name, _value(name, value, types)


def parse_moving(text: str, types: Mapping[str, Any] = TYPES) -> tuple[str, Dimension]:
    """Parse ``name=low..high``, ``name=low..high:log`` or ``name=value,value,..``; ``types`` as in
    `parse_fixed`.

    >>> parse_moving("clip=0.1..4:log")
    ('clip', Between(low=0.1, high=4.0, log=True))
    """
    name, value = _halves(text, "clip=0.1..4:log", types)
    if ".." not in value:
        return name, Among(tuple(_value(name, part, types) for part in value.split(",")))
    ends, _, log = value.partition(":")
    low, _, high = ends.partition("..")
    if log not in ("", "log") or types[name] is not float:
        raise InvalidValue(
            f"a range must be of a real setting and like low..high or low..high:log, got {text!r}. "
            "Whole numbers and words are listed: name=1,2,3"
        )
    return name, Between(*(float(_value(name, end, types)) for end in (low, high)), log=log == "log")


def _halves(text: str, example: str, types: Mapping[str, Any]) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not value:
        raise InvalidValue(f"a setting must be like {example}, got {text!r}")
    if name not in types:
        raise InvalidValue(f"a setting must be one of {', '.join(types)}, got {name!r}")
    return name, value


def _value(name: str, text: str, types: Mapping[str, Any]) -> Value:
    kind = types[name]
    try:
        return text if kind is str else kind(text)
    except ValueError:
        words = "a whole number" if kind is int else "a number"
        raise InvalidValue(f"{name} must be {words}, got {text!r}") from None


def shown(value: Value) -> str:
    return value if isinstance(value, str) else f"{value:.12g}"
