"""The form of a captured pass on each device: a list of operations on a CPU, CUDA graphs on a GPU."""

from collections.abc import Callable, Container, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from decrescendo.clipping.tape import Operations


class DeviceGraphs:
    """The CUDA graphs of one pass; those of an engine share their memory and that of their results (``shared``)."""

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
        # (A graph reads others' memory by address: all that the check lets a pass read is kept alive.)
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
            # (thread_local: other threads, which load data, are not captured.)
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                yield
            graph.replay()  # compute what was captured: the program may have kept a tensor
        except BaseException:
            generator.graphsafe_set_state(kept)  # a failed capture would keep the generator's state
            raise


# A pass and its sums, for replay. ``passing()`` and ``summing()`` are contexts that capture them. After
# ``finish(found, allowed)`` replays give ``found``; ``allowed``: storages that they may read and do not make. ``run()``
# replays on the rows now in their memory; its first result is valid until the next replay. ``bakes_numbers``: a single
# number in the host's memory, beside tensors, is read at capture. ``computes_later``: nothing is computed meanwhile.
Capture: TypeAlias = DeviceGraphs | Operations


def capturing_on(tensors: list[Tensor]) -> Callable[[], Capture] | None:
    """A function that makes captures for these tensors; ``None`` unless they are dense and all on one CPU or CUDA
    device.

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
