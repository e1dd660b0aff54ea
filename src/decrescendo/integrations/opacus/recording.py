"""Records what a training loop computes from a batch, so that an engine can compute it again for each example."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from decrescendo.base.batches import Batch, leaves_of, map_rows
from decrescendo.base.rng import seeded
from decrescendo.base.torch_private import count_of_storage_users
from decrescendo.errors import UnsupportedModel
from decrescendo.integrations.opacus.calls import (
    INSIDE,
    Call,
    Ref,
    RowCount,
    Rows,
    Stale,
    modes_of,
    numbers_in,
)
from decrescendo.integrations.opacus.constants import Constant, Knowledge
from decrescendo.integrations.opacus.lasting import (
    BACKWARDS,
    BY_ITSELF,
    Watched,
    check_no_autocast,
    check_transforms,
    loss_of,
    refused_backward,
)
from decrescendo.integrations.opacus.model_state import ModelState
from decrescendo.integrations.opacus.one_forward import OneForward, form_of
from decrescendo.integrations.opacus.outputs import leaves, mapped, tree_leaves, tree_map
from decrescendo.integrations.opacus.recorded import (
    Recorded,
    chooses,
    counts,
    followed,
    keeps_rows_first,
    lies,
    one_row,
    plain,
    plainly,
    tells,
    without_rows,
)

_TENSOR: Any = Tensor
_DATA = _TENSOR.data.__get__
_SHAPES = frozenset((_TENSOR.shape.__get__, _TENSOR.size))
# What torch does not do with tensors that see its dispatcher.
_WHOLE = frozenset(
    ("tolist", "numpy", "__array__", "__deepcopy__", "__reduce_ex__", "__dlpack__", "__format__", "__repr__")
)
_REFUSED = {
    torch.autograd.grad: f"torch.autograd.grad must be called inside of the model, got it in the loop. {BY_ITSELF}",
    Tensor.register_hook: f"hooks on gradients must be left out, got register_hook in the loop. {BY_ITSELF}",
}


@dataclass(slots=True, eq=False)
class LoopRecording:
    """What a loop computes from one batch, until its backward pass.

    Args:
        rows: examples of the batch.
        state: of the private model.
        ended: called with the loss when the loop calls ``backward`` of it.
        seen: what the loop may know of this and of earlier batches.
        once: gives what the model makes of this batch, where it need not be called; ``None`` if it is to be called.

    Attributes:
        open: whether calls are recorded.
        values: the recorded tensors, by their number.
        handed: the tensors of the batch, as they were handed out.
    """

    rows: int
    state: ModelState
    ended: Callable[["LoopRecording", Ref], None]
    seen: Knowledge = field(default_factory=Knowledge)
    once: OneForward | None = None
    calls: list[Call] = field(default_factory=list)
    values: dict[Ref, Tensor] = field(default_factory=dict)
    handed: list[Tensor] = field(default_factory=list)
    open: bool = True
    _columns: list[Recorded] = field(default_factory=list)
    _inside: bool = False

    def batch(self, batch: Batch) -> Batch:
        """``batch`` with its tensors copied and recorded: their numbers are their places in `leaves_of`."""
        self.seen.begin(self.calls)
        self.handed = list(leaves_of(batch))

        def noted(rows: Tensor) -> Recorded:
            self._columns.append(self._noted(rows.clone()))
            return self._columns[-1]

        return map_rows(noted, batch)

    def note_read(self) -> None:
        """The loop reads something that was made of this batch. Of no rows nothing is known but their number."""
        self.seen.counted = True
        if self.rows:
            self.seen.note_read()

    def found(self, tree: Any) -> Any:
        """``tree`` with the recorded tensor in place of each that is a column of the batch under another name: one that
        came through ``Variable``, or NumPy and back."""
        return tree_map(self._known, tree)

    def _known(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, Recorded) or not value.numel():
            return value
        same = (row for row in self._columns if lies(row) == lies(value))
        return next(same, value)

    def close(self) -> None:
        """Record no more, and let go of what was recorded."""
        self.open = False
        for held in (self.calls, self.values, self.handed, self._columns):
            held.clear()
        self.seen.forget()

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do what the loop calls, and record it."""
        if func in BACKWARDS:
            return self.ended(self, loss_of(*args, **kwargs).ref) if self.open else refused_backward()
        if func in _REFUSED and not self._inside:
            raise UnsupportedModel(_REFUSED[func])
        if func is Tensor.__iter__:
            return iter(self.call(Tensor.unbind, args, kwargs))
        records = self.open and not self._inside
        if not self._inside:
            check_transforms((args, kwargs))
        if records:
            args, kwargs = self.found((args, kwargs))
        others = {
            id(leaf): leaf
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, Tensor) and not isinstance(leaf, Recorded)
        }
        watched = Watched(others, self.state, inside=self._inside)
        given, constants = self._given((args, kwargs), others) if records else ((), {})
        name = getattr(func, "__name__", "")
        with plainly():
            found = func(*tree_map(plain, args) if name in _WHOLE else args, **kwargs)
        for other in watched.written(name):
            given = self._written(other, given, constants.get(id(other)))
        if func in _SHAPES and not self._inside:
            self.seen.counted = True
            if records:
                return self._counted(found, args, kwargs)
        leaves = tree_leaves(found)
        if not self._inside:
            self.seen.counted |= counts(name, args, kwargs)
        # ``.data`` may be set as another tensor's, which nobody sees. A size that numbers choose tells of them.
        if func == _DATA or tells(name, leaves) or (not self._inside and chooses(name, args, kwargs)):
            self.note_read()
        if not records:
            return tree_map(self._old, found)
        if name == "__setitem__" or any(isinstance(leaf, Tensor) for leaf in leaves):
            return self._record(func, given, found, keeps_rows_first(name, args, self.rows))
        return found

    def _given(self, tree: Any, others: dict[int, Tensor]) -> tuple[Any, dict[int, Constant]]:
        """Arguments as a call has them, and the constants among them."""
        check_no_autocast(next(iter(self.values.values())).device)
        own = self.state.tensors
        constants = {place: self.seen.constant(one) for place, one in others.items() if place not in own}

        def referred(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return self.seen.constant(torch.from_numpy(value))
            if isinstance(value, Recorded):
                return value.ref if value.tape is self else Stale()
            if isinstance(value, torch.Size):
                return tuple(map(referred, value))
            if isinstance(value, RowCount):
                return Rows(int(value))
            if isinstance(value, slice):
                return slice(*map(referred, (value.start, value.stop, value.step)))
            return constants.get(id(value), value)

        return tree_map(referred, tree), constants

    def _written(self, target: Tensor, given: Any, constant: Constant | None) -> Any:
        """A function has written into a tensor of the loop's own: from now on it is one that is made from the batch."""
        with plainly():
            storage = target.untyped_storage()
            alone = count_of_storage_users(storage._cdata) == 2  # the tensor, and its storage here
        if type(target) is not Tensor or not alone:
            self.note_read()  # others have that memory
            self.seen.note_made(target)
            return given
        target.__class__ = Recorded
        ref = INSIDE if self._inside else Ref(len(self.values)) if self.open else Ref(-1)
        made = self._marked(target, ref, rows_first=True)
        if constant is None:
            return given
        self.values[made.ref] = plain(made)
        self.calls.append(Call(torch.clone, (constant,), {}, (made.ref,), torch.is_grad_enabled()))

        def adopted(leaf: Any) -> Any:
            return made.ref if leaf is constant else leaf

        return tree_map(adopted, given)

    def _marked(self, recorded: Any, ref: Ref, *, rows_first: bool) -> Any:
        recorded.tape, recorded.ref, recorded.rows_first = self, ref, rows_first
        with plainly():
            self.seen.note_made(recorded)
        return recorded

    def _old(self, value: Any) -> Any:
        """A tensor as one made of this batch, once the tape is closed; or inside of the model."""
        if not isinstance(value, Tensor) or isinstance(value, Recorded):
            return value
        return self._marked(value.as_subclass(Recorded), INSIDE if self._inside else Ref(-1), rows_first=False)

    def model(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the model, whose operations the engine follows in passes of its own, for the values alone."""
        if module is not self.state.module:
            raise UnsupportedModel(
                "the loop must call the model that make_private returned, got a copy of it. Copy the model before "
                "make_private, for a teacher say"
            )
        others = {id(leaf): leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        given, _ = self._given(
            (args, kwargs), {place: leaf for place, leaf in others.items() if not isinstance(leaf, Recorded)}
        )
        self.seen.forwards += 1
        random: Tensor | None = None
        found, form = (None, None) if self.once is None else self.once.outputs(self.calls, given, self.rows)
        if found is None:
            seed = (torch.initial_seed() + self.seen.forwards) % 2**63  # torch's own numbers do not move
            with seeded(seed, {parameter.device for parameter in module.parameters()}):
                random = torch.get_rng_state()
                found = self._called(module, args, kwargs)
            form = form_of(found, self.state)
        if torch.is_grad_enabled():
            # So that the loop's own autograd functions show, which are no functions of torch's.
            found = mapped(followed, found)
        return self._record(None, given, found, True, random, modes_of(module), form)

    def _called(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Of no rows many models make nothing: what they make of one, without it.
        own_args, own_kwargs = tree_map(self._entered if self.rows else one_row, (args, kwargs))
        self._inside = True
        try:
            with torch.no_grad(), self.state.forward():
                found = module(*own_args, **own_kwargs)
        finally:
            self._inside = False
        found = mapped(plain, found)
        return found if self.rows else mapped(without_rows, found)

    def _entered(self, value: Any) -> Any:
        if not isinstance(value, Recorded):
            return value
        return self._marked(plain(value).clone().as_subclass(Recorded), INSIDE, rows_first=True)

    def _record(
        self, func: Any, given: Any, found: Any, first: bool, random: Tensor | None = None,
        training: tuple[bool, ...] | None = None, form: Any = None,
    ) -> Any:  # fmt: skip
        found = mapped(lambda value: self._noted(value, first) if isinstance(value, Tensor) else value, found)
        made = [one for one in leaves(found) if isinstance(one, Recorded)]
        with plainly():
            numbers = {one.ref: one.detach().clone() for one in made if not one.dim()}
        outputs = tuple(one.ref for one in made)
        grad, held = torch.is_grad_enabled(), numbers_in(given)
        self.calls.append(Call(func, given[0], given[1], outputs, grad, numbers, random, training, form, held))
        return found

    def _noted(self, tensor: Tensor, first: bool = True) -> Recorded:
        if isinstance(tensor, Recorded) and tensor.tape is self:  # changed in place
            return tensor
        recorded: Recorded = self._marked(plain(tensor).as_subclass(Recorded), Ref(len(self.values)), rows_first=first)
        self.values[recorded.ref] = plain(tensor)
        return recorded

    @property
    def columns(self) -> int:
        """Tensors of the batch, which have the first numbers."""
        return len(self._columns)

    def _counted(self, found: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A shape, or one of its numbers, with the number of rows marked as such."""
        shape = tuple(plain(args[0]).shape)
        dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
        if not shape or dim not in (0, -len(shape)) or shape[0] != self.rows or not args[0].rows_first:
            return found
        count = RowCount(shape[0])
        return torch.Size((count, *shape[1:])) if isinstance(found, torch.Size) else count
