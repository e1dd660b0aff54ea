"""Uses of trainable parameters: tensors made from parameters only, and operations that combine these with
data."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from decrescendo.base.storages import is_hollow, tensors_of
from decrescendo.base.torch_private import TransformType, running_transform
from decrescendo.clipping.clipped import accumulator
from decrescendo.clipping.layout import Layout
from decrescendo.clipping.recurrent.packed import PackedKernel
from decrescendo.clipping.rules.rule import Kernel
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.tracing import SECOND_DERIVATIVE, Tracer, is_data


@dataclass(frozen=True, slots=True)
class Tracked:
    """A tensor made from trainable parameters only; ``roots``: their names.

    ``parent``: the tensor whose entries, or some of them, are its own, each at most once; else ``None``.
    ``ids``: its rows of the parent, if they were looked up.
    """

    tensor: Tensor
    roots: tuple[str, ...]
    version: int
    parent: "Tracked | None" = None
    ids: Tensor | None = None
    root: bool = False

    @property
    def isometric(self) -> bool:
        """Whether a gradient of it has the same norm as the parameter's gradient that it gives."""
        return self.root or self.parent is not None

    def chain(self) -> Iterator[Tensor]:
        """This tensor, its parent, and so on to the parameter."""
        yield self.tensor
        if self.parent is not None:
            yield from self.parent.chain()

    def back(self, total: Tensor) -> Tensor:
        """A gradient of this tensor as a gradient of its last parent, exactly: no entry occurs twice."""
        if self.parent is None:
            return total.reshape(self.tensor.shape)
        source, own = self.parent.tensor, self.tensor
        total = total.reshape(own.shape)
        if self.ids is not None:
            found = total.new_zeros(source.shape).index_copy_(
                0, self.ids.flatten(), total.flatten(0, self.ids.dim() - 1)
            )
        elif own.untyped_storage().data_ptr() == source.untyped_storage().data_ptr():
            extent = 1 + sum((size - 1) * step for size, step in zip(source.shape, source.stride(), strict=True))
            memory = total.new_zeros(extent if source.numel() else 0)
            start = own.storage_offset() - source.storage_offset()
            memory.as_strided(own.shape, own.stride(), start).copy_(total)
            found = memory.as_strided(source.shape, source.stride())
        else:
            found = total.reshape(source.shape)  # a copy in the same order
        return self.parent.back(found)


@dataclass(frozen=True, slots=True)
class Use:
    """One recorded operation: its kernel, and the positions of its output and arguments in the autograd
    graph.

    ``inner``: edges of arguments made from parameters; ``outer``: of all other arguments.
    """

    name: str
    kernel: Kernel
    layout: Layout
    edge: GradientEdge
    parameters: tuple[Tracked, ...]
    versions: tuple[int, ...]
    inner: tuple[GradientEdge, ...]
    outer: tuple[GradientEdge, ...]
    # How many operations the tracer saw before it.
    place: int

    @property
    def roots(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return tuple(root for parameter in self.parameters for root in parameter.roots)

    def arrived(self, gradient: Tensor) -> Tensor:
        """The output gradient in the form that the kernel takes: (batch, ...) if not packed, at least float32."""
        self.check_saved()
        d = gradient if isinstance(self.kernel, PackedKernel) else self.layout.split_gradient(gradient)
        return d if d.is_complex() else d.to(accumulator(d.dtype))

    def check_saved(self) -> None:
        """Refuse if anything the kernel is going to read was written to after it was recorded."""
        for tensor, version in zip(watched(self.kernel), self.versions, strict=True):
            if tensor._version != version:
                names = ", ".join(sorted({root for parameter in self.parameters for root in parameter.roots}))
                raise UnsupportedModel(
                    f"an input of an operation must not be overwritten after its use, got {self.name} with "
                    f"{names}, whose input was changed in place. Use the out-of-place form of what follows it"
                )


def watched(kernel: Kernel) -> tuple[Tensor, ...]:
    """The tensors that must not be written to until the kernel has run: its inputs and parameters."""
    return (*kernel.saved, *kernel.parameters)


def parameter_ids(kernel: Kernel) -> set[int]:
    return {id(tensor) for tensor in kernel.parameters}


def inner_edges(items: Iterable[Tracked]) -> tuple[GradientEdge, ...]:
    """The gradient edges of tensors made from parameters, without those of the parameters."""
    return tuple(edge_of(item.tensor) for item in items if not item.root)


def roots_of(found: list[Tracked]) -> tuple[str, ...]:
    return tuple(sorted({root for item in found for root in item.roots}))


def edge_of(tensor: Tensor) -> GradientEdge:
    """The edge of the autograd graph to which a tensor's gradient goes."""
    try:
        return get_gradient_edge(tensor)
    except AssertionError:
        raise UnsupportedModel(
            "a view of a parameter must not be made where gradients are off, as torch takes it for trained and keeps "
            f"no graph of it, got one of shape {tuple(tensor.shape)}. Detach it: parameter.detach().view(..)"
        ) from None


def unaliased(output: Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The output as a tensor of its own where it is a view of something that nobody else holds.

    A linear layer gives a view of a matrix product. Writing into it (``ReLU(inplace=True)``) would rewrite the graph
    of that product, past the recorded output.
    """
    base = output._base
    if base is None or any(base is tensor or base is tensor._base for tensor in tensors_of((*args, *kwargs.values()))):
        return output
    return torch.ops.aten._unsafe_view.default(output, list(output.shape))


def data_in(tracer: Tracer, values: tuple[Any, ...]) -> list[Tensor]:
    """The tensors among the values that depend on an example."""
    return [tensor for tensor in tensors_of(values) if is_data(tracer.label(tensor))]


def _check_wrapped(tracer: Tracer, values: Iterable[Any]) -> None:
    """Refuse tensors that wrap tensors of the examples, as their labels are not seen."""
    for tensor in tensors_of(values):
        if is_hollow(tensor) and data_in(tracer, tuple(vars(tensor).values())):
            raise UnsupportedModel(
                "a trainable parameter must be used with tensors that have memory of their own, got a "
                f"{type(tensor).__name__}, which wraps the examples. Give the layer the plain tensor inside of it"
            )


def check_recordable(tracer: Tracer, name: str, found: list[Tracked], values: tuple[Any, ...]) -> None:
    """Refuse an operation on parameters in a torch.func transform, or with nested or wrapper tensors."""
    transform = running_transform()
    if transform is not None and transform.key() == TransformType.Grad:
        raise UnsupportedModel(SECOND_DERIVATIVE)
    if transform is not None:
        raise UnsupportedModel(
            "a trainable parameter must be used by ordinary operations, got "
            f"{name} with {', '.join(roots_of(found))} inside of a transform of torch.func (vmap, grad, jvp). "
            "Call the "
            "model on the whole batch, outside of the transform"
        )
    if any(tensor.is_nested for tensor in tensors_of(values)):
        raise UnsupportedModel(
            f"a trainable parameter must be used with dense tensors, got {name} with {', '.join(roots_of(found))} "
            "and a nested one, of which nothing says whose rows are where. Give rows padded to one length and a "
            "mask, or only those that a mask selects (x[mask])"
        )
    _check_wrapped(tracer, values)
