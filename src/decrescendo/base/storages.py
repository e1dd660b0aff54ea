"""Tensors and their memory: keys of storages, tensors in nested arguments, contents of constants."""

import functools
import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from decrescendo.base.torch_private import (
    DISPATCH_OFF,
    FUNCTIONS_OFF,
    HAS_FUNCTION_MODES,
    TorchDispatchMode,
    dispatch_modes,
    is_wrapped_by_transform,
    unwrapped_by_transform,
)

ORDINARY = frozenset({Tensor, torch.nn.Parameter, torch.nn.Buffer})
_TEXTS = (str, bytes, bytearray, memoryview, range)


class DispatchMode(TorchDispatchMode):
    """A dispatch mode whose methods run without torch's compiler, whose import would take seconds."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class Pausable(DispatchMode):
    """A dispatch mode that is paused while the engine's own code works (`paused`)."""

    idle = False


@contextmanager
def paused() -> Generator[None]:
    """For the engine's own code: inside, nothing is traced; the engine labels its results by `Tracer.assign`."""
    modes = cast("list[object]", dispatch_modes())
    if not modes or (len(modes) == 1 and isinstance(modes[0], Pausable)):
        with DISPATCH_OFF():
            yield
        return
    watches = [mode for mode in modes if isinstance(mode, Pausable) and not mode.idle]
    for tracer in watches:  # other modes (one that counts memory) go on
        tracer.idle = True
    try:
        yield
    finally:
        for tracer in watches:
            tracer.idle = False


def unwatched() -> Any:
    """A context in which no dispatch mode sees anything."""
    return DISPATCH_OFF()


def unseen(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of the engine that autograd's graph calls, to hide it from modes for torch functions."""

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        with FUNCTIONS_OFF():
            return function(*args)

    return run


def is_whole(target: Tensor) -> bool:
    """Whether a tensor covers every entry of its storage, each once.

    >>> whole = torch.zeros(2, 3)
    >>> is_whole(whole.t()), is_whole(whole[:1]), is_whole(whole.as_strided((2, 3), (1, 1)))
    (True, False, False)
    """
    if target.layout is not torch.strided or not target.numel():
        return True
    if target.numel() * target.element_size() != target.untyped_storage().nbytes():
        return False
    dense = 1
    for step, size in sorted(zip(target.stride(), target.shape, strict=True)):
        if size > 1 and step != dense:
            return False
        dense *= size
    return True


def is_shared(tensor: Tensor) -> bool:
    """Whether code outside torch may write to a CPU tensor's memory: torch marks memory that it did not make (NumPy
    arrays, files), or has given to NumPy, as not resizable.

    >>> torch.zeros(3).numpy().shape, is_shared(torch.zeros(3))
    ((3,), False)
    >>> is_shared(torch.from_numpy(torch.zeros(3).numpy()))
    True
    """
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_nested:
        return False
    try:
        return not tensor.untyped_storage().resizable()
    except (NotImplementedError, RuntimeError):
        return False


def key_of(tensor: Tensor) -> int:
    """The key of a tensor's storage; negative for a tensor without one."""
    if HAS_FUNCTION_MODES():
        with FUNCTIONS_OFF():
            return storage_key(tensor)
    return storage_key(tensor)


def storage_key(tensor: Any) -> int:
    """`key_of`, for code in which no mode for torch functions is active."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return -id(tensor)


def tensors_of(values: Iterable[Any]) -> list[Tensor]:
    """All tensors among values, through lists and tuples."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_of(cast("list[Any]", value))
    return found


def bare(tensor: Tensor) -> Tensor:
    """The tensor with memory inside of the wrappers of function transforms (torch.func)."""
    while is_wrapped_by_transform(tensor):
        tensor = unwrapped_by_transform(tensor)
    return tensor


def listed(values: Iterable[Any], *, is_index: bool = False) -> list[Tensor]:
    """Tensors in lists or other sequences among ``values``; of an index, tensors in lists in its entries.

    >>> one = torch.ones(())
    >>> len(listed([one, [one, (one,)], 1.0])), len(listed([one, [one, one]], is_index=True))
    (2, 0)
    """
    sequences = [value for value in values if isinstance(value, Sequence) and not isinstance(value, _TEXTS)]
    if is_index:
        return listed(item for value in sequences for item in value)
    return tensors_of([list(_flat(value)) for value in sequences])


def _flat(value: Sequence[Any]) -> Iterator[Any]:
    for item in value:
        if isinstance(item, Sequence) and not isinstance(item, _TEXTS):
            yield from _flat(cast("Sequence[Any]", item))
        else:
            yield item


def pieces(tensor: Tensor) -> list[tuple[str, Tensor]]:
    """The plain tensors that a wrapper is made of (torchao's quantised weights), by attribute name; an ordinary
    tensor, or a rank's part of a sharded one, itself.

    >>> [(name, tensor.shape) for name, tensor in pieces(torch.zeros(2))]
    [('', torch.Size([2]))]
    """
    if type(tensor) in ORDINARY or not hasattr(tensor, "__tensor_flatten__") or hasattr(tensor, "device_mesh"):
        return [("", tensor)]
    names = cast("tuple[list[str], object]", cast("Any", tensor).__tensor_flatten__())[0]
    inside = ((name, cast("Tensor", getattr(tensor, name))) for name in names)
    return [(f"[{name}]{inner}", part) for name, held in inside for inner, part in pieces(held)]


def is_hollow(tensor: Tensor) -> bool:
    """Whether a tensor of a class of its own has no memory: it wraps others (`_make_wrapper_subclass`).

    >>> is_hollow(torch.zeros(2))
    False
    """
    if type(tensor) in ORDINARY:
        return False
    try:
        with FUNCTIONS_OFF():
            tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return True
    return False


def slots_of(output: Any) -> list[Tensor | None]:
    """The tensors that an operation returned as a list, with ``None`` for those that it left out."""
    found: list[Tensor | None] = []
    for value in cast("list[Any]", output) if isinstance(output, (list, tuple)) else ():
        if isinstance(value, (list, tuple)):
            found += slots_of(value)
        elif value is None or isinstance(value, Tensor):
            found.append(value)
    return found


def byte_form(tensor: Tensor) -> object:
    """How the bytes of a tensor are read: its dtype, and whether they are conjugated or negated on the way."""
    if tensor.is_conj() or tensor.is_neg():
        return tensor.dtype, tensor.is_conj(), tensor.is_neg()
    return tensor.dtype


def exactly(value: object) -> object:
    """A number in a form that is equal to no other's: 1, 1.0, True, and -0.0 beside 0.0."""
    return repr(value) if isinstance(value, (bool, float, complex)) else value


def state_of(generator: torch.Generator) -> str:
    """A digest of a generator's state, which determines its next numbers."""
    return hashlib.sha256(generator.get_state().numpy().tobytes()).hexdigest()


def content_of(tensor: Tensor) -> object:
    """The values of a constant made in Python, to compare between passes: it may depend on the batch size."""
    if tensor.is_meta or not tensor.numel():
        return ()  # it has none
    if tensor.numel() > 64:
        # A digest, since traces of many passes are stored. (Of a copy: memory given to NumPy counts as shared.)
        flat = tensor.detach().flatten().clone().cpu()
        return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).digest()
    return str(tensor.dtype), repr(tensor.detach().flatten().tolist())


def parts_of(value: Tensor | np.ndarray) -> Sequence[Tensor | np.ndarray]:
    """The tensors or arrays with memory that a value consists of: the parts of a sparse tensor or a wrapper, else the
    value itself."""
    if isinstance(value, np.ndarray):
        return (value,)
    if value.layout is torch.strided:
        return [part for _, part in pieces(value)]
    with FUNCTIONS_OFF():
        if value.layout is torch.sparse_coo:
            return [value._indices(), value._values()]
        if value.layout in (torch.sparse_csr, torch.sparse_bsr):
            return [value.crow_indices(), value.col_indices(), value.values()]
        if value.layout in (torch.sparse_csc, torch.sparse_bsc):
            return [value.ccol_indices(), value.row_indices(), value.values()]
    return ()
