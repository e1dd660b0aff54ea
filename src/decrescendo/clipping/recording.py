"""Seeing every use of a trainable parameter in a forward pass, without touching the model.

Longer than most files: one interception sees every form in which a parameter is used.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from decrescendo.base.storages import (
    FUNCTIONS_OFF,
    ORDINARY,
    is_hollow,
    is_whole,
    paused,
    tensors_of,
)
from decrescendo.clipping.clipped import accumulator
from decrescendo.clipping.graph import leaf_of, walk
from decrescendo.clipping.layout import Layout
from decrescendo.clipping.recurrent.layers import MODES, run_recurrent
from decrescendo.clipping.recurrent.packing import Packing, in_order, make_packing, packing_of
from decrescendo.clipping.recurrent.padding import packed_up, padded_again
from decrescendo.clipping.rules import bag, conv, elementwise, embedding, linear, lookup, masks, norm
from decrescendo.clipping.rules.decompose import DECOMPOSED
from decrescendo.clipping.rules.fallback import FallbackKernel, fallback, is_in_place
from decrescendo.clipping.rules.rule import Call, Kernel, Rule, is_packed
from decrescendo.clipping.workspace import Workspace
from decrescendo.errors import DecrescendoError, UnsupportedModel
from decrescendo.row_independence.tracing import (
    BACKWARD,
    CHAINS,
    COUNTED,
    CTC,
    DISTANCES,
    READS,
    SECOND_DERIVATIVE,
    SHAPE,
    SIZES,
    Owners,
    Public,
    RowLayout,
    Tracer,
    UnobservedReads,
    check_counted,
    constant_of,
    is_data,
    is_given,
    is_uniform,
    opened,
)

RULES: dict[Callable[..., Any], Rule] = {
    **linear.RULES, **conv.RULES, **embedding.RULES, **bag.RULES, **lookup.RULES, **norm.RULES, **elementwise.RULES,
}  # fmt: skip
# Looked at whether or not a trainable parameter takes part.
CHECKS: dict[Callable[..., Any], tuple[tuple[str, ...], Callable[[Mapping[str, Any]], None]]] = {
    functional.embedding_bag: (bag.NAMES, embedding.check_embedding),
    functional.embedding: (embedding.RULES[functional.embedding].names, embedding.check_embedding),
}
_SHAPE = cast("Callable[..., Any]", cast("Any", torch)._shape_as_tensor)
_PACK = cast("Callable[..., Any]", torch._VF._pack_padded_sequence)
_PAD = cast("Callable[..., Any]", torch._VF._pad_packed_sequence)
# Views of one tensor with the same entries: norms do not change under them, nor under a choice of entries
# (`lookup.selects`).
ISOMETRIES = frozenset({
    "t", "T", "mT", "transpose", "permute", "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze",
    "contiguous", "clone", "swapaxes", "movedim",
})  # fmt: skip
EXPANSIONS = frozenset({"expand", "broadcast_to", "repeat"})
# Of their second argument they take the shape alone.
_SHAPED: dict[Callable[..., Any], Callable[..., Any]] = {
    Tensor.expand_as: Tensor.expand, Tensor.view_as: Tensor.view, Tensor.reshape_as: Tensor.reshape,
}  # fmt: skip
_CALLING = functional.triplet_margin_with_distance_loss
# Torch 2.13 has it.
_LINEAR_ENTROPY = getattr(functional, "linear_cross_entropy", None)
_NAMED = {Tensor.__setitem__, _PACK, _PAD, functional.one_hot, _SHAPE, _CALLING, _LINEAR_ENTROPY}
_USE = "use_input_stats"
# Instance norms, with the batch norm that does the same by kept statistics, and the names of their arguments.
_BY_KEPT: dict[Callable[..., Any], tuple[Callable[..., Any], tuple[str, ...]]] = {
    functional.instance_norm: (
        functional.batch_norm, ("input", "running_mean", "running_var", "weight", "bias", _USE, "momentum", "eps")
    ),
    torch.instance_norm: (
        torch.batch_norm,
        ("input", "weight", "bias", "running_mean", "running_var", _USE, "momentum", "eps", "cudnn_enabled"),
    ),
}  # fmt: skip
_RENAMED = {_USE: "training"}
# How autograd calls the step from a tensor to the same one of another class.
_ALIAS = "AliasBackward0"
# Which argument says that a gradient is going to be differentiated; of the others it is the fourth.
_CREATES: dict[Callable[..., Any], int] = {torch.autograd.grad: 4}
# They leave nothing of what was there.
_OVERWRITES = frozenset({Tensor.copy_, Tensor.fill_})
_SPECIAL = READS | CTC | DISTANCES | CHAINS | COUNTED | _SHAPED.keys() | _NAMED | _BY_KEPT.keys()


@dataclass(frozen=True, slots=True)
class Tracked:
    """A tensor that is made from trainable parameters alone: which, and how it was chosen from one of them.

    ``parent``: where it has the entries of one tensor in another order, or some of them, that one; else none.
    ``ids``: the rows of the parent that it has, where it is no view.
    """

    tensor: Tensor
    roots: tuple[str, ...]
    version: int
    parent: "Tracked | None" = None
    ids: Tensor | None = None
    root: bool = False

    @property
    def isometric(self) -> bool:
        """Whether norms of gradients do not change on the way back to the parameter."""
        return self.root or self.parent is not None

    def chain(self) -> Iterator[Tensor]:
        """This tensor, and those it was chosen from."""
        yield self.tensor
        if self.parent is not None:
            yield from self.parent.chain()

    def back(self, total: Tensor) -> Tensor:
        """A gradient of this tensor as one of the parameter it was chosen from, exactly: no entry comes twice."""
        if self.parent is None:
            return total.reshape(self.tensor.shape)
        source, own = self.parent.tensor, self.tensor
        total = total.reshape(own.shape)
        if self.ids is not None:
            found = total.new_zeros(source.shape).index_copy_(
                0, self.ids.flatten(), total.flatten(0, self.ids.dim() - 1)
            )
        elif own.untyped_storage().data_ptr() == source.untyped_storage().data_ptr():
            extent = 1 + sum(
                (size - 1) * step for size, step in zip(source.shape, source.stride(), strict=True)
            )
            memory = total.new_zeros(extent if source.numel() else 0)
            start = own.storage_offset() - source.storage_offset()
            memory.as_strided(own.shape, own.stride(), start).copy_(total)
            found = memory.as_strided(source.shape, source.stride())
        else:
            found = total.reshape(source.shape)  # a copy in the same order
        return self.parent.back(found)


@dataclass(frozen=True, slots=True)
class Use:
    """One recorded operation: its kernel, and where in the autograd graph its output and arguments are.

    ``inner``: of what is made from parameters; ``outer``: of what is made from data.
    """

    name: str
    kernel: Kernel
    layout: Layout
    edge: GradientEdge
    parameters: tuple[Tracked, ...]
    versions: tuple[int, ...]
    inner: tuple[GradientEdge, ...]
    outer: tuple[GradientEdge, ...]
    # After which operation of the pass.
    place: int

    @property
    def roots(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return tuple(root for parameter in self.parameters for root in parameter.roots)

    def arrived(self, gradient: Tensor) -> Tensor:
        """The gradient of its output as its kernel takes it, (batch, ...) if it is not packed, of at least float32."""
        self.check_saved()
        d = gradient if is_packed(self.kernel) else self.layout.split_gradient(gradient)
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
    """What must not be written to between the forward pass and the rules: inputs, and the forms of parameters used."""
    return (*kernel.saved, *kernel.parameters)


@dataclass(slots=True)
class Recorder(TorchFunctionMode):
    """Active during one forward pass; every operation that sees a tracked tensor and data becomes a `Use`.

    Args:
        parameters: the trainable ones, by name.
        tracer: says where the examples are in each tensor.
        workspace: what the rules may spend.
    """

    parameters: Mapping[str, Tensor]
    tracer: Tracer
    workspace: Workspace
    uses: list[Use] = field(default_factory=list)
    tracked: dict[int, Tracked] = field(default_factory=dict)
    packings: dict[int, tuple[Owners, Packing]] = field(default_factory=dict)
    # What the uses and the graphs of derived weights go back to: version, and what was written there last.
    kept: list[tuple[str, Tensor, int, int]] = field(default_factory=list)
    calls: int = 0
    # Whether the loss differentiates what it is going to be differentiated through.
    twice: bool = False

    def __post_init__(self) -> None:
        TorchFunctionMode.__init__(self)
        self.tracer.reads.recorded = True
        for name, parameter in self.parameters.items():
            self.tracked[id(parameter)] = Tracked(parameter, (name,), parameter._version, root=True)

    @property
    def batch(self) -> int:
        """How many examples there are."""
        return self.tracer.count

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        try:
            if func not in SIZES:
                self.tracer.check_called(func, args, kwargs or {})
            return self._seen(func, args, kwargs or {})
        except (DecrescendoError, AttributeError):
            raise
        except Exception as error:
            # Functions in Python raise others of their own, after answers that do not depend on the data; but they see
            # how many rows there are.
            told = not isinstance(func, FunctionType) or isinstance(error, (RuntimeError, IndexError))
            if told or self.tracer.counts.within:
                self.tracer.raised = self.tracer.raised or f"{name_of(func)} raised {type(error).__name__}"
            raise

    def _seen(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in SIZES:
            return (
                self.tracer.counts.size(func, args, kwargs)
                if self.tracer.labels.counting
                else func(*args, **kwargs)
            )
        if self.tracer.labels.counting:
            self.tracer.counts.enter(func, args, kwargs)
            if is_given(args, kwargs):
                return self.tracer.counts.given(func, args, kwargs, self._run)
        return self._chosen(func, args, kwargs)

    def _chosen(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in BACKWARD:
            at = _CREATES.get(func, 3)
            self.twice = self.twice or bool(args[at] if len(args) > at else kwargs.get("create_graph"))
            return self._run(self._reading(func), args, kwargs)
        if func in CHECKS:
            names, check = CHECKS[func]
            check(dict(zip(names, args, strict=False)) | kwargs)
        if func in _SPECIAL:
            return self._special(func, args, kwargs)
        return self._run(func, args, kwargs)

    def _reading(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """A backward pass inside the loss, of which what Python reads is seen."""

        @functools.wraps(func)
        def run(*args: Any, **kwargs: Any) -> Any:
            with UnobservedReads(self.tracer):
                return opened(func)(*args, **kwargs)

        return run

    def _special(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        if func in READS:
            self.tracer.read(func, args, kwargs)
        elif func in CTC:
            with self.tracer.reads.reading((*args, *kwargs.values())):
                return self._run(func, args, kwargs)
        elif func in DISTANCES and not {"compute_mode"} & kwargs.keys() and len(args) < 4:
            # By default torch chooses by the number of rows; the result must not depend on it.
            kwargs = {**kwargs, "compute_mode": "donot_use_mm_for_euclid_dist"}
        elif func is _SHAPE:
            self.tracer.refuse(
                "a pass must do the same for any number of examples, but _SHAPE makes a tensor of it. "
                "Use a constant"
            )
        elif func in _SHAPED and len(args) == 2:
            shape = (
                self.tracer.counts.size(SHAPE, args[1:], {}) if self.tracer.labels.counting else args[1].shape
            )
            func, args = _SHAPED[func], (args[0], shape)
            if is_given(args, kwargs):
                return self.tracer.counts.given(func, args, kwargs, self._run)
        elif func in _BY_KEPT and not (
            given := dict(zip(_BY_KEPT[func][1], args, strict=False)) | kwargs
        ).get(_USE, True):
            # By kept statistics torch lays them along all examples; it is what batch norm does by them, each alone.
            return self._run(
                _BY_KEPT[func][0], (), {_RENAMED.get(name, name): at for name, at in given.items()}
            )
        elif func is _LINEAR_ENTROPY:
            # In chunks of rows it is one kernel, of which nothing inside is seen.
            kwargs = {**kwargs, "options": None}
        elif func is _CALLING:
            with self:  # what it is given to call is seen
                return opened(func)(*args, **kwargs)
        elif func in CHAINS and len(args[0]) > 2:
            # By default torch chooses the order of the products by the number of rows.
            with self:
                return functools.reduce(torch.matmul, args[0])
        elif func is _PACK and isinstance(self.tracer.label(args[0]), RowLayout):
            return packed_up(self.tracer, *args)
        elif func is Tensor.__setitem__ and self.tracer.labels.counting and _is_rows(*args):
            # torch would leave out a first dimension of size one: then nothing says whose one row is.
            func, args = Tensor.index_put_, (args[0], (args[1],), args[2])
        elif func is functional.one_hot:
            classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
            if classes > 0:  # torch looks at the largest id, to refuse it
                return (args[0].unsqueeze(-1) == torch.arange(classes, device=args[0].device)).long()
        elif func is _PAD and isinstance(self.tracer.label(args[0]), RowLayout):
            return padded_again(self.tracer, *args)
        elif func in COUNTED and func not in MODES:
            check_counted(self.tracer, func, args, kwargs)
        return self._run(func, args, kwargs)

    def _run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found: list[Tracked] = []
        for tensor in tensors_of((*args, *kwargs.values())):
            item = self.tracked.get(id(tensor)) or self._subclassed(tensor)
            if item is not None:
                found.append(item if item.version == tensor._version else self._changed(item))
        if func in MODES and self._data_in((*args, *kwargs.values())):
            return run_recurrent(self, func, args, kwargs)
        if not found or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        first = args[0] if args else kwargs.get("input")
        if func in DECOMPOSED and not self.is_tracked(first):
            with self, self.tracer.counts.trusted():
                return DECOMPOSED[func](*args, **kwargs)
        if func not in RULES and is_composite(func):
            with self, self.tracer.counts.trusted():
                return opened(func)(*args, **kwargs)
        return self._record(func, args, kwargs, found)

    def _data_in(self, values: tuple[Any, ...]) -> list[Tensor]:
        """The tensors among values that an example reaches."""
        return [tensor for tensor in tensors_of(values) if is_data(self.tracer.label(tensor))]

    def _changed(self, item: Tracked) -> Tracked:
        """A tensor that was written to since, perhaps through a view: made from whatever its graph says."""
        reached = {self.tracked[key].roots[0] for key in leaves(item.tensor) if key in self.tracked}
        self.tracked[id(item.tensor)] = found = Tracked(
            item.tensor, tuple(sorted(reached)), item.tensor._version
        )
        return found

    def _subclassed(self, tensor: Tensor) -> Tracked | None:
        """A parameter as a tensor of another class (`as_subclass`), which no torch function shows."""
        if type(tensor) in ORDINARY or is_hollow(tensor):
            return None
        with FUNCTIONS_OFF():
            node, version = tensor.grad_fn, tensor._version
        if node is None or node.name() != _ALIAS:
            return None
        output = 0
        while node is not None and node.name() == _ALIAS:
            ((node, output),) = node.next_functions
        if node is None:
            return None
        # Of several tensors that one operation gave (chunks of a weight) the one of this number.
        source = self.tracked.get(leaf_of(node)) or next(
            (
                item
                for item in self.tracked.values()
                if item.tensor.grad_fn is node and item.tensor.output_nr == output
            ),
            None,
        )
        if source is None:
            return None
        self.keep("as_subclass", (source.tensor, tensor))
        parent = source if source.isometric else None
        self.tracked[id(tensor)] = found = Tracked(tensor, source.roots, version, parent)
        return found

    def _check_wrapped(self, values: Iterable[Any]) -> None:
        """Refuse tensors that wrap others, of which what the examples have is not seen."""
        for tensor in tensors_of(values):
            if is_hollow(tensor) and self._data_in(tuple(vars(tensor).values())):
                raise UnsupportedModel(
                    "a trainable parameter must be used with tensors that have memory of their own, got a "
                    f"{type(tensor).__name__}, which wraps the examples. Give the layer the plain tensor inside of it"
                )

    def keep(self, name: str, tensors: Iterable[Tensor]) -> None:
        """Note tensors that are read again after the forward pass."""
        self.kept += [(name, tensor, tensor._version, self.tracer.written(tensor)) for tensor in tensors]

    def check_kept(self) -> None:
        """Refuse if any of them was written to past autograd (``.data``), which does not see it."""
        for name, tensor, version, written in self.kept:
            if tensor._version == version and self.tracer.written(tensor) != written:
                raise UnsupportedModel(
                    f"what an operation was given must not be overwritten after its use, got {name}, of which a tensor "
                    f"of shape {tuple(tensor.shape)} was changed through .data. Use the out-of-place form"
                )

    def is_tracked(self, value: object) -> bool:
        """Whether a tensor is a trainable parameter, or made from them alone."""
        return id(value) in self.tracked

    def layout_of(self, tensor: Tensor) -> Layout | None:
        """Where the examples are in a tensor, if there are any."""
        label = self.tracer.label(tensor)
        if not isinstance(label, RowLayout):
            return None
        owners = label.owners
        packed = None if owners is None or owners.each else self.packing(owners, tensor.device)
        return Layout.of(label, self.batch, packed)

    def packing(self, owners: Owners, device: torch.device, sizes: tuple[int, ...] | None = None) -> Packing:
        """How rows on ``device`` that belong to these examples are padded; ``sizes``: of a packed sequence, at each
        step."""
        known = self.packings.get(id(owners))
        if known is None or (sizes is not None and not known[1].sizes):
            with paused():
                example = owners.example.to(device)
                made = packing_of(example, self.batch)
                if sizes is not None:
                    made = make_packing(sizes, in_order(example[: sizes[0]], self.batch))
            known = self.packings[id(owners)] = (owners, made)
        return known[1]

    def attach(
        self, name: str, output: Tensor, tracked: Sequence[Tensor], layout: Layout, kernel: Kernel
    ) -> None:
        """Note a use of ``tracked`` whose output gradient is that of ``output``."""
        items = tuple(self.tracked[id(tensor)] for tensor in tracked)
        self._add(name, output, items, layout, kernel, _inner(items))

    def _add(
        self, name: str, output: Tensor, items: tuple[Tracked, ...], layout: Layout, kernel: Kernel,
        inner: tuple[GradientEdge, ...], outer: tuple[GradientEdge, ...] = (),
    ) -> None:  # fmt: skip
        read = watched(kernel)
        versions = tuple(tensor._version for tensor in read)
        self.keep(name, read)
        edge = _edge_of(output)
        place = len(self.tracer.trace.events)
        self.uses.append(Use(name, kernel, layout, edge, items, versions, inner, outer, place))

    def _record(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], found: list[Tracked]
    ) -> Any:
        name = name_of(func)
        self.calls += 1
        if func is Tensor.__setitem__ and (masked := masks.masked(*args)) is not None:
            return self._set_masked(args[0], *masked)
        transform = cast("Any", torch)._C._functorch.peek_interpreter_stack()
        if transform is not None and transform.key() == cast("Any", torch)._C._functorch.TransformType.Grad:
            raise UnsupportedModel(SECOND_DERIVATIVE)
        if transform is not None:
            raise UnsupportedModel(
                "a trainable parameter must be used by ordinary operations, got "
                f"{name} with {', '.join(_roots(found))} inside of a transform of torch.func (vmap, grad, jvp). "
                "Call the "
                "model on the whole batch, outside of the transform"
            )
        if any(tensor.is_nested for tensor in tensors_of((*args, *kwargs.values()))):
            raise UnsupportedModel(
                f"a trainable parameter must be used with dense tensors, got {name} with {', '.join(_roots(found))} "
                "and a nested one, of which nothing says whose rows are where. Give rows padded to one length and a "
                "mask, or only those that a mask selects (x[mask])"
            )
        self._check_wrapped((*args, *kwargs.values()))
        args, kwargs = lookup.dense(func, args, kwargs)
        given, data = args, self._data_in((*args, *kwargs.values()))
        if not data:
            args, kwargs, data = self._laid_out(name, args, kwargs)
        # What data were written into is theirs from then on.
        found = [item for item in found if all(item.tensor is not tensor for tensor in data)]
        if found and data and _is_part(func, name, given):
            return self._write_part(func, given, kwargs)
        others = [
            tensor for tensor in tensors_of((*args, *kwargs.values())) if id(tensor) not in self.tracked
        ]
        outer = tuple(_edge_of(tensor) for tensor in others if tensor.requires_grad)
        before = args
        if is_in_place(name) and data and args[0] is data[0]:
            with paused():
                copy = args[0].detach().clone()
            self.tracer.assign(copy, self.tracer.label(args[0]))
            before = (copy, *args[1:])
        inner = _inner(found)
        output = func(*args, **kwargs)
        made = [tensor for tensor in tensors_of((output,)) if tensor.requires_grad]
        if output is None and not data and tensors_of(args[:1]) and args[0].requires_grad:
            made = [args[0]]  # a parameter written into a constant
        if not made or not found:
            return output
        single = isinstance(output, Tensor)
        if single and data:
            output = unaliased(output, args, kwargs)
        if not data:
            copies = name in EXPANSIONS and isinstance(output, Tensor)
            if copies and (copied := self._copied(name, found[0].tensor, output)) is not None:
                output, layout, kernel = copied
                self._add(name, output, tuple(found), layout, kernel, inner)
                return output
            self._derive(made, name, found, args, kwargs)
            return output
        if not single:
            raise UnsupportedModel(
                "an operation that mixes a trainable parameter with data must return one tensor, got "
                f"{name} with {', '.join(_roots(found))}, which returns {len(made)}. Freeze these parameters, or use "
                "layers made of linear, convolution, embedding and normalisation"
            )
        self._use(func, name, before, kwargs, cast("Tensor", output), found, inner, outer)
        return output

    def _set_masked(self, target: Tensor, mask: Tensor, value: Tensor, shape: Sequence[int]) -> None:
        """A value that is the same at each place of a mask, by operations of which the rules know."""
        with self:
            target.copy_(torch.where(mask, value.reshape(tuple(shape)), target.clone()))

    def _write_part(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """A parameter written into a part of a tensor: into a copy, of which the rules know, that is then put there."""
        target, *rest = args
        if func is Tensor.__setitem__:
            index, value = rest
            if masks.is_basic(index):
                part = target[index]
                func, target, rest = Tensor.copy_, part, [value]
            elif value.dim() <= masks.dims_after(target, index):
                mask = torch.zeros_like(target, dtype=torch.bool)
                mask[index] = True
                self._set_masked(target, mask, value, value.shape)
                return target
        if func in _OVERWRITES:
            value = rest[0]
            self._set_masked(
                target,
                torch.ones_like(target, dtype=torch.bool),
                value,
                value.shape[-target.dim() :] if value.dim() else (),
            )
            return target
        copy = target.clone()
        self._run(masks.set_entries_ if func is Tensor.__setitem__ else func, (copy, *rest), kwargs)
        return target.copy_(copy)

    def _laid_out(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[Tensor]]:
        """The arguments with constants that have one row an example (first states, types of tokens) as rows."""
        laid: list[Tensor] = []
        lay = functools.partial(self._lay, name, itertools.count(), laid)
        return tuple(map(lay, args)), {key: lay(value) for key, value in kwargs.items()}, laid

    def _lay(self, name: str, numbers: Iterator[int], laid: list[Tensor], value: Any) -> Any:
        """One argument, by its number among all; what was laid out comes to ``laid``."""
        if isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in cast("list[Any]", value)):
            return [self._lay(name, numbers, laid, item) for item in cast("list[Any]", value)]
        number = next(numbers)
        if not isinstance(value, Tensor) or self.is_tracked(value) or value.requires_grad:
            return value
        if is_hollow(value):
            return value
        for place in self._likely(value):
            with paused():
                filled = constant_of(self.tracer.label(value)) is Public.FILL
                uniform = filled or is_uniform(value, place, self.batch)
            if uniform and self.tracer.guess(self.calls, number, place):
                # What is written to stays the same tensor; only one that the pass made has a label.
                own = number == 0 and is_in_place(name) and is_whole(value) and self.tracer.made(value)
                with paused():
                    laid.append(value if own else value.clone(memory_format=torch.contiguous_format))
                self.tracer.assign(laid[-1], place)
                return laid[-1]
        return value

    def _likely(self, value: Tensor) -> list[RowLayout]:
        """Where examples may lie in a constant, perhaps several rows of each (the texts of a choice)."""
        places = [RowLayout(axis, value.shape[axis] // self.batch) for axis in range(min(2, value.dim()))]
        whole = [
            p
            for p in places
            if p.inner * self.batch == value.shape[p.dim] and (p.inner == 1 or value.dim() > 1)
        ]
        return sorted((p for p in whole if p.inner), key=lambda place: place.inner)

    def _copied(self, name: str, source: Tensor, output: Tensor) -> tuple[Tensor, Layout, Kernel] | None:
        """One copy of a parameter for each example (a class token, an initial state)."""
        places: list[RowLayout] = []
        longer = source.dim() > 0 and (self.batch * source.shape[0], *source.shape[1:])
        if name == "repeat" and output.shape == longer and source.shape[0] > 1:
            places.append(RowLayout(0, source.shape[0]))  # one copy after another along a dimension it had
        shape = (*[1] * (output.dim() - source.dim()), *source.shape)
        if all(size in (1, wide) for size, wide in zip(shape, output.shape, strict=True)):
            places += [place for place in self._likely(output) if shape[place.dim] == 1]
        for place in places:
            if self.tracer.guess(self.calls, 0, place):
                output = output.clone(memory_format=torch.contiguous_format)
                self.tracer.assign(output, place)
                layout = Layout.of(place, self.batch)
                call = Call(
                    name, torch.Tensor.expand, (source,), {}, tuple(output.shape), layout, {id(source): source},
                    self.layout_of, self.workspace,
                )  # fmt: skip
                kernel = elementwise.copies(call)
                return None if kernel is None else (output, layout, kernel)
        return None

    def _derive(
        self,
        made: list[Tensor],
        name: str,
        found: list[Tracked],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        self.keep(name, (*tensors_of((*args, *kwargs.values())), *made))
        with paused(), FUNCTIONS_OFF():  # what it compares is no operation of the program's
            chosen = lookup.selects(name, args, kwargs, self.tracer.same)
        chosen = chosen or (name in ISOMETRIES and len(made) == 1)
        kept = chosen and len(found) == 1 and found[0].isometric and found[0].tensor.dtype == made[0].dtype
        ids = lookup.ids_of(name, args, kwargs) if kept else None
        for tensor in made:
            if kept and tensor is not found[0].tensor:
                item = Tracked(tensor, found[0].roots, tensor._version, found[0], ids)
            else:
                item = Tracked(tensor, _roots(found), tensor._version)
            self.tracked[id(tensor)] = item

    def _use(
        self,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Tensor,
        found: list[Tracked],
        inner: tuple[GradientEdge, ...],
        outer: tuple[GradientEdge, ...],
    ) -> None:
        layout, rule = self.layout_of(output), RULES.get(func)
        if layout is None:
            return  # refused where it reaches a loss
        tracked = {id(item.tensor): item.tensor for item in found}
        call = Call(
            name, func, args, kwargs, tuple(output.shape), layout, tracked, self.layout_of, self.workspace
        )
        kernel = None
        with paused():
            # Rules for products are of real numbers.
            real = not output.is_complex() or func in elementwise.RULES
            if rule is not None and real and layout.kind in rule.layouts:
                kernel = rule.build(call, call.bind(rule.names))
            if kernel is None or _answers(kernel) != tracked.keys():
                kernel = fallback(call)
        roots = _roots(found)
        if kernel is None or _answers(kernel) != tracked.keys():
            raise UnsupportedModel(
                f"an operation on a trainable parameter must work on one example alone, got {name} with "
                f"{', '.join(roots)}, whose arguments the engine cannot tell apart. Write it with ordinary operations, "
                "or freeze these parameters"
            )
        if isinstance(kernel, FallbackKernel):
            kernel.roots = roots
        parameters = tuple(self.tracked[id(tensor)] for tensor in kernel.parameters)
        self._add(name, output, parameters, layout, kernel, inner, outer)


def _is_part(func: Callable[..., Any], name: str, args: tuple[Any, ...]) -> bool:
    """Whether an operation writes to entries of its first argument, or to all of one that is a view: what autograd
    keeps of it lies behind the tensor that the view is of."""
    return func is Tensor.__setitem__ or (is_in_place(name) and bool(args) and args[0]._base is not None)


def _is_rows(target: Tensor, index: object, value: object) -> bool:
    """Whether rows that a mask or an index selects are set to as many others."""
    if not isinstance(index, Tensor) or not isinstance(value, Tensor):
        return False
    selected = (index.dim(), 1) if index.dtype == torch.bool else (1, index.dim())
    return value.dim() == target.dim() - selected[0] + selected[1]


def _answers(kernel: Kernel) -> set[int]:
    return {id(tensor) for tensor in kernel.parameters}


def _inner(items: Iterable[Tracked]) -> tuple[GradientEdge, ...]:
    """Where what is made from parameters is in the graph."""
    return tuple(_edge_of(item.tensor) for item in items if not item.root)


def _roots(found: list[Tracked]) -> tuple[str, ...]:
    return tuple(sorted({root for item in found for root in item.roots}))


def leaves(tensor: Tensor) -> Iterator[int]:
    """The ids of the leaves of a tensor's graph."""
    starts = [_edge_of(tensor).node] if tensor.requires_grad else []
    return (leaf_of(node) for node, _ in walk(starts))


def unaliased(output: Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The output as a tensor of its own where it is a view of something that nobody else holds.

    A linear layer gives a view of a matrix product. Writing into it (``ReLU(inplace=True)``) would rewrite the graph
    of that product, past the recorded output.
    """
    base = output._base
    if base is None or any(
        base is tensor or base is tensor._base for tensor in tensors_of((*args, *kwargs.values()))
    ):
        return output
    return torch.ops.aten._unsafe_view.default(output, list(output.shape))


def name_of(func: Callable[..., Any]) -> str:
    """The operation's name for messages; a property is named after itself."""
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__"):
        return str(getattr(getattr(func, "__self__", None), "__name__", name))
    return str(name or func)


def is_composite(func: Callable[..., Any]) -> bool:
    """Whether ``func`` is one of torch's Python functions, whose operations can be seen one by one."""
    return isinstance(func, FunctionType) and func.__module__ in ("torch.nn.functional", "torch.functional")


def _edge_of(tensor: Tensor) -> GradientEdge:
    """Where its gradient goes to in the graph."""
    try:
        return get_gradient_edge(tensor)
    except AssertionError:
        raise UnsupportedModel(
            "a view of a parameter must not be made where gradients are off, as torch takes it for trained and keeps "
            f"no graph of it, got one of shape {tuple(tensor.shape)}. Detach it: parameter.detach().view(..)"
        ) from None
