"""The form of a captured pass on each device: a list of operations on a CPU, CUDA graphs on a GPU."""

from collections.abc import Callable, Container, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from decrescendo.clipping.tape import Operations


@runtime_checkable
class Capture(Protocol):
    """A pass and its sums, for replay.

    ``bakes_numbers``: a number beside tensors, in the processor's memory, is read when the pass is captured.
    ``computes_later``: nothing is computed while it is captured.
    """

    bakes_numbers: bool
    computes_later: bool

    def passing(self) -> AbstractContextManager[object]:
        """Inside, the pass is captured."""
        ...

    def summing(self) -> AbstractContextManager[object]:
        """Inside, its sums are."""
        ...

    def finish(self, found: list[Tensor], allowed: Container[int]) -> None:
        """What they are to give. ``allowed``: the storages of what they may read and do not make."""
        ...

    def run(self) -> list[Tensor]:
        """What both give for the rows that are in their memory now; the first until the next time."""
        ...


class DeviceGraphs:
    """The CUDA graphs of one engine, which share their memory and that of their results (``shared``)."""

    bakes_numbers = computes_later = True

    def __init__(self, device: torch.device, pool: Any, shared: dict[object, Tensor]) -> None:
        self._device, self._pool, self._shared = device, pool, shared
        self._pass, self._sum, self._give = (torch.cuda.CUDAGraph() for _ in range(3))
        self._given: list[Tensor] = []

    def passing(self) -> AbstractContextManager[object]:
        return self._recorded(self._pass)

    def summing(self) -> AbstractContextManager[object]:
        return self._recorded(self._sum)

    def finish(self, found: list[Tensor], allowed: Container[int]) -> None:  # noqa: ARG002
        # (A graph holds no memory of others, but reads it where it was: all that the proof lets a pass read is held.)
        for at, tensor in enumerate(found):
            key = at, tensor.shape, tensor.stride(), tensor.dtype
            if key not in self._shared:
                self._shared[key] = torch.empty_like(tensor)
            self._given.append(self._shared[key])
        with torch.no_grad(), self._recorded(self._give):
            cast("Any", torch)._foreach_copy_(self._given, found)

    def run(self) -> list[Tensor]:
        self._pass.replay()
        self._sum.replay()
        self._give.replay()
        numbers, *sums = self._given
        return [numbers, *cast("Any", torch)._foreach_mul(sums, 1.0)]  # copies, by one kernel

    @contextmanager
    def _recorded(self, graph: Any) -> Generator[None]:
        generator: Any = torch.cuda.default_generators[self._device.index or 0]
        kept = generator.clone_state()
        try:
            # (Of other threads, which load data, nothing is captured down.)
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                yield
            graph.replay()  # nothing was computed yet, and the program may have kept something
        except BaseException:
            generator.graphsafe_set_state(kept)  # what was broken off would hold on to its state
            raise


def capturing_on(tensors: list[Tensor]) -> Callable[[], Capture] | None:
    """Makes captures where these tensors are; ``None`` where they are on several devices, or on one of another kind.

    >>> capturing_on([torch.zeros(1), torch.zeros(1, device="meta")]) is None
    True
    """
    device, *others = {tensor.device for tensor in tensors}
    if others or device.type not in ("cpu", "cuda"):
        return None
    if any(tensor.layout is not torch.strided or tensor.is_nested for tensor in tensors):
        return None
    if device.type == "cpu":
        return Operations
    pool = cast("Any", torch).cuda.graph_pool_handle()
    shared: dict[object, Tensor] = {}
    return lambda: DeviceGraphs(device, pool, shared)
