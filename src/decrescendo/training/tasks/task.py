"""`Task`: what the command line trains: a model, a loss, data, and default settings.

A task is a function without arguments in any module that can be imported, named ``module:function``. It returns a
`Task`, or simply ``(model, loss, data)``.
"""

import copy
import difflib
import importlib
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import Parameter, isfunction, signature
from pathlib import Path
from typing import Any, cast
from weakref import WeakSet

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from decrescendo.base import Streams
from decrescendo.clipping import EngineSettings, Loss
from decrescendo.errors import InvalidType, InvalidValue, check_instance, check_integer, check_real
from decrescendo.row_independence.tracing import Memory
from decrescendo.training.data.data_memory import check_model_apart, memory_of
from decrescendo.training.data.examples import Collate, own_numbers
from decrescendo.training.data.rows import table_of

# Seeds of models are below this: `numpy.random.seed` takes no larger ones.
SEEDS = 2**32
# Models that functions of tasks have returned.
_MADE: WeakSet[nn.Module] = WeakSet()
KNOWN = {"digits": "decrescendo.training.digits:task"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A model, a loss and data to train, with default settings that the command line can change.

    Args:
        model: a module; or a function that builds a fresh one from a seed, a whole number below 2^32. For its call
            the global generators of torch (on the CPU), NumPy and Python are seeded from it; they are restored
            afterwards.
        loss: from a model and a batch to one loss per example.
        data: the private rows, as `train` takes them; or a function without arguments that loads them.
        collate_fn: from a list of one example to a batch, as `train` takes it: for text that needs padding.
        people: the id of each row's person, or a function that loads the ids; for plans that protect people.
        strata: the stratum of each row (its class, its source), or a function that loads them; for plans with strata.
        rows: their number, a public fact; needed if ``data`` is a function, so that plans are made without loading.
        score: from a trained model to scores by name, on *public* data: they are printed and written into the run.
            The first is what a search compares.
        batch: expected batch size; default: a tenth of the rows, at most 256.
        epochs: expected passes over the data, > 0.
        clip: clip norm of one example's gradient, > 0.
        optimizer: one of `OPTIMIZERS`.
        learning_rate: > 0.
        engine: settings of the clipping engine: captured passes, how much memory.

    Raises:
        InvalidValue: a number outside its range, a function for ``data`` without ``rows``.
        InvalidType: ``engine`` is something else.

    >>> import torch
    >>> from decrescendo.training import cross_entropy
    >>> toy = Task(model=nn.Linear(2, 2), loss=cross_entropy, data=(torch.zeros(30, 2), torch.zeros(30).long()))
    >>> toy.count, toy.expected_batch, round(toy.delta, 5)
    (30, 3.0, 0.00333)
    """

    model: nn.Module | Callable[[int], nn.Module]
    loss: Loss
    data: Any
    collate_fn: Collate | None = None
    rows: int | None = None
    people: Any = None
    strata: Any = None
    score: Callable[[nn.Module], Mapping[str, float]] | None = None
    batch: float | None = None
    epochs: float = 20.0
    clip: float = 1.0
    optimizer: str = "sgd"
    learning_rate: float = 0.1
    engine: EngineSettings = field(default_factory=EngineSettings)

    def __post_init__(self) -> None:
        check_instance("engine", self.engine, EngineSettings)
        for name in ("epochs", "clip", "learning_rate"):
            check_real(name, getattr(self, name), above=0)
        if self.batch is not None:
            check_real("batch", self.batch, above=0)
        if self.rows is not None:
            check_integer("rows", self.rows, at_least=1)
        elif self.loads:
            raise InvalidValue("rows must be given where data is a function, got none. A plan needs their number")

    @property
    def loads(self) -> bool:
        """Whether ``data`` is a function that loads the rows."""
        return callable(self.data) and not hasattr(self.data, "__getitem__")

    @property
    def count(self) -> int:
        """Number of private rows."""
        found = table_of(self.data, self.collate_fn).count if self.rows is None else self.rows
        return check_integer("rows", found, at_least=1)

    @property
    def expected_batch(self) -> float:
        """Default expected batch size."""
        return min(256.0, self.count / 10) if self.batch is None else self.batch

    @property
    def delta(self) -> float:
        """Default delta, 1 / (10 N)."""
        return 1 / (10 * self.count)

    def load(self) -> Any:
        """The private rows."""
        return self.data() if self.loads else self.data

    def load_people(self) -> Any:
        """The id of each row's person; ``None`` if the task has no people."""
        return self.people() if callable(self.people) else self.people

    def load_strata(self) -> Any:
        """The stratum of each row; ``None`` if the task has no strata."""
        return self.strata() if callable(self.strata) else self.strata

    def fresh(self, seed: int, data: object = None) -> nn.Module:
        """A new model to train on ``data``; of a given module, a copy. A ``seed`` too large for the model
        function is hashed to one.

        Raises:
            UnsupportedModel: a module that holds some of the data in their own memory.
        """
        if isinstance(self.model, nn.Module):
            check_model_apart(self.model, data)
            return copy.deepcopy(self.model)
        seed = seed if seed < SEEDS else Streams(seed).seed_of("init") % SEEDS
        with own_numbers() as begin:
            begin(seed, 0)
            made = self.model(seed)
        if any(made is one for one in _MADE):
            raise InvalidValue(
                "a task's model must be a new one each time, got a function that returned the same one again, which an "
                "earlier training may have moved. Build it inside of the function"
            )
        _MADE.add(made)
        return made

    def scores(self, model: nn.Module, private: object = None) -> dict[str, float]:
        """Scores on public data; empty if the task has none. Global generators are seeded alike for each
        call.

        Args:
            private: rows that the score must not give to the model, as far as their memory shows it.

        Raises:
            InvalidValue: it gives them.
        """
        with own_numbers() as begin, _given_no_rows_of(private):
            begin(0, 0)
            found: Any = {} if self.score is None else self.score(model)
        if not isinstance(found, Mapping):
            raise InvalidType(f'a task\'s score must return scores by name, {{"accuracy": 0.9}}, got {found!r}')
        return {str(name): _score(name, value) for name, value in cast("Mapping[Any, Any]", found).items()}

    def first_score(self, model: nn.Module) -> float:
        """The score that a search compares; see `first_of`."""
        return first_of(self.scores(model))


@contextmanager
def _given_no_rows_of(private: object) -> Generator[None]:
    """Refuse passes of modules on tensors in the memory of these rows; ``None``: of none."""
    if private is None:
        yield
        return
    memory = Memory()
    memory.withhold(memory_of(private))

    def check(_: nn.Module, inputs: Any) -> None:
        if any(map(memory.withholds, memory_of(list(inputs)))):
            raise InvalidValue(
                "a task's score must be on public data, got rows that are trained on: what it says of them has no "
                "noise, and no theorem holds where trials are ranked by it. Score on public rows, or release loss and "
                "accuracy with the batches (telemetry=)"
            )

    handle = register_module_forward_pre_hook(check)  # of all modules, so that none of them keeps it
    try:
        yield
    finally:
        handle.remove()


def first_of(scores: Mapping[str, float]) -> float:
    """The score that a search compares: the first one.

    Raises:
        InvalidValue: there is none.

    >>> first_of({"accuracy": 0.9, "loss": 0.4})
    0.9
    """
    if not scores:
        raise InvalidValue(
            'a task that is searched must have a score, {"accuracy": 0.9}, got none. Give it score=, from a model to '
            "scores on public data"
        )
    return next(iter(scores.values()))


def _score(name: object, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidType(f"a task's scores must be numbers, one each, got {name!r}: {value!r}") from None


def find_task(name: str) -> Task:
    """The task returned by ``module:function``; ``digits`` is the example that comes with the library.

    Raises:
        InvalidValue: another form of name, a module or function that is not there.
        InvalidType: the function returns something else.

    >>> find_task("digits").count
    1438
    """
    module, colon, function = KNOWN.get(name, name).partition(":")
    if not (module and colon and function):
        raise InvalidValue(
            f"task must be module:function, like my_project.tasks:mine, or one of {', '.join(KNOWN)}, got task={name!r}"
        )
    if "" not in sys.path and str(Path.cwd()) not in sys.path:  # an installed command does not look here by itself
        sys.path.insert(0, str(Path.cwd()))
    try:
        made: Any = getattr(importlib.import_module(module), function)
    except (ModuleNotFoundError, AttributeError) as error:
        raise InvalidValue(
            f"task must name a function of a module that can be imported from here, got task={name!r}: "
            f"{error}{_near(module, function)}"
        ) from None
    if isfunction(made) and (wanted := _wanted(made)):
        raise InvalidValue(
            f"task must name a function without arguments, got task={name!r}, a function of ({', '.join(wanted)})"
            f"{_near(module, function)}"
        )
    return _as_task(made() if callable(made) else made, name)


def _near(module: str, function: str) -> str:
    """A suggestion for a name that does not exist."""
    if module in sys.modules:
        there = [
            f"{module}:{name}"
            for name, thing in vars(sys.modules[module]).items()
            if isfunction(thing) and not _wanted(thing)
        ]
        meant = difflib.get_close_matches(f"{module}:{function}", there, cutoff=0.8) or there[:5]
    else:
        files = [f"{path.stem}:{function}" for path in Path.cwd().glob("*.py")]
        meant = difflib.get_close_matches(f"{module}:{function}", files, cutoff=0.8)
    return f". Did you mean {' or '.join(meant)}?" if meant else ""


def _wanted(function: Callable[..., Any]) -> list[str]:
    """The names of a function's required arguments."""
    skipped = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return [
        name
        for name, argument in signature(function).parameters.items()
        if argument.default is Parameter.empty and argument.kind not in skipped
    ]


def _as_task(made: Any, name: str) -> Task:
    if isinstance(made, Task):
        return made
    if isinstance(made, tuple) and len(cast("tuple[Any, ...]", made)) == 3:
        model, loss, data = cast("tuple[Any, Any, Any]", made)
        return Task(model=model, loss=loss, data=data)
    raise InvalidType(f"{name} must return a Task or (model, loss, data), got {type(made).__name__}")
