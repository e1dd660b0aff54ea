"""What code of a user's does between the steps of a training, as far as it can be seen, and what is supposed of it."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast, final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,  # pyright: ignore[reportPrivateUsage]
    _global_optimizer_pre_hooks,  # pyright: ignore[reportPrivateUsage]
)

from decrescendo.clipping.batches import leaves_of
from decrescendo.clipping.clipped import Batch, trainable
from decrescendo.training.bits import fingerprint

# Of the groups of an optimiser.
Settings: TypeAlias = list[dict[str, Any]]
# What schedulers of torch's set.
_SCHEDULED = {
    "lr", "momentum", "betas", "base_momentum", "initial_lr", "max_lr", "max_momentum", "min_lr", "swa_lr"
}  # fmt: skip

WRITTEN = (
    "weights were changed between steps by other code than the optimiser, which made the change of released and public "
    "values alone"
)
REMEMBERED = (
    "what the optimiser remembers was changed between steps by other code than its steps, which made the change of "
    "released and public values alone"
)
SET = (
    "settings of the optimiser were changed between steps by code that is no scheduler of torch's, which took them "
    "from released and public values alone"
)
GRADIENTS_CHANGED = (
    "gradients were changed between fill_gradients and the optimiser's step by other code, which made the change of "
    "released and public values alone"
)
ROWS_CHANGED = "batches were changed before step: each row of them was made of its own example alone"
ENDED_ON_A_BATCH = "the run ended on a batch drawn, not released: that it ended there says nothing of it"
HOOKED = "hooks on the optimiser moved the weights by released and public values alone"
READ_AND_SET = (
    "settings of the optimiser were changed by code that had read the private diagnostics of a step: nothing of these "
    "is in the change"
)
READ_AND_ENDED = (
    "the run was ended early by code that had read the private diagnostics of a step: that it ended there says nothing "
    "of these"
)


@final
class BetweenSteps:
    """Watches what a loop does to the weights, the optimiser and the batch, from the first draw on.

    Args:
        model: whose trained parameters are watched.
        optimizer: whose moments, settings, hooks and code are.
        settle: called before the weights are looked at.

    Attributes:
        supposed: sentences: what could not be proven of what was done.

    >>> model = nn.Linear(2, 1)
    >>> between = BetweenSteps(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> between.begin()
    >>> between.look()
    >>> between.supposed
    set()
    >>> _ = model.weight.data.neg_()
    >>> between.look()
    >>> between.supposed == {WRITTEN}
    True
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, settle: Callable[[], None] = lambda: None
    ) -> None:
        self._model, self._optimizer, self._settle = model, optimizer, settle
        self.supposed: set[str] = set()
        self._read = False
        # As the step before left them.
        self._weights: bytes | None = None
        self._remembered: object = None
        self._settings: Settings = []
        # Of the batch drawn: its tensors as they were handed out, by id.
        self._handed: dict[int, tuple[Tensor, bytes]] = {}
        # Of a loop that steps its optimiser itself.
        self._handles: list[Any] = []

    def begin(self) -> None:
        """Before the first draw: what is there now was there before anything private was seen."""
        if self._weights is None:
            self._note()

    def hand_out(self, batch: Batch | None) -> None:
        """This is the batch drawn."""
        tensors = [] if batch is None else leaves_of(batch)
        self._handed = {id(tensor): (tensor, fingerprint(tensor)) for tensor in tensors}

    def take_back(self, batch: Batch | None) -> None:
        """This is the batch given to a step."""
        for tensor in [] if batch is None else leaves_of(batch):
            handed = self._handed.get(id(tensor))
            if handed is None or handed[1] != fingerprint(tensor):
                self.supposed.add(ROWS_CHANGED)

    def look(self) -> None:
        """Whether weights and optimiser are as the step before left them, and by whose code the next moves them."""
        if self._weights is not None:
            self._compare()
        self.supposed |= supposed_of(self._optimizer, own=len(self._handles))

    def stepped(self) -> None:
        """The optimiser has moved the weights."""
        self._handed = {}
        self._note()

    def filled(self) -> None:
        """The noisy mean is in every ``.grad``, and the loop steps its optimiser, once."""
        self._handed = {}
        self._forget()
        gradients = self._gradients()

        def before(*_: object) -> None:
            if gradients != self._gradients():
                self.supposed.add(GRADIENTS_CHANGED)
            self.look()

        def after(*_: object) -> None:
            self._forget()
            self._note()

        self._handles = [
            _inner(self._optimizer).register_step_pre_hook(before),
            _inner(self._optimizer).register_step_post_hook(after),
        ]

    def read(self) -> None:
        """Private diagnostics of a step were looked at."""
        self._read = True

    def ended(self, *, early: bool, drawn: bool) -> tuple[str, ...]:
        """What is supposed of a run that ends here: before its plan, or on a batch that was drawn."""
        read = [READ_AND_ENDED] if early and self._read else []
        return (*read, *([ENDED_ON_A_BATCH] if drawn else []))

    def _compare(self) -> None:
        """With what the step before left."""
        settings = _settings_of(self._optimizer)
        if self._weights != self._now():
            self.supposed.add(WRITTEN)
        if self._remembered != _remembered_by(self._optimizer):
            self.supposed.add(REMEMBERED)
        if self._read and self._settings != settings:
            self.supposed.add(READ_AND_SET)
        elif _by_hand(self._settings, settings):
            self.supposed.add(SET)

    def _note(self) -> None:
        self._weights, self._settings = self._now(), _settings_of(self._optimizer)
        self._remembered = _remembered_by(self._optimizer)

    def _forget(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _now(self) -> bytes:
        self._settle()
        return fingerprint(*trainable(self._model).values())

    def _gradients(self) -> bytes:
        found = [parameter.grad for parameter in trainable(self._model).values()]
        return fingerprint(*(value for value in found if value is not None))


def supposed_of(optimizer: torch.optim.Optimizer, *, own: int = 0) -> set[str]:
    """What is supposed of an optimiser's code: nothing of torch's and of ours, without hooks but ``own`` ones.

    >>> weight = torch.zeros(1, requires_grad=True)
    >>> supposed_of(torch.optim.SGD([weight], lr=1.0))
    set()
    >>> class Mine(torch.optim.SGD):
    ...     pass
    >>> supposed_of(Mine([weight], lr=1.0))
    {'Mine, code of neither torch nor decrescendo, moved the weights by released and public values alone'}
    """
    kind, found = type(optimizer), set[str]()
    known = kind.__module__.split(".")[0] in ("torch", "decrescendo")
    same = getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind
    # Schedulers of torch's put a counter round it.
    step = vars(optimizer).get("step")
    if not known or not same or (step is not None and not hasattr(step, "_wrapped_by_lr_sched")):
        found.add(
            f"{kind.__name__}, code of neither torch nor decrescendo, moved the weights by released and public values "
            "alone"
        )
    held = cast("Any", _inner(optimizer))
    hooks = len(held._optimizer_step_pre_hooks) + len(held._optimizer_step_post_hooks)
    hooks += len(_global_optimizer_pre_hooks) + len(_global_optimizer_post_hooks)
    if hooks > own:
        found.add(HOOKED)
    return found


def _inner(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """What steps in a wrapper that calls itself an optimiser (Accelerate's) and has no hooks."""
    inner = None if "_optimizer_step_pre_hooks" in vars(optimizer) else vars(optimizer).get("optimizer")
    return _inner(inner) if isinstance(inner, torch.optim.Optimizer) else optimizer


def _settings_of(optimizer: torch.optim.Optimizer) -> Settings:
    """The numbers of each group, and how many parameters it has."""
    return [
        {
            key: len(value) if key == "params" else float(value) if isinstance(value, Tensor) else value
            for key, value in group.items()
        }
        for group in optimizer.param_groups
    ]


def _by_hand(before: Settings, now: Settings) -> bool:
    """Whether something was set that no scheduler of torch's has set: they leave a mark in the groups that are theirs.

    >>> _by_hand([{"lr": 1.0}], [{"lr": 0.5}]), _by_hand([{"lr": 1.0}], [{"lr": 0.5, "initial_lr": 1.0}])
    (True, False)
    """
    if len(before) != len(now):
        return True
    for old, new in zip(before, now, strict=True):
        changed = {key for key in old if key not in new or new[key] != old[key]}
        if changed - (_SCHEDULED if "initial_lr" in new else set()):
            return True
    return False


def _remembered_by(optimizer: torch.optim.Optimizer) -> object:
    """All that an optimiser keeps of its steps: a fingerprint of tensors, and the rest as it is."""
    tensors: list[Tensor] = []

    def shown(value: object) -> object:
        if isinstance(value, Tensor):
            tensors.append(value)
            return value.dtype, value.shape
        if isinstance(value, Mapping):
            pairs = cast("Mapping[object, object]", value).items()
            return [(repr(key), shown(item)) for key, item in pairs]
        if isinstance(value, (list, tuple)):
            return [shown(item) for item in cast("Sequence[object]", value)]
        return repr(value)

    state = _inner(optimizer).state
    known = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    found = [shown(state[parameter]) if parameter in state else None for parameter in known]
    return len(state), found, fingerprint(*tensors)
