"""Multiplications and bytes of a step, ours and plain training's: counted, not timed, so the same on every machine.

A step's time is bounded by both: products by the processor's arithmetic, all else by its memory. Counted are the
multiplications and additions of products and convolutions (torch's formulas, and those of our compiled kernels), and
what operations read and write, views apart.
"""

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from benchmarks import measured_at
from benchmarks.engine.contenders import Setting, Step
from benchmarks.engine.contenders.ours import EngineInPython
from benchmarks.engine.contenders.plain import Plain
from benchmarks.engine.workloads import workloads
from decrescendo.clipping.rules import compiled, embedding, grams, matrices, segments

_WARM_UP = 3
# No views to torch, but nothing is read or written.
_STILL = {
    "_unsafe_view",
    "squeeze_",
    "unsqueeze_",
    "empty",
    "new_empty",
    "empty_like",
    "empty_strided",
    "detach_",
}


class Counted(TorchDispatchMode):
    """Operations (multiplications and additions of products) and bytes of what is done while it is on.

    >>> with Counted() as counted:
    ...     _ = torch.ones(2, 3) @ torch.ones(3, 4)
    >>> counted.operations, counted.bytes == 4 * (6 + 12 + 6 + 12 + 8)  # sides made and read, one written
    (48, True)
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        formula = flop_registry.get(getattr(torch.ops.aten, name.rstrip("_"), None))  # in place as not
        if formula is not None:
            self.operations += formula(*args, **kwargs, out_val=found)
        if not func.is_view and name not in _STILL:
            self._moved(args, kwargs, found)
        return found

    def kernel(self, plain: Callable[..., Tensor], products: Callable[..., int]) -> Callable[..., Tensor]:
        """``plain``, which torch does not see, counted."""

        def counted(*args: Any) -> Tensor:
            self.operations += 2 * products(*args)
            found = plain(*args)
            self._moved(args, found)
            return found

        return counted

    def lookups(self, ids: Tensor, d: Tensor, *others: Any) -> segments.Blocks:
        """Sums over equal ids, which torch does not see, counted."""
        found = segments.blocks_of(ids, d, *others)
        self._moved(ids, d, found.sums, found.identity)
        return found

    def weighed(self, plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Their weighted sum, counted."""

        def counted(blocks: segments.Blocks, *args: Any) -> Tensor:
            found = plain(blocks, *args)
            self._moved(blocks.sums, blocks.identity, found)
            return found

        return counted

    def _moved(self, *values: Any) -> None:
        self.bytes += sum(
            leaf.numel() * leaf.element_size() for leaf in tree_leaves(values) if isinstance(leaf, Tensor)
        )


def count(step: Step) -> dict[str, int]:
    """One step of a contender, after it has warmed up."""
    with torch.backends.mkldnn.flags(enabled=False):  # its recurrent layer is one operation without a formula
        for _ in range(_WARM_UP):
            step.step()
        counted = Counted()
        with ExitStack() as stack:
            patch = mock.patch.object
            stack.enter_context(patch(compiled, "gradients", counted.kernel(compiled.gradients, _convolved)))
            stack.enter_context(patch(matrices, "products", counted.kernel(matrices.products, _multiplied)))
            norms = counted.kernel(grams._compiled_norms, _halves)
            stack.enter_context(patch(grams, "_compiled_norms", norms))
            stack.enter_context(patch(embedding, "blocks_of", counted.lookups))
            weighed = counted.weighed(segments.Blocks.scaled_sum)
            stack.enter_context(patch(segments.Blocks, "scaled_sum", weighed))
            stack.enter_context(counted)
            step.step()
    return {"operations": counted.operations, "bytes": counted.bytes}


def _convolved(_: Tensor, d: Tensor, __: Any, found: Tensor) -> int:
    return found.numel() * d[0, 0].numel()


def _multiplied(a: Tensor, _: Tensor, found: Tensor) -> int:
    return found.numel() * a.shape[1]


def _halves(a: Tensor, d: Tensor, _: float) -> int:
    return a.shape[0] * a.shape[1] * (a.shape[1] + 1) // 2 * (a.shape[2] + d.shape[2])


def write(path: Path) -> None:
    """Every workload, ours and plain training."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {**measured_at(), "workloads": {}}
    device = torch.device("cpu")
    for name, workload in workloads(device).items():
        setting = Setting(workload, device)
        row = {"plain": count(Plain(setting)), "decrescendo": count(EngineInPython(setting))}
        found["workloads"][name] = row
        print(name, row, flush=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
