"""`Recorded`: the tensors that a loop has of a batch, which tell a tape what is done with them."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from decrescendo.base.torch_private import DISPATCH_OFF, SUBCLASSES_OFF
from decrescendo.errors import UnsupportedModel
from decrescendo.integrations.opacus.calls import Ref
from decrescendo.integrations.opacus.outputs import tree_leaves

if TYPE_CHECKING:
    from decrescendo.integrations.opacus.recording import LoopRecording

# What says nothing of the numbers in a tensor.
_ABOUT = frozenset(
    ("__get__", "__hash__", "dim", "ndimension", "stride", "is_contiguous", "is_floating_point", "is_complex",
     "is_signed", "element_size", "storage_offset", "data_ptr", "get_device", "is_same_size", "is_inference", "type",
     "is_set_to", "is_pinned", "is_shared", "has_names", "is_conj", "is_neg", "is_tensor", "result_type", "can_cast",
     "__dir__", "__len__", "numel", "nelement", "size")
)  # fmt: skip
_FACTS = (type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
# What tells sizes, makes several tensors of one, and makes as many places as the numbers say.
_COUNTS = ("__len__", "numel", "nelement")
_SPLITS = ("unbind", "split", "chunk", "tensor_split")
_CHOOSES = ("unique", "unique_consecutive", "nonzero", "argwhere", "masked_select", "bincount")
_MASKS = (torch.bool, torch.uint8)
# What moves the examples from dimension 0.
_MOVES = frozenset(("transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "t", "einsum", "__get__"))


@contextmanager
def plainly() -> Generator[None]:
    """Inside, recorded tensors are tensors like any other."""
    with SUBCLASSES_OFF(), DISPATCH_OFF():
        yield


class Recorded(Tensor):
    """A tensor made from a batch; what torch's functions make of it is one, too.

    Attributes:
        tape: what it is recorded on.
        ref: its number there.
        rows_first: whether its dimension 0, if it has as many places as the batch has rows, is that of the rows.
    """

    tape: "LoopRecording"
    ref: Ref
    rows_first: bool

    def __format__(self, format_spec: str) -> str:
        return format(self.item(), format_spec) if not self.dim() else super().__format__(format_spec)

    def as_subclass(self, cls: type[Any]) -> Any:
        """Who asks for a plain tensor has one, which is not recorded, and is refused in a loss."""
        return Tensor.as_subclass(plain(self), cls)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Recorded)]
        return (tape_of(leaves) or leaves[0].tape).call(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # pyrefly: ignore[bad-override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Of what torch's functions do not tell: ``torch.tensor(x)`` copies past them."""
        del types
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Recorded):
                leaf.tape.note_read()
        with plainly():
            return func(*args, **(kwargs or {}))


def tape_of(tree: Any) -> Any:
    """The open tape that a tensor in a nesting of containers is recorded on."""
    return next((leaf.tape for leaf in tree_leaves(tree) if isinstance(leaf, Recorded) and leaf.tape.open), None)


def lies(value: Tensor) -> tuple[object, ...]:
    """Where a tensor lies, and how."""
    with plainly():
        return value.data_ptr(), tuple(value.shape), value.stride(), value.dtype, value.device


def plain(value: Any) -> Any:
    if not isinstance(value, Recorded):
        return value
    with plainly():
        return Tensor.as_subclass(value, Tensor)


def one_row(value: Any) -> Any:
    """A row of zeros in place of none."""
    rows = plain(value)
    return rows.new_zeros((1, *rows.shape[1:])) if isinstance(value, Recorded) and rows.dim() else rows


def without_rows(value: Any) -> Any:
    return value[:0] if isinstance(value, Tensor) and value.dim() else value


def followed(value: Any) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.detach().requires_grad_().clone()


def check_functions(loss: Tensor) -> None:
    """Refuse functions with a backward pass of their own, of which only what they computed was recorded."""
    with plainly():
        left = [loss.grad_fn]
    seen = set[Any]()
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


def tells(name: str, leaves: list[Any]) -> bool:
    """Whether what a function returned may say something of the numbers in a tensor."""
    return name not in _ABOUT and not all(isinstance(leaf, (Tensor, *_FACTS)) for leaf in leaves)


def counts(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function tells how many rows there are."""
    if name not in _SPLITS:
        return name in _COUNTS
    dim = kwargs.get("dim", next((one for one in args[1 + (name != "unbind") :] if isinstance(one, int)), 0))
    return dim in (0, -plain(args[0]).dim())


def chooses(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether what a function makes has as many places as the numbers in a tensor say."""
    masks = [plain(leaf) for leaf in tree_leaves(args[1:]) if isinstance(leaf, Tensor)]
    if name == "one_hot":  # as many classes as the largest number has
        classes = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
        return not isinstance(classes, int) or classes < 0
    return name in _CHOOSES or (name == "__getitem__" and any(mask.dtype in _MASKS for mask in masks))


def keeps_rows_first(name: str, args: tuple[Any, ...], rows: int) -> bool:
    """Whether what a function makes has the rows in dimension 0 if as many places are there."""
    given = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Recorded)]
    if name in _MOVES and any(rows in plain(leaf).shape[1:] for leaf in given):
        return False
    return all(leaf.rows_first for leaf in given)
