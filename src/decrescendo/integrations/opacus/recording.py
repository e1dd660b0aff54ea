"""Records what a training loop computes from a batch, so that an engine can compute it again for each example."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from decrescendo.base.batches import Batch, map_rows
from decrescendo.base.torch_private import SUBCLASSES_OFF, tree_leaves, tree_map
from decrescendo.errors import PlanViolation, UnsupportedModel
from decrescendo.integrations.opacus.calls import Call, Reads, Ref, RowCount, Stale

# What reads numbers of a tensor into Python.
_READS = frozenset(
    ("item", "tolist", "numpy", "__array__", "__bool__", "__float__", "__int__", "__index__", "__contains__", "equal",
     "allclose", "is_nonzero")
)  # fmt: skip
_TENSOR: Any = Tensor
_DATA = _TENSOR.data.__get__
_SHAPES = frozenset((_TENSOR.shape.__get__, _TENSOR.size))
_AS_TENSORS: Any = SUBCLASSES_OFF


class Recorded(Tensor):
    """A tensor made from a batch; what torch's functions make of it is one, too, while its tape is open."""

    tape: "Tape"
    ref: Ref

    def __format__(self, format_spec: str) -> str:
        return format(self.item(), format_spec) if not self.dim() else super().__format__(format_spec)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        tape = tape_of((args, kwargs))
        if tape is not None:
            return tape.call(func, args, kwargs)
        with _AS_TENSORS():
            found = func(*args, **kwargs)
        # What is made of an earlier batch is known as such.
        old = next(leaf.tape for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Recorded))
        old.note_read(func, found)
        return tree_map(old.kept, found)


@dataclass(slots=True, eq=False)
class Tape:
    """What a loop computes from one batch, until its backward pass.

    Args:
        rows: examples of the batch.
        module: the private model.
        ended: called with the loss when the loop calls ``backward`` of it.
        reads: what the loop read of this and of earlier batches.

    Attributes:
        open: whether calls are recorded.
        values: the recorded tensors, by their number.
    """

    rows: int
    module: nn.Module
    ended: Callable[["Tape", Ref], None]
    reads: Reads = field(default_factory=Reads)
    calls: list[Call] = field(default_factory=list)
    values: dict[Ref, Tensor] = field(default_factory=dict)
    open: bool = True
    _rows: list[Recorded] = field(default_factory=list)

    def batch(self, batch: Batch) -> Batch:
        """``batch`` with its tensors copied and recorded: their numbers are their places in `leaves_of`."""

        def noted(rows: Tensor) -> Recorded:
            self._rows.append(self._noted(rows.clone()))
            return self._rows[-1]

        return map_rows(noted, batch)

    @property
    def columns(self) -> int:
        """Tensors of the batch, which have the first numbers."""
        return len(self._rows)

    def found(self, tree: Any) -> Any:
        """``tree`` with the recorded tensor in place of each that is a column of the batch under another name: one that
        came through ``Variable``, or NumPy and back."""
        return tree_map(self._known, tree)

    def _known(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, Recorded) or not value.numel():
            return value
        same = (row for row in self._rows if _lies(row) == _lies(value))
        return next(same, value)

    def close(self) -> None:
        """Record no more, and let go of what was recorded."""
        self.open = False
        with _AS_TENSORS():
            for value in self.values.values():
                self.reads.note(value)
        self.reads.forget()
        self.calls.clear()
        self.values.clear()
        self._rows.clear()

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do what the loop calls, and record it."""
        if func is Tensor.backward:
            return self._backward(*args, **kwargs)
        # Tensors of the loop's own, into which it may write what it makes of the batch.
        others = [
            leaf
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, Tensor) and not isinstance(leaf, Recorded)
        ]
        for other in others:
            self.reads.is_public(other)
        # ``.data`` may be set as another tensor's, which nobody sees.
        self.reads.written |= func == _DATA
        versions = [other._version for other in others]
        with _AS_TENSORS():
            found = func(*args, **kwargs)
        for other, version in zip(others, versions, strict=True):
            if other._version != version:
                self.reads.written = True
                self.reads.note(other)
        if func in _SHAPES:
            return self._counted(found, args, kwargs)
        self.note_read(func, found)
        if getattr(func, "__name__", "") == "__setitem__" or any(
            isinstance(leaf, Tensor) for leaf in tree_leaves(found)
        ):
            return self._record(func, args, kwargs, found)
        return found

    def note_read(self, func: Any, found: Any) -> None:
        """What a function told Python, if it is one that does."""
        if getattr(func, "__name__", "") in _READS:
            self.reads.any = True
            if isinstance(found, float):
                self.reads.numbers.add(found)

    def kept(self, value: Any) -> Any:
        """A tensor as one made of this batch, once the tape is closed."""
        if not isinstance(value, Tensor) or isinstance(value, Recorded):
            return value
        old = value.as_subclass(Recorded)
        old.tape, old.ref = self, Ref(-1)
        return old

    def model(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the model, whose operations the engine follows in passes of its own, for the values alone."""
        if module is not self.module:
            raise UnsupportedModel(
                "the loop must call the model that make_private returned, got a copy of it. Copy the model before "
                "make_private, for a teacher say"
            )
        # Of no rows many models make nothing: what they make of one, without it.
        plain_args, plain_kwargs = tree_map(_plain if self.rows else _one_row, (args, kwargs))
        random = torch.get_rng_state()
        with torch.no_grad():
            found = module(*plain_args, **plain_kwargs)
        if not self.rows:
            found = tree_map(_without_rows, found)
        if torch.is_grad_enabled():
            # So that the loop's own autograd functions show, which are no functions of torch's.
            found = tree_map(_followed, found)
        return self._record(None, args, kwargs, found, random, module.training)

    def _record(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any, random: Tensor | None = None,
        training: bool | None = None,
    ) -> Any:  # fmt: skip
        if torch.is_autocast_enabled(next(iter(self.values.values())).device.type):
            raise UnsupportedModel(
                "the loss must be computed without torch.autocast in the loop, got autocast round it. Put autocast "
                "into the model's forward"
            )
        given = tree_map(self._referred, self.found(args)), tree_map(self._referred, self.found(kwargs))
        found = tree_map(self._noted_if, found)
        outputs = tuple(one.ref for one in tree_leaves(found) if isinstance(one, Recorded))
        self.calls.append(Call(func, *given, outputs, torch.is_grad_enabled(), random, training))
        return found

    def _noted_if(self, value: Any) -> Any:
        return self._noted(value) if isinstance(value, Tensor) else value

    def _noted(self, tensor: Tensor) -> Recorded:
        if isinstance(tensor, Recorded) and tensor.tape is self:  # changed in place
            return tensor
        recorded = tensor.as_subclass(Recorded)
        recorded.tape, recorded.ref = self, Ref(len(self.values))
        self.values[recorded.ref] = tensor
        return recorded

    def _referred(self, value: Any) -> Any:
        if not isinstance(value, Recorded):
            return value
        return value.ref if value.tape is self else Stale()

    def _counted(self, found: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A shape, or one of its numbers, with the number of rows marked as such."""
        shape = tuple(_plain(args[0]).shape)
        if not shape or shape[0] != self.rows:
            return found
        if isinstance(found, torch.Size):
            return torch.Size((RowCount(shape[0]), *shape[1:]))
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        return RowCount(found) if dim in (0, -len(shape)) else found

    def _backward(
        self, loss: Recorded, gradient: Tensor | None = None, retain_graph: bool | None = None,
        create_graph: bool = False, inputs: Any = None,
    ) -> None:  # fmt: skip
        del retain_graph
        if gradient is not None or create_graph or inputs is not None:
            raise PlanViolation(
                "loss.backward() must be called without gradient, create_graph and inputs. The gradients of examples "
                "are taken by the clipping engine, of the loss alone"
            )
        _check_functions(loss)
        self.ended(self, loss.ref)


def tape_of(tree: Any) -> Tape | None:
    """The open tape that a tensor in a nesting of containers is recorded on."""
    return next(
        (leaf.tape for leaf in tree_leaves(tree) if isinstance(leaf, Recorded) and leaf.tape.open), None
    )


def _lies(value: Tensor) -> tuple[object, ...]:
    """Where a tensor lies, and how."""
    with _AS_TENSORS():
        return value.data_ptr(), tuple(value.shape), value.stride(), value.dtype, value.device


def _plain(value: Any) -> Any:
    return value.as_subclass(Tensor) if isinstance(value, Recorded) else value


def _one_row(value: Any) -> Any:
    """A row of zeros in place of none."""
    if not isinstance(value, Recorded) or not value.dim():
        return value
    plain = value.as_subclass(Tensor)
    return plain.new_zeros((1, *plain.shape[1:]))


def _without_rows(value: Any) -> Any:
    return value[:0] if isinstance(value, Tensor) and value.dim() else value


def _followed(value: Any) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.detach().requires_grad_().clone()


def _check_functions(loss: Tensor) -> None:
    """Refuse functions with a backward pass of their own, of which only what they computed was recorded."""
    left, seen = [loss.grad_fn], set[Any]()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            raise UnsupportedModel(
                f"an autograd function of your own must be called inside of the model, got {node.name()} in the loop. "
                "Call it in the model's forward"
            )
        left += [following for following, _ in node.next_functions]
