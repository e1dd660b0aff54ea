"""Records every use of a trainable parameter in a forward pass, without changing the model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from decrescendo.base.storages import paused, tensors_of
from decrescendo.clipping.layout import Layout, Layouts
from decrescendo.clipping.partial_writes import is_part, set_masked, write_part
from decrescendo.clipping.recurrent.layers import MODES, run_recurrent
from decrescendo.clipping.row_guesses import RowGuesses
from decrescendo.clipping.rules import bag, conv, elementwise, embedding, linear, lookup, masks, norm
from decrescendo.clipping.rules.decompose import DECOMPOSED, attention, drops
from decrescendo.clipping.rules.fallback import FallbackKernel, fallback, is_in_place
from decrescendo.clipping.rules.rule import Call, Kernel, Rule
from decrescendo.clipping.special_calls import SPECIAL, is_composite, name_of, reading, special
from decrescendo.clipping.tracking import Tracking
from decrescendo.clipping.uses import (
    Tracked,
    Use,
    check_recordable,
    data_in,
    edge_of,
    inner_edges,
    parameter_ids,
    roots_of,
    unaliased,
    watched,
)
from decrescendo.clipping.workspace import Workspace
from decrescendo.errors import DecrescendoError, UnsupportedModel
from decrescendo.row_independence.tracing import BACKWARD, SIZES, Tracer, is_given, opened

RULES: dict[Callable[..., Any], Rule] = {
    **linear.RULES, **conv.RULES, **embedding.RULES, **bag.RULES, **lookup.RULES, **norm.RULES, **elementwise.RULES,
}  # fmt: skip
# Checks of arguments, made whether or not a trainable parameter takes part.
CHECKS: dict[Callable[..., Any], tuple[tuple[str, ...], Callable[[Mapping[str, Any]], None]]] = {
    functional.embedding_bag: (bag.NAMES, embedding.check_embedding),
    functional.embedding: (embedding.RULES[functional.embedding].names, embedding.check_embedding),
}
EXPANSIONS = frozenset({"expand", "broadcast_to", "repeat"})
# The position of ``create_graph``; 3 in the other backward functions.
_CREATES: dict[Callable[..., Any], int] = {torch.autograd.grad: 4}


@dataclass(slots=True)
class Recorder(TorchFunctionMode):
    """Active during one forward pass; every operation that sees a tracked tensor and data becomes a `Use`.

    Args:
        parameters: the trainable ones, by name.
        tracer: says where the examples are in each tensor.
        workspace: memory for the rules.
    """

    parameters: Mapping[str, Tensor]
    tracer: Tracer
    workspace: Workspace
    tracking: Tracking = field(init=False)
    guesses: RowGuesses = field(init=False)
    layouts: Layouts = field(init=False)
    uses: list[Use] = field(default_factory=list)
    calls: int = 0
    # Whether the loss calls autograd with ``create_graph``.
    double_backward: bool = False

    def __post_init__(self) -> None:
        TorchFunctionMode.__init__(self)
        self.tracer.reads.recorded = True
        self.tracking = Tracking(self.parameters, self.tracer)
        self.guesses = RowGuesses(self.tracer, self.tracking)
        self.layouts = Layouts(self.tracer)

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
            # Python functions raise other errors after checks that read no data, but may read the number of rows.
            told = not isinstance(func, FunctionType) or isinstance(error, (RuntimeError, IndexError))
            if told or self.tracer.counts.given_selected_rows:
                self.tracer.raised = self.tracer.raised or f"{name_of(func)} raised {type(error).__name__}"
            raise

    def _seen(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in SIZES:
            return self.tracer.counts.size(func, args, kwargs) if self.tracer.labels.counting else func(*args, **kwargs)
        if self.tracer.labels.counting:
            self.tracer.counts.enter(func, args, kwargs)
            if is_given(args, kwargs):
                return self.tracer.counts.run_with_sizes(func, args, kwargs, self._run)
        return self._chosen(func, args, kwargs)

    def _chosen(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in BACKWARD:
            at = _CREATES.get(func, 3)
            self.double_backward = self.double_backward or bool(
                args[at] if len(args) > at else kwargs.get("create_graph")
            )
            return self._run(reading(self.tracer, func), args, kwargs)
        if func in CHECKS:
            names, check = CHECKS[func]
            check(dict(zip(names, args, strict=False)) | kwargs)
        if func in SPECIAL:
            return special(self, self.tracer, self._run, func, args, kwargs)
        return self._run(func, args, kwargs)

    def _run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = self.tracking.among((*args, *kwargs.values()))
        if func in MODES and data_in(self.tracer, (*args, *kwargs.values())):
            return run_recurrent(self, func, args, kwargs)
        if not found or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        first = args[0] if args else kwargs.get("input")
        apart = attention if drops(func, args, kwargs) else DECOMPOSED.get(func)
        if apart is attention or (apart is not None and first not in self.tracking):
            with self, self.tracer.counts.torch_code():
                return apart(*args, **kwargs)
        if func not in RULES and is_composite(func):
            with self, self.tracer.counts.torch_code():
                return opened(func)(*args, **kwargs)
        return self._record(func, args, kwargs, found)

    def attach(self, name: str, output: Tensor, tracked: Sequence[Tensor], layout: Layout, kernel: Kernel) -> None:
        """Record a use of ``tracked``: its output gradient is the gradient of ``output``."""
        items = tuple(self.tracking.items[id(tensor)] for tensor in tracked)
        self._add(name, output, items, layout, kernel, inner_edges(items))

    def _add(
        self, name: str, output: Tensor, items: tuple[Tracked, ...], layout: Layout, kernel: Kernel,
        inner: tuple[GradientEdge, ...], outer: tuple[GradientEdge, ...] = (),
    ) -> None:  # fmt: skip
        read = watched(kernel)
        versions = tuple(tensor._version for tensor in read)
        self.tracking.keep(name, read)
        edge = edge_of(output)
        place = len(self.tracer.trace.events)
        self.uses.append(Use(name, kernel, layout, edge, items, versions, inner, outer, place))

    def _record(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], found: list[Tracked]
    ) -> Any:
        name = name_of(func)
        self.calls += 1
        if func is Tensor.__setitem__ and (masked := masks.masked(*args)) is not None:
            return set_masked(self, args[0], *masked)
        check_recordable(self.tracer, name, found, (*args, *kwargs.values()))
        args, kwargs = lookup.dense(func, args, kwargs)
        given, data = args, data_in(self.tracer, (*args, *kwargs.values()))
        if not data:
            args, kwargs, data = self.guesses.laid_out(name, self.calls, args, kwargs)
        # A tensor that data were written into counts as data from then on.
        found = [item for item in found if all(item.tensor is not tensor for tensor in data)]
        if found and data and is_part(func, name, given):
            return write_part(self, self._run, func, given, kwargs)
        others = [tensor for tensor in tensors_of((*args, *kwargs.values())) if tensor not in self.tracking]
        outer = tuple(edge_of(tensor) for tensor in others if tensor.requires_grad)
        before = args
        if is_in_place(name) and data and args[0] is data[0]:
            with paused():
                copy = args[0].detach().clone()
            self.tracer.assign(copy, self.tracer.label(args[0]))
            before = (copy, *args[1:])
        inner = inner_edges(found)
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
            if (
                name in EXPANSIONS
                and isinstance(output, Tensor)
                and (copied := self._copied(name, found[0].tensor, output))
            ):
                output, layout, kernel = copied
                self._add(name, output, tuple(found), layout, kernel, inner)
            else:
                self.tracking.derive(made, name, found, args, kwargs)
            return output
        if not single:
            raise UnsupportedModel(
                "an operation that mixes a trainable parameter with data must return one tensor, got "
                f"{name} with {', '.join(roots_of(found))}, which returns several. Freeze these parameters, or use "
                "layers made of linear, convolution, embedding and normalisation"
            )
        self._use(func, name, before, kwargs, cast("Tensor", output), found, inner, outer)
        return output

    def _copied(self, name: str, source: Tensor, output: Tensor) -> tuple[Tensor, Layout, Kernel] | None:
        """An expanded parameter as one copy for each example, with its layout and kernel; ``None`` if it is none."""
        found = self.guesses.copied(name, self.calls, source, output)
        if found is None:
            return None
        output, place = found
        layout = Layout.of(place, self.tracer.count)
        call = Call(
            name, torch.Tensor.expand, (source,), {}, tuple(output.shape), layout, {id(source): source},
            self.layouts.of, self.workspace,
        )  # fmt: skip
        kernel = elementwise.copies(call)
        return None if kernel is None else (output, layout, kernel)

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
        layout, rule = self.layouts.of(output), RULES.get(func)
        if layout is None:
            return  # refused where it reaches a loss
        tracked = {id(item.tensor): item.tensor for item in found}
        call = Call(name, func, args, kwargs, tuple(output.shape), layout, tracked, self.layouts.of, self.workspace)
        kernel = None
        with paused():
            # Rules for products take real numbers only.
            real = not output.is_complex() or func in elementwise.RULES
            if rule is not None and real and layout.kind in rule.layouts:
                kernel = rule.build(call, call.bind(rule.names))
            if kernel is None or parameter_ids(kernel) != tracked.keys():
                kernel = fallback(call)
        roots = roots_of(found)
        if kernel is None or parameter_ids(kernel) != tracked.keys():
            raise UnsupportedModel(
                f"an operation on a trainable parameter must work on one example alone, got {name} with "
                f"{', '.join(roots)}, whose arguments the engine cannot tell apart. Write it with ordinary operations, "
                "or freeze these parameters"
            )
        if isinstance(kernel, FallbackKernel):
            kernel.roots = roots
        parameters = tuple(self.tracking.items[id(tensor)] for tensor in kernel.parameters)
        self._add(name, output, parameters, layout, kernel, inner, outer)
