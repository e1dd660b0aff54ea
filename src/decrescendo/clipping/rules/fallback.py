"""The fallback for operations without a rule: ``torch.func.vmap`` over the backward pass of that one
operation."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from decrescendo.base.torch_private import tree_flatten, tree_unflatten
from decrescendo.clipping.clipped import accumulator
from decrescendo.clipping.memory import is_out_of_memory
from decrescendo.clipping.rules.rule import Call, scale_and_sum, square_rows, zero_rows
from decrescendo.clipping.workspace import Workspace, chunks
from decrescendo.errors import UnsupportedModel


@dataclass(slots=True)
class FallbackKernel:
    """One operation, run again for each example on its own rows under vmap."""

    name: str
    run: Callable[[list[Tensor], list[Tensor]], Tensor]
    parameters: tuple[Tensor, ...]
    saved: tuple[Tensor, ...]
    rows: list[Tensor]
    # The shapes of ``rows`` with one example.
    shapes: list[tuple[int, ...]]
    workspace: Workspace
    roots: tuple[str, ...] = ()
    bad: Bool[Tensor, " batch"] | None = None
    kept: list[tuple[Tensor, ...]] | None = None

    def squared_norms(self, slot: int, d: Tensor) -> Tensor:
        return torch.cat([square_rows(gradients[slot]) for gradients in self._parts(d)])

    def scaled_sum(self, slot: int, d: Tensor, factors: Tensor) -> Tensor:
        total, start = d.new_zeros(()), 0
        for gradients in self._parts(d):
            found = gradients[slot]
            added = scale_and_sum(found, factors[start : start + len(found)])
            total, start = (total + added if start else added), start + len(found)
        return total

    def per_example(self, slot: int, d: Tensor) -> Tensor:
        return torch.cat([gradients[slot] for gradients in self._parts(d)])

    def without_rows(self, rows: Bool[Tensor, " batch"]) -> "FallbackKernel":
        return replace(self, saved=(), bad=rows, kept=None)

    def _parts(self, d: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Gradients of a few examples at a time; kept where there is room, else computed again with the same bits."""
        if self.kept is not None:
            yield from self.kept
            return
        size = sum(parameter.numel() for parameter in self.parameters)
        needed = d.shape[0] * size * d.element_size()
        parts = (self._some(d, part) for part in chunks(d.shape[0], size, d.device))
        if needed > self.workspace.left:
            yield from parts
            return
        self.kept = list(parts)
        yield from self.kept

    def _some(self, d: Tensor, part: slice) -> tuple[Tensor, ...]:
        rows, d = [row[part] for row in self.rows], d[part]  # d may be complex where the operation is
        parameters = [parameter.detach() for parameter in self.parameters]

        def one(rows: list[Tensor], gradient: Tensor) -> tuple[Tensor, ...]:
            # The example keeps a batch dimension, so that the operation's own axes still mean the same.
            single = [row.reshape(shape) for row, shape in zip(rows, self.shapes, strict=True)]

            def forward(*values: Tensor) -> Tensor:
                return self.run(list(values), single)

            output, pull = cast("Any", torch.func.vjp(forward, *parameters))
            return tuple(pull(gradient.to(output.dtype).reshape(output.shape)))

        def each() -> tuple[Tensor, ...]:
            made = [one([row[at] for row in rows], d[at]) for at in range(len(d))]
            return tuple(torch.stack(gradients) for gradients in zip(*made, strict=True))

        try:
            # Fused kernels of attention want layouts that an example under vmap need not have.
            with warnings.catch_warnings(), sdpa_kernel([SDPBackend.MATH]):
                # Operations that vmap runs one by one are slow, not wrong.
                warnings.filterwarnings("ignore", message="There is a performance drop")
                try:
                    found = torch.func.vmap(one, in_dims=(0, 0), randomness="error")(rows, d)
                except RuntimeError as error:  # not every operation knows vmap
                    if is_out_of_memory(error):
                        raise
                    state = _random_state(d.device)
                    found = each()
                    if not torch.equal(state, _random_state(d.device)):
                        raise UnsupportedModel(
                            f"random numbers of an operation on a trainable parameter must be drawn once, got "
                            f"{self.name} with {', '.join(self.roots)}, whose gradients of each example need it again. "
                            "Write it with ordinary operations (a dropout of its own), set its dropout to 0, or freeze "
                            "the parameter"
                        ) from None
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UnsupportedModel(
                f"every operation on a trainable parameter must work on one example alone, got {self.name} "
                f"with {', '.join(self.roots)}, "
                f"which does not ({reason}). Is there another example's row in it? Freeze its parameters, "
                "or write it "
                "with operations that keep one row per example"
            ) from error
        if self.bad is not None:
            found = tuple(zero_rows(gradient, self.bad[part]) for gradient in found)
        # A real parameter read as complex numbers has a complex gradient until it is pulled back.
        dtypes = [parameter.dtype for parameter in self.parameters]
        return tuple(
            gradient if dtype.is_complex else gradient.to(accumulator(dtype))
            for gradient, dtype in zip(found, dtypes, strict=True)
        )


def _random_state(device: torch.device) -> Tensor:
    """The state of torch's global generator of a device; while a graph is captured, which allows no look at it,
    nothing: the same operation ran before, in Python."""
    if device.type != "cuda":
        return torch.get_rng_state()
    return torch.empty(0) if torch.cuda.is_current_stream_capturing() else torch.cuda.get_rng_state(device)


def fallback(call: Call) -> FallbackKernel | None:
    """The kernel for any operation, or ``None`` where no argument has the rows of the batch."""
    leaves, spec = tree_flatten((call.args, dict(call.kwargs)))
    parameters: dict[int, Tensor] = {}
    rows: dict[int, Tensor] = {}
    shapes: list[tuple[int, ...]] = []
    for at, value in enumerate(leaves):
        if not isinstance(value, Tensor):
            continue
        layout = None if call.is_tracked(value) else call.layout_of(value)
        if call.is_tracked(value):
            parameters[at] = value
        elif layout is not None:
            rows[at] = layout.split(value.detach())
            shapes.append(layout.single(tuple(value.shape)))
    if not rows:
        return None
    saved = tuple(value for value in leaves if isinstance(value, Tensor))
    constants = [value.detach() if isinstance(value, Tensor) else value for value in leaves]
    # (`run` must not hold ``call``: its ``layout_of`` refers to the pass, which holds this kernel.)
    in_place, function = is_in_place(call.name), call.function

    def run(values: list[Tensor], single: list[Tensor]) -> Tensor:
        filled = dict(enumerate(constants))
        filled.update(zip(parameters, values, strict=True))
        filled.update(zip(rows, single, strict=True))
        args, kwargs = tree_unflatten(filled.values(), spec)
        if in_place:
            args = (args[0].clone(), *args[1:])
        return function(*args, **kwargs)

    return FallbackKernel(
        name=call.name,
        run=run,
        parameters=tuple(parameters.values()),
        saved=saved,
        rows=list(rows.values()),
        shapes=shapes,
        workspace=call.workspace,
    )


def is_in_place(name: str) -> bool:
    """Whether an operation writes into its first argument, by torch's naming.

    >>> [is_in_place(name) for name in ("add_", "__iadd__", "add", "__add__", "__invert__")]
    [True, True, False, False, False]
    """
    if name.startswith("__") and name.endswith("__"):
        return name[2:-2] in ("iadd", "isub", "imul", "itruediv", "idiv", "ipow", "imatmul")
    return name.endswith("_") and not name.endswith("__")
