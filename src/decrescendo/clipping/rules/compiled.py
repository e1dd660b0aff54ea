"""An optional compiled kernel (products.c) for the per-example gradients of a convolution.

It is built by `hatch_build.py` when the package is installed on a machine with a C compiler. Set
``DECRESCENDO_COMPILED=0`` to switch it off.
"""

import ctypes
import functools
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from decrescendo.base.native import BEST, gomp_parallel, kernel
from decrescendo.clipping.rules.patches import Geometry
from decrescendo.errors import InvalidValue

SOURCE = Path(__file__).with_name("products.c")
LANES = 8  # of products.c


class Sizes(ctypes.Structure):
    """The struct of sizes in products.c."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "batch", "high", "wide", "channels", "outputs", "kernel_high", "kernel_wide", "down", "across",
            "ys", "xs", "by_output", "by_place",
        )
    ]  # fmt: skip


@functools.cache
def library() -> Callable[..., None] | None:
    """The function of products.c; ``None`` where it was not built from that source, or is switched off."""
    return loaded(SOURCE)


def covers(geometry: Geometry, d: Float[Tensor, "batch outputs *places"]) -> bool:
    """Whether `gradients` supports a convolution: one or two dimensions, one group, no dilation, float32 on a CPU.

    >>> geometry = Geometry(kernel=(2, 2), stride=(1, 1), dilation=(2, 2), pad=(0, 0, 0, 0), groups=1)
    >>> covers(geometry, torch.zeros(1, 1, 1, 1))
    False
    """
    dimensions = d.dim() - 2
    return (
        d.dtype == torch.float32
        and d.device.type == "cpu"
        and geometry.groups == 1
        and dimensions in (1, 2)
        and len(geometry.kernel) == len(geometry.stride) == dimensions
        and len(geometry.pad) == 2 * dimensions
        and min(*geometry.kernel, *geometry.stride) >= 1
        and min(geometry.pad) >= 0
        and all(step == 1 for step in geometry.dilation)
        and library() is not None
    )


def gradients(
    images: Float[Tensor, "batch channels *pixels"],
    d: Float[Tensor, "batch outputs *places"],
    geometry: Geometry,
    found: Float[Tensor, "batch outputs columns"],
) -> Float[Tensor, " batch"]:
    """Write g_i = D_i U_i^T into ``found``, columns ordered (kernel place, channel); returns the |g_i|^2.

    The squares are rounded as in `rule.square_rows` (at most 64 added in float32), without its margin for it.

    Errors:
        InvalidValue: sizes that do not fit together: all are checked here, none in C.

    >>> geometry = Geometry(kernel=(2,), stride=(1,), dilation=(1,), pad=(0, 0), groups=1)
    >>> images, d = torch.tensor([[[1.0, 2.0, 3.0]]]), torch.tensor([[[1.0, 10.0]]])
    >>> found = torch.zeros(1, 1, 2)
    >>> if covers(geometry, d):
    ...     print(gradients(images, d, geometry, found), found)
    ... else:
    ...     print("tensor([1465.], dtype=torch.float64) tensor([[[21., 32.]]])")
    tensor([1465.], dtype=torch.float64) tensor([[[21., 32.]]])
    """
    function = library()
    if function is None or not covers(geometry, d) or images.dim() != d.dim():
        raise InvalidValue("there is no compiled form of this convolution here: ask covers() first")
    batch, outputs, *places = d.shape
    channels, run = images.shape[1], images.shape[1] * geometry.kernel[-1]
    pixels = [
        size + geometry.pad[2 * axis] + geometry.pad[2 * axis + 1]
        for axis, size in zip(reversed(range(len(places))), images.shape[2:], strict=True)
    ]
    columns = run * torch.Size(geometry.kernel[:-1]).numel()
    expected = [
        (size - kernel) // step + 1 for size, kernel, step in zip(pixels, geometry.kernel, geometry.stride, strict=True)
    ]
    if expected != places or min(places) < 1 or images.shape[0] != batch or images.device != d.device:
        raise InvalidValue(
            f"images {tuple(images.shape)} and output gradients {tuple(d.shape)} do not fit: places {expected} expected"
        )
    check_room(found, d, (batch, outputs, columns))
    last = _channels_last(images.resolve_neg(), geometry, pixels, beyond=run % LANES > 0)
    d, strides = _strides(d.resolve_neg(), torch.Size(places).numel())
    squares = torch.empty(batch, dtype=torch.float64, device="cpu")
    # A convolution over a line is one over an image of height one.
    (high, wide), kernel, steps, (ys, xs) = (
        [1, *numbers][-2:] for numbers in (pixels, geometry.kernel, geometry.stride, places)
    )
    sizes = Sizes(batch, high, wide, channels, outputs, *kernel, *steps, ys, xs, *strides)
    call(function, (found, squares, last, d), sizes, BEST)
    return squares


def _channels_last(
    images: Float[Tensor, "batch channels *pixels"], geometry: Geometry, pixels: list[int], *, beyond: bool
) -> Float[Tensor, "batch *padded channels"]:
    """The zero-padded images, channels last; ``beyond``: followed by `LANES` zeros, which the kernel may read."""
    last = images.movedim(1, -1)
    if not beyond and not any(geometry.pad) and last.is_contiguous() and images.dtype == torch.float32:
        return last
    shape = (images.shape[0], *pixels, images.shape[1])
    count = torch.Size(shape).numel()
    # (A dtype and a device of our own: a user may have set others as torch's defaults.)
    block = torch.empty(count + LANES, dtype=torch.float32, device="cpu")
    block[0 if any(geometry.pad) else count :] = 0
    found = block[:count].view(shape)
    inner = found
    for axis, size in enumerate(images.shape[2:]):
        inner = inner.narrow(1 + axis, geometry.pad[2 * (len(pixels) - 1 - axis)], size)
    inner.copy_(last)
    return found


def _strides(d: Float[Tensor, "batch outputs *places"], count: int) -> tuple[Tensor, tuple[int, int]]:
    """Output gradients, and the strides of their outputs and places."""
    if d.movedim(1, -1).is_contiguous():
        return d, (1, d.shape[1])
    return d.contiguous(), (count, 1)


# By thread, the `clipping.tape.Tape` that records calls of compiled kernels.
WATCHING = threading.local()


def is_captured() -> bool:
    """Whether this thread's operations are recorded for replay on other rows, so that Python must read no value."""
    return getattr(WATCHING, "tape", None) is not None


def loaded(source: Path, tensors: int = 4) -> Callable[..., None] | None:
    """The function of a C file of this folder, if it was built: of ``tensors``, the sizes and what `call` adds."""
    function = kernel(source)
    if function is not None:
        function.argtypes = (*(ctypes.c_void_p,) * (tensors + 2), ctypes.c_uint, ctypes.c_uint)
        function.restype = None
    return function


def check_room(found: Tensor, d: Tensor, shape: tuple[int, int, int]) -> None:
    """Raise unless ``found`` can take products of ``d``: contiguous, of this shape, and of its device and dtype."""
    same = found.device == d.device and found.dtype == d.dtype
    if not same or tuple(found.shape) != shape or not found.is_contiguous():
        raise InvalidValue(f"products go to a contiguous float32 tensor {shape}, got {tuple(found.shape)}")


def call(function: Callable[..., None], tensors: tuple[Tensor | None, ...], sizes: ctypes.Structure, best: int) -> None:
    """Call a function of `loaded` on torch's threads, and record the call if there is a tape."""
    if (tape := getattr(WATCHING, "tape", None)) is not None:
        tape.called(function, tensors, sizes, best)
    pointers = [None if tensor is None else pointer(tensor) for tensor in tensors]
    function(*pointers, ctypes.byref(sizes), gomp_parallel(), torch.get_num_threads(), best)


def pointer(tensor: Tensor) -> int:
    """The address of a tensor's numbers; some tensors have none (fake, or known to be zero).

    Errors:
        InvalidValue: such a tensor.

    >>> pointer(torch.ones(1)) != 0
    True
    """
    address = tensor.data_ptr()
    if not address and tensor.numel():
        raise InvalidValue(f"tensors must have their numbers in memory, got a {type(tensor).__name__} without")
    return address
