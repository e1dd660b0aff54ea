"""Seeing every use of a trainable parameter in a forward pass, without touching the model."""

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from decrescendo.clipping.clipped import accumulator
from decrescendo.clipping.layout import Kind, Layout, candidates
from decrescendo.clipping.means import Means
from decrescendo.clipping.recurrent.decompose import CELLS, RECURRENT, run_cell
from decrescendo.clipping.recurrent.layers import run_recurrent
from decrescendo.clipping.recurrent.packing import Packing, make_packing
from decrescendo.clipping.rules import (
    bag,
    contraction,
    conv,
    elementwise,
    embedding,
    linear,
    lookup,
    norm,
    transposed,
)
from decrescendo.clipping.rules.fallback import FallbackKernel, fallback, is_in_place
from decrescendo.clipping.rules.rule import Call, Kernel, Rule, is_packed
from decrescendo.errors import UnsupportedModel

RULES: dict[Callable[..., Any], Rule] = {
    **linear.RULES, **contraction.RULES, **conv.RULES, **transposed.RULES, **embedding.RULES, **bag.RULES,
    **lookup.RULES, **norm.RULES, **elementwise.RULES,
}  # fmt: skip
# Looked at whether or not a trainable parameter takes part.
CHECKS: dict[Callable[..., Any], tuple[tuple[str, ...], Callable[[Mapping[str, Any]], None]]] = {
    functional.batch_norm: (norm.BATCH_NORM, norm.check_batch_norm),
    functional.instance_norm: (norm.INSTANCE_NORM, norm.check_instance_norm),
    functional.embedding_bag: (bag.NAMES, embedding.check_embedding),
    functional.embedding: (embedding.RULES[functional.embedding].names, embedding.check_embedding),
}
_PACK = cast("Callable[..., Any]", torch._VF._pack_padded_sequence)  # pyright: ignore
# Views of one tensor with the same entries: norms do not change under them, nor under a choice of entries
# (`lookup.selects`).
ISOMETRIES = frozenset({
    "t", "T", "mT", "transpose", "permute", "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze",
    "contiguous", "clone", "swapaxes", "movedim",
})  # fmt: skip
EXPANSIONS = frozenset({"expand", "expand_as", "broadcast_to", "repeat"})


@dataclass(frozen=True, slots=True)
class Tracked:
    """A tensor that is made from trainable parameters alone: which, and whether it only reshapes one."""

    tensor: Tensor
    roots: tuple[str, ...]
    isometric: bool


@dataclass(frozen=True, slots=True)
class Use:
    """One recorded operation: its kernel, and where in the autograd graph its output and arguments are."""

    name: str
    kernel: Kernel
    layout: Layout
    edge: GradientEdge
    parameters: tuple[Tracked, ...]
    versions: tuple[int, ...]
    inner: tuple[GradientEdge, ...]
    outer: tuple[GradientEdge, ...]

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


@dataclass(frozen=True, slots=True)
class Decision:
    """Which layout was taken for an operation, and which its shape would have allowed."""

    name: str
    roots: tuple[str, ...]
    kind: Kind
    options: tuple[Kind, ...]
    use: int | None


@dataclass(slots=True)
class Recorder(TorchFunctionMode):
    """Active during one forward pass; every operation that sees a tracked tensor becomes a `Use`.

    Args:
        parameters: the trainable ones, by name.
        constants: ids of the model's buffers: tensors that are the same for every batch.
        batch: number of examples.
        hints: decisions of an earlier pass that were checked; taken again where the operation is the same.
        means: what the rules may spend.
    """

    parameters: Mapping[str, Tensor]
    constants: frozenset[int]
    batch: int
    hints: "tuple[Decision, ...]"
    means: Means
    uses: list[Use] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    tracked: dict[int, Tracked] = field(default_factory=dict)
    # By the id of their batch_sizes, which a PackedSequence hands on; held so that the id stays theirs.
    packings: dict[int, tuple[Tensor, Packing]] = field(default_factory=dict)
    selected: tuple[Tensor, int, Tensor] | None = field(default=None)

    def __post_init__(self) -> None:
        TorchFunctionMode.__init__(self)
        for name, parameter in self.parameters.items():
            self.tracked[id(parameter)] = Tracked(parameter, (name,), True)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in CHECKS:
            names, check = CHECKS[func]
            check(dict(zip(names, args, strict=False)) | kwargs)
        if func in (Tensor.index_select, torch.index_select, _PACK):
            return self._observe(func, args, kwargs)
        return self._run(func, args, kwargs)

    def _run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not torch.is_grad_enabled():
            return func(*args, **kwargs)
        found = [
            self.tracked[id(tensor)] for tensor in tensors_in(args, kwargs) if id(tensor) in self.tracked
        ]
        if not found:
            return func(*args, **kwargs)
        if func in RECURRENT:
            return run_recurrent(self, func, args, kwargs)
        if func in CELLS:
            with self:
                return run_cell(func, args, kwargs)
        if func not in RULES and is_composite(func):
            with self:
                return opened(func)(*args, **kwargs)
        return self._record(func, args, kwargs, found)

    def _observe(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Remember how sequences were sorted and packed: the packed data alone does not show it."""
        output = self._run(func, args, kwargs)
        if func is not _PACK:
            dim, index = (
                args[1] if len(args) > 1 else kwargs["dim"],
                args[2] if len(args) > 2 else kwargs["index"],
            )
            self.selected = (output, dim % max(output.dim(), 1), index)
            return output
        data, sizes = output
        order = None
        if self.selected is not None and self.selected[0] is args[0]:
            _, dim, index = self.selected
            whole = torch.arange(int(sizes[0]), device=index.device)
            # A selection of steps, or of some sequences only, is not how they were sorted.
            if dim == (0 if args[2] else 1) and torch.equal(index.sort()[0], whole):
                order = index
        packing = make_packing(tuple(sizes.tolist()), order, data.device)
        self.packings[id(sizes)] = (sizes, packing)
        return output

    def packing(self, batch_sizes: Tensor) -> Packing:
        """How data with these batch sizes was packed."""
        known = self.packings.get(id(batch_sizes))
        if known is None:
            raise UnsupportedModel(
                "packed sequences must be packed inside the loss or the model, got batch sizes that were made "
                "elsewhere. Call pack_padded_sequence on padded rows there, with enforce_sorted=False"
            )
        return known[1]

    def is_tracked(self, value: object) -> bool:
        """Whether a tensor is a trainable parameter, or made from them alone."""
        return id(value) in self.tracked

    def attach(
        self,
        name: str,
        output: Tensor,
        tracked: Sequence[Tensor],
        layouts: Sequence[Layout],
        build: Callable[[Layout], Kernel],
    ) -> None:
        """Note a use of ``tracked`` whose output gradient is that of ``output``, in one of the ``layouts``."""
        items = tuple(self.tracked[id(tensor)] for tensor in tracked)
        roots = tuple(sorted({root for item in items for root in item.roots}))
        options = self._hinted(name, roots, tuple(layout.kind for layout in layouts))
        (layout,) = (layout for layout in layouts if layout.kind == options[0])
        kernel = build(layout)
        inner = tuple(get_gradient_edge(tensor) for tensor in tracked)
        self.decisions.append(Decision(name, roots, layout.kind, options, len(self.uses)))
        versions = tuple(tensor._version for tensor in watched(kernel))
        self.uses.append(Use(name, kernel, layout, get_gradient_edge(output), items, versions, inner, ()))

    def _hinted(self, name: str, roots: tuple[str, ...], options: tuple[Kind, ...]) -> tuple[Kind, ...]:
        """Options from the one on that a checked pass has found right."""
        order = len(self.decisions)
        if order < len(self.hints):
            hint = self.hints[order]
            if (hint.name, hint.roots) == (name, roots) and hint.kind in options:
                return options[options.index(hint.kind) :]
        return options

    def _layout(self, kind: Kind, output: Tensor) -> Layout:
        return Layout(kind, self.batch, self._packing_of(output) if kind == "packed" else None)

    def _packing_of(self, output: Tensor) -> Packing | None:
        """The packing whose data has as many rows."""
        fitting = [p for _, p in self.packings.values() if output.dim() > 0 and p.rows == output.shape[0]]
        if any(not packing.same(fitting[0]) for packing in fitting):
            raise UnsupportedModel(
                "trainable layers on packed data must be able to tell whose row is whose, got two packings with "
                f"{fitting[0].rows} rows each. Apply these layers to padded rows, before packing or after unpacking"
            )
        sequences = fitting[0].sizes[0] if fitting else 0
        return fitting[0] if fitting and sequences % self.batch == 0 else None

    def _record(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], found: list[Tracked]
    ) -> Any:
        name = name_of(func)
        args, kwargs = lookup.dense(func, args, kwargs)
        others = [tensor for tensor in tensors_in(args, kwargs) if id(tensor) not in self.tracked]
        outer = tuple(get_gradient_edge(tensor) for tensor in others if tensor.requires_grad)
        before = args
        if is_in_place(name) and others and args[0] is others[0]:
            before = (args[0].detach().clone(), *args[1:])
        inner = tuple(get_gradient_edge(item.tensor) for item in found)
        output = func(*args, **kwargs)
        made = [tensor for tensor in tensors_in((output,), {}) if tensor.requires_grad]
        if not made:
            return output
        data = [tensor for tensor in others if id(tensor) not in self.constants]
        rooted = tuple(sorted({root for item in found for root in item.roots}))
        single = isinstance(output, Tensor)
        if single and data:
            output = unaliased(output, args, kwargs)
        expansion = self._expands(name, found[0].tensor, output) if name in EXPANSIONS and single else ()
        if not data and not expansion:
            self._derive(made, name, found, rooted, lookup.selects(name, args, kwargs))
            return output
        if not single:
            raise UnsupportedModel(
                "an operation that mixes a trainable parameter with data must return one tensor, got "
                f"{name} with "
                f"{', '.join(rooted)}, which returns {len(made)}. Freeze these parameters, or use layers "
                "made of "
                "linear, convolution, embedding and normalisation"
            )
        self._use(func, name, before, kwargs, output, found, rooted, inner, outer, expansion)
        return output

    def _expands(self, name: str, source: Tensor, output: Tensor) -> tuple[Kind, ...]:
        """In which layouts the output is one copy of the source for each example (a class token, an initial state)."""
        copies = source.dim() > 0 and (self.batch * source.shape[0], *source.shape[1:])
        if name == "repeat" and output.shape == copies and source.shape[0] > 1:
            return ("folded",)  # one copy after another along a dimension it had
        fresh = output.dim() - source.dim()
        shape = (*[1] * fresh, *source.shape)
        if any(size not in (1, wide) for size, wide in zip(shape, output.shape, strict=True)):
            return ()  # repeat: tiles, not copies
        kinds: tuple[tuple[Kind, int], ...] = (("rows", 0), ("columns", 1))
        return tuple(
            kind
            for kind, axis in kinds
            if axis < output.dim() and shape[axis] == 1 and output.shape[axis] == self.batch
        )

    def _derive(
        self,
        made: list[Tensor],
        name: str,
        found: list[Tracked],
        roots: tuple[str, ...],
        selects: bool = False,
    ) -> None:
        kept = selects or (name in ISOMETRIES and len(made) == 1)
        isometric = kept and len(found) == 1 and found[0].isometric
        for tensor in made:
            self.tracked[id(tensor)] = Tracked(tensor, roots, isometric)

    def _use(
        self,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Tensor,
        found: list[Tracked],
        roots: tuple[str, ...],
        inner: tuple[GradientEdge, ...],
        outer: tuple[GradientEdge, ...],
        expansion: tuple[Kind, ...],
    ) -> None:
        rule = RULES.get(func)
        allowed = candidates(output, self.batch)
        if self.packings and self._packing_of(output) is not None:
            allowed = ("packed", *allowed)
        if expansion:
            allowed = cast("tuple[Kind, ...]", (*expansion, "shared"))
        if outer:
            # With an activation in it, it is not made from parameters alone, whatever its shape.
            allowed = allowed[:-1]
        options: tuple[Kind, ...] = allowed
        if rule is not None:
            options = cast("tuple[Kind, ...]", tuple(filter(rule.layouts.__contains__, allowed)))
        options = self._hinted(name, roots, options)
        tracked = {id(item.tensor): item.tensor for item in found}
        for position, kind in enumerate(options):
            if kind == "shared":
                break
            layout = self._layout(kind, output)
            call = Call(
                name, func, args, kwargs, tuple(output.shape), layout, tracked, self.constants, self.means
            )
            kernel = elementwise.copies(call) if expansion else None
            if kernel is None and rule is not None:
                kernel = rule.build(call, call.bind(rule.names))
            if kernel is None or _answers(kernel) != tracked.keys():
                kernel = fallback(call)
            if kernel is None or _answers(kernel) != tracked.keys():
                continue
            if isinstance(kernel, FallbackKernel):
                kernel.roots = roots
            self.decisions.append(Decision(name, roots, kind, options[position:], len(self.uses)))
            parameters = tuple(self.tracked[id(tensor)] for tensor in kernel.parameters)
            versions = tuple(tensor._version for tensor in watched(kernel))
            edge = get_gradient_edge(output)
            self.uses.append(Use(name, kernel, layout, edge, parameters, versions, inner, outer))
            return
        if "shared" not in options:
            raise UnsupportedModel(
                "an operation on a trainable parameter and data must have the examples in the first or "
                "second "
                f"dimension of its output, got {name} with {', '.join(roots)} and output "
                f"{tuple(output.shape)} "
                f"for {self.batch} examples. Keep one row an example, or freeze these parameters"
            )
        self.decisions.append(Decision(name, roots, "shared", ("shared",), None))
        self._derive([output], "", found, roots, lookup.selects(name, args, kwargs))


def _answers(kernel: Kernel) -> set[int]:
    return {id(tensor) for tensor in kernel.parameters}


def unaliased(output: Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The output as a tensor of its own where it is a view of something that nobody else holds.

    A linear layer gives a view of a matrix product. Writing into it (``ReLU(inplace=True)``) would rewrite the graph
    of that product, past the recorded output.
    """
    base = output._base
    if base is None or any(base is tensor or base is tensor._base for tensor in tensors_in(args, kwargs)):
        return output
    return torch.ops.aten._unsafe_view.default(output, list(output.shape))


def tensors_in(args: Iterable[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """All tensors among the arguments, through lists and tuples."""
    found: list[Tensor] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(cast("list[Any]", value), {})
    return found


def name_of(func: Callable[..., Any]) -> str:
    """The operation's name for messages; a property is named after itself."""
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__"):
        return str(getattr(getattr(func, "__self__", None), "__name__", name))
    return str(name or func)


def is_composite(func: Callable[..., Any]) -> bool:
    """Whether ``func`` is one of torch's Python functions, whose operations can be seen one by one."""
    return isinstance(func, types.FunctionType) and func.__module__ in (
        "torch.nn.functional",
        "torch.functional",
    )


def opened(func: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a composite that does not hand itself to the active mode, so that inner calls are seen."""
    function = cast("types.FunctionType", func)

    def no(*_: object) -> bool:
        return False

    ungated = {key: no for key in function.__globals__ if key.startswith("has_torch_function")}
    copy = types.FunctionType(
        function.__code__, {**function.__globals__, **ungated}, function.__name__, function.__defaults__,
        function.__closure__,
    )  # fmt: skip
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
