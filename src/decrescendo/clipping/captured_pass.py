"""What `Checker.capture` needs to capture a pass: errors, guards against changed values, a watch for transfers."""

import math
import random
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from decrescendo.base.storages import DispatchMode, key_of, tensors_of, unwatched
from decrescendo.clipping.inventory import Inventory
from decrescendo.clipping.memory import is_out_of_memory
from decrescendo.errors import UnsupportedModel

CHANGES = (
    "the program does something else than in an earlier pass over as many examples (a weight of the loss that changes, "
    "say)"
)


class UncomputedStateKept(UnsupportedModel):
    """The program keeps a tensor that a failed capture has never computed."""


class OtherOperations(UnsupportedModel):
    """A pass that was to be captured ran other operations than every accepted one."""


def why_broken(error: BaseException) -> tuple[str, bool]:
    """Why a capture failed, in a line (a refusal's message, else the first cause's); and whether memory ran out."""
    causes = [error]
    while (before := causes[-1].__context__) is not None:
        causes.append(before)
    ours = [cause for cause in causes if isinstance(cause, UnsupportedModel)]
    said = str((ours or causes)[-1]).strip() or type(error).__name__
    return said.splitlines()[0], any(map(is_out_of_memory, causes))


@contextmanager
def unaware() -> Generator[None]:
    """Inside, ``torch.cuda.is_current_stream_capturing`` is false: programs do the same while captured."""
    told: Any = torch.cuda.is_current_stream_capturing
    cast("Any", torch.cuda).is_current_stream_capturing = lambda: False
    try:
        yield
    finally:
        cast("Any", torch.cuda).is_current_stream_capturing = told


def guarded(norms: Tensor, guards: list[Tensor]) -> Tensor:
    """The norms; infinite if a compared value has changed, so that the pass runs in Python instead.

    Raises:
        UnsupportedModel: a value in the host's memory has changed already.
    """
    host = [guard for guard in guards if guard.device != norms.device]
    if not all(map(bool, host)):
        raise UnsupportedModel(CHANGES)
    there = [guard for guard in guards if guard.device == norms.device]
    return torch.where(torch.stack(there).all(), norms, math.inf) if there else norms


def drawn_by_python(held: Inventory) -> tuple[object, ...]:
    """The states of the generators that are not on the model's device."""
    torchs = b"" if is_on_cpu(held) else torch.get_rng_state().numpy().tobytes()
    state: Any = np.random.get_state()  # a dict of another generator than the usual one
    parts = state if isinstance(state, tuple) else (str(state),)
    numpys = [part.tobytes() if isinstance(part, np.ndarray) else part for part in parts]
    return random.getstate(), numpys, torchs


def is_on_cpu(held: Inventory) -> bool:
    return all(parameter.device.type == "cpu" for parameter in held.parameters.values())


class OnDevice(DispatchMode):
    """Finds transfers between device and host, which a captured pass would not repeat; and, by storage, the tensors
    from before the pass that it reads."""

    def __init__(self, *, on_cpu: bool) -> None:
        super().__init__()
        self.reason = ""
        self._on_cpu = on_cpu
        self.constants: dict[int, Tensor] = {}
        self._made: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        try:
            output = func(*args, **(kwargs or {}))
        except Exception:
            self.reason = self.reason or f"{func} waits for the device, or copies to or from it"
            raise
        given, made = tensors_of((*args, *(kwargs or {}).values())), tensors_of((output,))
        for tensor in given:
            if (key := key_of(tensor)) not in self._made and key not in self.constants:
                with unwatched():
                    self.constants[key] = tensor.detach()
        self._made.update(map(key_of, made))
        places = {tensor.device.type for tensor in (*given, *made)}
        host = [tensor for tensor in (*given, *made) if tensor.device.type == "cpu"]
        if not self._on_cpu and any(tensor.dim() for tensor in host):
            self.reason = self.reason or f"{func} is done in the processor's memory"
        elif len(places) > 1 and host:
            # A single host number beside tensors is passed as an argument of the kernel.
            copied = func.overloadpacket.__name__.strip("_") in ("to_copy", "copy")
            if copied or any(tensor.device.type == "cpu" for tensor in made):
                self.reason = self.reason or f"{func} copies between the device and the processor's memory"
        return output
