"""Whether schedulers of torch's made the settings of an optimiser what they are: by doing their steps again."""

import gc
import itertools
import math
import sys
from types import SimpleNamespace
from typing import Any, TypeAlias, cast, final

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from decrescendo.optim.several import parts_of
from decrescendo.training.moments import inner

# Of the groups of an optimiser.
Settings: TypeAlias = list[dict[str, Any]]
# Orders of several schedulers that are tried, and steps of one between two looks.
_ORDERS, _MOST = 24, 1_000
# Of numbers that are products in another order.
_ROUNDING = 1e-12


def settings_of(optimizer: torch.optim.Optimizer) -> Settings:
    """The numbers of each group, and how many parameters it has."""
    return _numbers(optimizer.param_groups)


@final
class Schedulers:
    """The schedulers of torch's that an optimiser has, as they were when last noted.

    A score that one of them is fed (`ReduceLROnPlateau`), a rate set by hand before or after its step, a subclass of a
    user's: none of this comes out when their steps are done again from what was noted. What their functions read must
    be as it was, too.

    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    >>> scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    >>> schedulers = Schedulers(optimizer)
    >>> schedulers.note()
    >>> optimizer.step()
    >>> scheduler.step()
    >>> schedulers.made(settings_of(optimizer))
    True
    >>> optimizer.param_groups[0]["lr"] = 0.1
    >>> schedulers.made(settings_of(optimizer))
    False
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._known: list[LRScheduler] | None = None
        self._noted: list[tuple[LRScheduler, LRScheduler, slice]] = []
        self._groups: list[dict[str, Any]] = []

    def note(self) -> None:
        """As they are now."""
        if self._known is None and any("initial_lr" in group for group in self._optimizer.param_groups):
            self._known = self._found()
        if self._known:
            self._noted = [(one, _copied(one), self._groups_of(one)) for one in self._known]
            self._groups = [
                {key: value.clone() if isinstance(value, Tensor) else value for key, value in group.items()}
                for group in self._optimizer.param_groups
            ]

    def made(self, now: Settings) -> bool:
        """Whether their steps since then, and nothing else, lead to these settings."""
        moved = [
            (before, steps, own)
            for one, before, own in self._noted
            if (steps := _steps(one) - _steps(before)) != 0
        ]
        if all(0 < steps <= _MOST for _, steps, _ in moved):
            for order in itertools.islice(itertools.permutations(moved), _ORDERS):
                if moved and _same(self._after(order), now):
                    return True
        self._known = None  # there may be one that was made since
        return False

    def _after(self, order: tuple[tuple[LRScheduler, int, slice], ...]) -> Settings:
        groups = [
            {key: value.clone() if isinstance(value, Tensor) else value for key, value in group.items()}
            for group in self._groups
        ]

        def step() -> None: ...

        # Or schedulers warn of an optimiser that they do not know.
        cast("Any", step)._wrapped_by_lr_sched = True
        for before, steps, own in order:
            optimizer = SimpleNamespace(param_groups=groups[own], step=step, _opt_called=True)
            again = _copied(before, optimizer)
            for _ in range(steps):
                again.step()
        return _numbers(groups)

    def _found(self) -> list[LRScheduler]:
        """Nothing of an optimiser leads to its schedulers."""
        kinds = set(filter(_is_torchs, _below(LRScheduler)))
        known = [one for one in gc.get_objects() if type(one) in kinds and self._is_held_by(one)]
        inside = {id(part) for one in known for part in _parts(one)}
        return [one for one in known if id(one) not in inside]

    def _is_held_by(self, scheduler: LRScheduler) -> bool:
        """Either may have it in a wrapper."""
        held = vars(scheduler).get("optimizer")
        own = {id(inner(part)) for part in (self._optimizer, *parts_of(inner(self._optimizer)))}
        return isinstance(held, torch.optim.Optimizer) and id(inner(held)) in own

    def _groups_of(self, scheduler: LRScheduler) -> slice:
        """Those that a scheduler sets: all, or those of one of several optimisers."""
        held, at = cast("Any", scheduler).optimizer, 0
        for part in parts_of(inner(self._optimizer)):
            if inner(part) is inner(held):
                return slice(at, at + len(part.param_groups))
            at += len(part.param_groups)
        return slice(None)


def _below(kind: type) -> set[type]:
    """The class and all that inherit from it."""
    return {kind}.union(*map(_below, type.__subclasses__(kind)))


def _is_torchs(kind: type) -> bool:
    """What follows a score is not: what it is fed may be private."""
    module = sys.modules.get(kind.__module__)
    own = kind.__module__.split(".")[0] == "torch" and getattr(module, kind.__name__, None) is kind
    return own and not issubclass(kind, ReduceLROnPlateau)


def _parts(scheduler: LRScheduler) -> list[LRScheduler]:
    return list(vars(scheduler).get("_schedulers", ()))


def _steps(scheduler: LRScheduler) -> int:
    """How many it has taken; one that only hands them on has no count."""
    found = vars(scheduler).get("last_epoch")
    return int(found) if found is not None else _steps(_parts(scheduler)[0])


def _copied(scheduler: LRScheduler, optimizer: object = None) -> LRScheduler:
    """As it is now: a step puts other values in the place of those it has, and changes none of them."""
    made = cast("Any", object.__new__(type(scheduler)))
    vars(made).update(vars(scheduler))
    made.optimizer = optimizer
    if parts := _parts(scheduler):
        made._schedulers = [_copied(part, optimizer) for part in parts]
    return made


def _numbers(groups: list[dict[str, Any]]) -> Settings:
    return [
        {key: len(value) if key == "params" else _plain(value) for key, value in group.items()}
        for group in groups
    ]


def _plain(value: Any) -> Any:
    """Numbers of tensors, in tuples too (betas): these may be written to where they are."""
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 else value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in cast("list[Any]", value)]
    return value


def _same(one: object, other: object) -> bool:
    """Equal, up to the rounding of numbers that are not whole."""
    if isinstance(one, dict) and isinstance(other, dict):
        mine, its = cast("dict[str, object]", one), cast("dict[str, object]", other)
        return mine.keys() == its.keys() and all(_same(value, its[key]) for key, value in mine.items())
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        pair = cast("list[object]", one), cast("list[object]", other)
        return len(pair[0]) == len(pair[1]) and all(map(_same, *pair))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_ROUNDING) or one != one != other
    return one == other
