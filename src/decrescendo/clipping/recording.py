"""Seeing every use of a trainable parameter in a forward pass, without touching the model."""

import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from decrescendo.clipping import (
    contraction,
    conv,
    elementwise,
    embedding,
    linear,
    lookup,
    norm,
    transposed,
)
from decrescendo.clipping.clipped import accumulator
from decrescendo.clipping.fallback import FallbackKernel, fallback, is_in_place
from decrescendo.clipping.layout import Kind, Layout, candidates
from decrescendo.clipping.means import Means
from decrescendo.clipping.rules import Call, Kernel, Rule
from decrescendo.errors import UnsupportedModel

RULES: dict[Callable[..., Any], Rule] = {
    **linear.RULES, **contraction.RULES, **conv.RULES, **transposed.RULES, **embedding.RULES, **lookup.RULES,
    **norm.RULES, **elementwise.RULES,
}  # fmt: skip
# Looked at whether or not a trainable parameter takes part.
CHECKS: dict[Callable[..., Any], tuple[tuple[str, ...], Callable[[Mapping[str, Any]], None]]] = {
    functional.batch_norm: (norm.BATCH_NORM, norm.check_batch_norm),
    functional.instance_norm: (norm.INSTANCE_NORM, norm.check_instance_norm),
    functional.embedding: (embedding.RULES[functional.embedding].names, embedding.check_embedding),
}
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
        """The gradient of its output, as (batch, ...) of at least float32."""
        self.check_saved()
        d = self.layout.split(gradient)
        return d if d.is_complex() else d.to(accumulator(d.dtype))

    def check_saved(self) -> None:
        """Refuse if anything the kernel is going to read was written to after it was recorded."""
        for tensor, version in zip(self.kernel.saved, self.versions, strict=True):
            if tensor._version != version:
                names = ", ".join(sorted({root for parameter in self.parameters for root in parameter.roots}))
                raise UnsupportedModel(
                    f"an input of an operation must not be overwritten after its use, got {self.name} with "
                    f"{names}, whose input was changed in place. Use the out-of-place form of what follows it"
                )


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
        if not torch.is_grad_enabled():
            return func(*args, **kwargs)
        found = [
            self.tracked[id(tensor)] for tensor in tensors_in(args, kwargs) if id(tensor) in self.tracked
        ]
        if not found:
            return func(*args, **kwargs)
        if func not in RULES and is_composite(func):
            with self:
                return opened(func)(*args, **kwargs)
        return self._record(func, args, kwargs, found)

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
        expansion = name in EXPANSIONS and single and self._expands(name, found[0].tensor, output)
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

    def _expands(self, name: str, source: Tensor, output: Tensor) -> bool:
        """Whether the output is one copy of the source for each example (a class token, an initial state)."""
        if name == "repeat" and output.shape == (self.batch * source.shape[0], *source.shape[1:]):
            return True
        lacking = output.dim() - source.dim()
        before = (1,) * lacking + tuple(source.shape)
        at = [axis for axis in (0, 1) if axis < output.dim() and output.shape[axis] == self.batch]
        # Repeated in other dimensions too, it is not one copy an example any more.
        others = [before[:axis] + before[axis + 1 :] for axis in at]
        rests = [tuple(output.shape[:axis]) + tuple(output.shape[axis + 1 :]) for axis in at]
        return any(
            before[axis] == 1 and (name != "repeat" or other == rest)
            for axis, other, rest in zip(at, others, rests, strict=True)
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
        expansion: bool,
    ) -> None:
        rule = RULES.get(func)
        allowed = candidates(output, self.batch)
        if outer:
            # With an activation in it, it is not made from parameters alone, whatever its shape.
            allowed = allowed[:-1]
        options: tuple[Kind, ...] = allowed
        if rule is not None:
            options = cast("tuple[Kind, ...]", tuple(filter(rule.layouts.__contains__, allowed)))
        order = len(self.decisions)
        if order < len(self.hints):
            hint = self.hints[order]
            if (hint.name, hint.roots) == (name, roots) and hint.kind in options:
                options = options[options.index(hint.kind) :]
        tracked = {id(item.tensor): item.tensor for item in found}
        for position, kind in enumerate(options):
            if kind == "shared":
                break
            layout = Layout(kind, self.batch)
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
            versions = tuple(tensor._version for tensor in kernel.saved)
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


def tensors_in(args: Iterable[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """All tensors among the arguments, through lists and tuples."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(cast("list[Any]", value), {})


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
