"""The compiled gradients of convolutions (products.c): exact, within their own memory, and optional; and the form that
is taken without a C compiler, whose patches are copied."""

import math
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from clipping_cases import CASES, loss
from equality import check_equal, form
from hypothesis import given
from hypothesis import strategies as st
from often import some
from torch import Tensor, nn
from torch.nn import functional
from walls import walled

from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.clipping.rules import compiled
from decrescendo.clipping.rules.conv import ConvKernel
from decrescendo.clipping.rules.patches import Geometry, unfold
from decrescendo.clipping.rules.rule import round_up
from decrescendo.clipping.workspace import Workspace
from decrescendo.errors import InvalidValue

# torch says that uneven padding copies the input; it is what is tested.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding=.same:UserWarning")

built = pytest.mark.skipif(compiled.library() is None, reason="not built on this machine")


@pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang")))
    or not sys.platform.startswith(("linux", "darwin"))
    or os.environ.get("DECRESCENDO_COMPILED") == "0",
    reason="no C compiler when this was installed",
)
def test_it_is_built_where_there_is_a_compiler() -> None:
    assert compiled.library() is not None


def exact(images: torch.Tensor, d: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """(batch, outputs, kernel places, channels) in float64, one product of one output place after another."""
    padded = functional.pad(images.double(), list(geometry.pad))
    found = torch.zeros(images.shape[0], d.shape[1], *geometry.kernel, images.shape[1], dtype=torch.float64)
    for place in torch.cartesian_prod(*map(torch.arange, d.shape[2:])).reshape(-1, len(geometry.kernel)).tolist():
        window = padded
        for axis, (at, step, size) in enumerate(zip(place, geometry.stride, geometry.kernel, strict=True)):
            window = window.narrow(2 + axis, at * step, size)
        error = d[(slice(None), slice(None), *place)].double()
        found += torch.einsum("bo,b...->bo...", error, window.movedim(1, -1))
    return found.flatten(2)


def convolution(draw: Callable[[st.SearchStrategy[Any]], Any]) -> tuple[torch.Tensor, torch.Tensor, Geometry]:
    dimensions = draw(st.integers(1, 2))
    small = st.integers(1, 3)
    kernel = tuple(draw(st.integers(1, 6)) for _ in range(dimensions))
    stride = tuple(draw(small) for _ in range(dimensions))
    pad = tuple(draw(st.integers(0, 2)) for _ in range(2 * dimensions))
    places = [draw(st.integers(1, 5)) for _ in range(dimensions)]
    batch, channels, outputs = draw(st.integers(1, 19)), draw(st.integers(1, 10)), draw(st.integers(1, 19))
    spare = draw(st.integers(0, 1))  # pixels that no window reaches
    pixels = [
        max(1, (count - 1) * step + size + min(spare, step - 1) - sum(pad[2 * axis : 2 * axis + 2]))
        for axis, (count, step, size) in enumerate(
            zip(reversed(places), reversed(stride), reversed(kernel), strict=True)
        )
    ][::-1]
    geometry = Geometry(kernel, stride, (1,) * dimensions, pad, 1)
    sides = [sum(pad[2 * (dimensions - 1 - axis) :][:2]) for axis in range(dimensions)]
    places = [(p + s - k) // t + 1 for p, s, k, t in zip(pixels, sides, kernel, stride, strict=True)]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    images = torch.randn(batch, *pixels, channels, generator=generator).movedim(-1, 1)
    d = torch.randn(batch, *places, outputs, generator=generator).movedim(-1, 1)
    if draw(st.booleans()):
        images = images.contiguous()
    match draw(st.integers(0, 3)):
        case 0:
            d = d.contiguous()
        case 1:  # what the gradient of a mean over places looks like
            d = d[(..., *[slice(0, 1)] * dimensions)].expand_as(d)
        case 2:
            images, d = images.flip(0), d[:1].expand_as(d)
        case _:
            pass
    return images, d, geometry


VERSIONS = (2, 1, 0)  # AVX-512, AVX2, any; those that this processor lacks are the next lower one


@built
@given(st.data(), st.integers(1, 3), st.sampled_from(VERSIONS))
def test_gradients_and_squares_are_exact(data: st.DataObject, threads: int, version: int) -> None:
    images, d, geometry = convolution(data.draw)
    expected = exact(images, d, geometry)
    # What lies before and after the gradients is nobody's to write.
    block = torch.full((expected.numel() + 32,), -7.0)
    found = block[16:-16].view(expected.shape)
    found.fill_(float("nan"))
    torch.set_num_threads(threads)
    try:
        with mock.patch.object(compiled, "BEST", version):
            squares = compiled.gradients(images, d, geometry, found)
    finally:
        torch.set_num_threads(1)
    assert bool((block[:16] == -7).all())
    assert bool((block[-16:] == -7).all())
    count = d[0, 0].numel()
    room = (count + 2) * 2.0**-24
    size = exact(images.abs(), d.abs(), geometry)
    assert bool(((found.double() - expected).abs() <= room * size).all())
    true = found.double().square().sum((1, 2))
    torch.testing.assert_close(squares, true, rtol=2e-6, atol=0)
    assert bool((round_up(squares, found[0].numel()) >= true).all())


@built
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kernel", [(1, 1), (1, 8), (2, 8), (3, 5), (8, 8), (64, 96)])
@pytest.mark.parametrize("outputs", [4, 63, 64, 65, 512, 4097])
def test_long_sums_of_like_squares_keep_their_digits(version: int, kernel: tuple[int, int], outputs: int) -> None:
    """No more than 64 squares are added in float32, the rest in float64: what `round_up` adds is enough."""
    geometry = Geometry(kernel, (1, 1), (1, 1), (0, 0, 0, 0), 1)
    outputs = min(outputs, 2**19 // (kernel[0] * kernel[1]))
    for value in (0.1, 1 / 3, 0.7):
        d, found = torch.full((2, outputs, 1, 1), value), torch.empty(2, outputs, kernel[0] * kernel[1])
        with mock.patch.object(compiled, "BEST", version):
            squares = compiled.gradients(torch.ones(2, 1, *kernel), d, geometry, found)
        true = found.double().square().sum((1, 2))
        assert bool(((squares / true - 1).abs() <= 16 * 2.0**-24).all())
        assert bool((round_up(squares, found[0].numel()) >= true).all())


@built
def test_what_a_kernel_measures_is_at_least_what_it_weighs() -> None:
    """The norm a convolution gives is rounded up from the product it keeps, whatever part of the batch made it."""
    generator = torch.Generator().manual_seed(0)
    for shape, size in (((16, 1, 8, 8), 20), ((32, 16, 4, 4), 13), ((8, 3, 3, 3), 200)):
        images = torch.randn(40, shape[1], size, size, generator=generator)
        d = torch.randn(40, shape[0], size - shape[2] + 1, size - shape[3] + 1, generator=generator)
        geometry = Geometry(shape[2:], (1, 1), (1, 1), (0, 0, 0, 0), 1)
        weight = torch.zeros(shape)
        kernel = ConvKernel(("weight",), (weight,), (), images, 40, shape, geometry, Workspace(2**28))
        with mock.patch.object(compiled, "gradients", wraps=compiled.gradients) as called:
            squares = kernel.squared_norms(0, d)
        assert (called.call_count > 1) == (size == 200)  # a copy is as large as a chunk, not as the batch
        assert kernel.product is not None
        true = kernel.product.double().square().sum((1, 2))
        # Were it not rounded up, about half of them would be below.
        assert bool((squares > true).all())
        assert bool((squares <= true * (1 + 1e-5)).all())


@built
def test_what_is_measured_and_not_kept_is_at_least_what_torch_weighs() -> None:
    """Without room for the product torch's own weight gradient makes the sum, with other roundings: of an image of like
    numbers, whose output gradients cancel to a thousandth, too."""
    generator = torch.Generator().manual_seed(0)
    for shape, size, like in (
        ((16, 1, 8, 8), 20, False),
        ((32, 16, 4, 4), 13, False),
        ((8, 3, 3, 3), 60, True),
    ):
        images = torch.randn(12, shape[1], size, size, generator=generator)
        d = torch.randn(12, shape[0], size - shape[2] + 1, size - shape[3] + 1, generator=generator)
        if like:
            images = 1 + 1e-3 * images
            d = d - d.mean((2, 3), keepdim=True) * 0.999
        geometry = Geometry(shape[2:], (1, 1), (1, 1), (0, 0, 0, 0), 1)
        kernel = ConvKernel(
            ("weight",), (torch.zeros(shape),), (), images, 12, shape, geometry, Workspace(0)
        )  # fmt: skip
        assert kernel._method(d) == "compiled twice"
        squares = kernel.squared_norms(0, d)
        assert kernel.product is None
        weighed = torch.stack([kernel.scaled_sum(0, d, row) for row in torch.eye(12)])
        true = weighed.double().square().sum((1, 2, 3, 4))
        assert bool((squares >= true).all())
        exactly = exact(images, d, geometry).square().sum((1, 2))
        assert bool((squares >= exactly).all())
        if not like:  # what cancels has room for what rounding can leave of it
            assert bool((squares <= exactly * 1.01).all())


@built
def test_any_number_of_threads_gives_the_same_bits() -> None:
    images, d = torch.randn(37, 5, 9, 9), torch.randn(37, 7, 7, 7)
    geometry = Geometry((3, 3), (1, 1), (1, 1), (0, 0, 0, 0), 1)
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found = torch.empty(37, 7, 45)
            results.append((compiled.gradients(images, d, geometry, found), found))
    finally:
        torch.set_num_threads(1)
    for squares, found in results[1:]:
        assert torch.equal(squares, results[0][0])
        assert torch.equal(found, results[0][1])


@built
def test_numbers_that_no_window_sees_do_not_matter() -> None:
    """Vectors of eight reach beyond a run of one: what lies there, infinite or not a number, is thrown away."""
    geometry = Geometry((1, 1), (2, 2), (1, 1), (0, 0, 0, 0), 1)
    images = torch.full((3, 1, 9, 9), float("nan"))
    images[:, :, ::2, ::2] = 1.0
    images[:, :, 1::2] = float("inf")
    found = torch.empty(3, 2, 1)
    squares = compiled.gradients(images, torch.ones(3, 2, 5, 5), geometry, found)
    assert found.flatten().tolist() == [25.0] * 6
    assert squares.tolist() == [1250.0] * 3


@built
@pytest.mark.parametrize("bad", [float("inf"), float("nan"), 1e30])
def test_what_is_not_finite_stays_with_its_example(bad: float) -> None:
    """1e30: finite itself, its square is not in float32; such an example counts as not finite, as by other forms."""
    images, d = torch.ones(3, 8, 4, 4), torch.ones(3, 4, 4, 4)
    images[1, 3, 2, 2] = bad
    found = torch.empty(3, 4, 8)
    squares = compiled.gradients(images, d, Geometry((1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 1), found)
    assert torch.isfinite(squares).tolist() == [True, False, True]
    assert bool((found[[0, 2]] == 16).all())


@built
def test_squares_too_small_for_float32_are_not_lost() -> None:
    images, d = torch.full((2, 8, 1, 1), 1e-30), torch.ones(2, 4, 1, 1)
    found = torch.empty(2, 4, 8)
    squares = compiled.gradients(images, d, Geometry((1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 1), found)
    assert bool((round_up(squares, 32) >= found.double().square().sum((1, 2))).all())


@built
def test_every_size_is_looked_at_before_it_is_called() -> None:
    geometry = Geometry((2, 2), (1, 1), (1, 1), (0, 0, 0, 0), 1)
    images, d, found = torch.ones(3, 2, 5, 5), torch.ones(3, 4, 4, 4), torch.empty(3, 4, 8)
    compiled.gradients(images, d, geometry, found)
    for arguments, message in [
        ((images, torch.ones(3, 4, 4, 5), geometry, found), "do not fit"),
        ((images[:2], d, geometry, found), "do not fit|batch"),
        ((images, d, geometry, torch.empty(3, 4, 9)), "contiguous float32"),
        ((images, d, geometry, torch.empty(3, 8, 4).transpose(1, 2)), "contiguous float32"),
        ((images, d, geometry, found.double()), "contiguous float32"),
        ((images, d.double(), geometry, found), "ask covers"),
        ((images, d, Geometry((2, 2), (1, 1), (2, 2), (0, 0, 0, 0), 1), found), "ask covers"),
        ((images, d, Geometry((2, 2), (1, 1), (1, 1), (0, 0, 0, 0), 2), found), "ask covers"),
        ((images, d, Geometry((2,), (1,), (1,), (0, 0), 1), found), "ask covers"),
        ((images, d, Geometry((2, 2), (1, -1), (1, 1), (0, 0, 0, 0), 1), found), "ask covers"),
        ((images, d, Geometry((2, 2), (1, 1), (1, 1), (-1, 1, 0, 0), 1), found), "ask covers"),
        ((images[..., 0], d, geometry, found), "ask covers"),
        ((images[..., :1], d[..., :0], geometry, found), "do not fit"),
        ((images, d, geometry, found.to("meta")), "contiguous float32"),
        ((images, torch._efficientzerotensor(d.shape), geometry, found), "numbers in memory"),
    ]:
        with pytest.raises((InvalidValue, TypeError), match=message):
            compiled.gradients(*arguments)


@built
@pytest.mark.parametrize("pad", [0, 1])
def test_what_torch_makes_by_default_does_not_matter(pad: int) -> None:
    """C reads float32 on the CPU, whatever dtype and device new tensors have."""
    geometry = Geometry((3, 3), (1, 1), (1, 1), (pad,) * 4, 1)
    images, d = torch.randn(3, 1, 6, 6), torch.randn(3, 4, 4 + 2 * pad, 4 + 2 * pad)
    found, expected = torch.empty(3, 4, 9), torch.empty(3, 4, 9)
    squares = compiled.gradients(images, d, geometry, expected)
    torch.testing.assert_close(expected.double(), exact(images, d, geometry), rtol=1e-4, atol=1e-4)
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        again = compiled.gradients(images, d, geometry, found)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert torch.equal(found, expected)
    assert torch.equal(again, squares)


@built
def test_a_tensor_that_is_negated_when_it_is_read() -> None:
    geometry = Geometry((2, 2), (1, 1), (1, 1), (0, 0, 0, 0), 1)
    images, d = torch.randn(3, 2, 5, 5), torch.randn(3, 4, 4, 4)
    found, expected = torch.empty(3, 4, 8), torch.empty(3, 4, 8)
    compiled.gradients(images, d, geometry, expected)
    compiled.gradients(torch._neg_view(images), d, geometry, found)
    assert torch.equal(found, -expected)
    compiled.gradients(images, torch._neg_view(d), geometry, found)
    assert torch.equal(found, -expected)


# Numbers after the last image, channels, version.
CASE = """
import ctypes
from decrescendo.clipping.rules import compiled

def case(beyond, channels, version):
    batch, high, wide, outputs, kernel = 9, 5, 6, 6, 2
    ys, xs = high - kernel + 1, wide - kernel + 1
    places = ys * xs
    sizes = ctypes.byref(
        compiled.Sizes(batch, high, wide, channels, outputs, kernel, kernel, 1, 1, ys, xs, places, 1)
    )
    squares = ending_at_a_wall(batch, "float64")
    compiled.library()(
        ending_at_a_wall(batch * outputs * kernel * kernel * channels, "float32")[0], squares[0],
        ending_at_a_wall(batch * high * wide * channels + beyond, "float32")[0],
        ending_at_a_wall(batch * outputs * places, "float32")[0], sizes, None, 1, version)
    assert squares[1].tolist() == [float(outputs * kernel * kernel * channels * places**2)] * batch
"""


@pytest.mark.slow
@built
@pytest.mark.skipif(sys.platform != "linux", reason="walls are built as Linux does")
def test_nothing_is_read_or_written_beyond_the_ends() -> None:
    spare = compiled.LANES - 1
    done = walled(CASE, (0, 4, 2), (0, 8, 0), (spare, 1, 2), (spare, 5, 1))
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    # And the walls do stop one: runs of two numbers need more than what is theirs after the last.
    assert walled(CASE, (0, 1, 2)).returncode == -signal.SIGSEGV


@built
@pytest.mark.parametrize("channels", [1, 3, 8])
def test_images_come_with_what_may_be_read_after_the_last(channels: int) -> None:
    """Where a run is no multiple of eight, the tensor handed over has seven numbers more behind it."""
    geometry = Geometry((3, 3), (1, 1), (1, 1), (0, 0, 0, 0), 1)
    images = torch.ones(2, 6, 6, channels).movedim(-1, 1)
    handed: list[torch.Tensor] = []
    plain = compiled._channels_last

    def watched(*args: Any, **kwargs: Any) -> torch.Tensor:
        handed.append(plain(*args, **kwargs))
        return handed[-1]

    with mock.patch.object(compiled, "_channels_last", watched):
        compiled.gradients(images, torch.ones(2, 4, 4, 4), geometry, torch.empty(2, 4, 9 * channels))
    (last,) = handed
    beyond = last.untyped_storage().nbytes() // 4 - last.storage_offset() - last.numel()
    assert last.is_contiguous()
    assert beyond >= (0 if channels == 8 else compiled.LANES - 1)


@pytest.mark.parametrize("name", some([name for name in CASES if "conv" in name], 4))
def test_without_it_the_other_forms_do_the_same(name: str) -> None:
    with mock.patch.object(compiled, "library", return_value=None):
        for rank in range(3):
            model, batch = CASES[name].make(torch.float32, 6)
            with form(rank):
                check_equal(model, batch, torch.float32, EngineSettings())


@built
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_papers_model_with_an_example_that_is_not_finite(layout: torch.memory_format) -> None:
    """Its two convolutions, all of it compiled, among examples of which one is infinite: the slow loop's sum."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, 3), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.ReLU(),
        nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(512, 3),
    ).to(memory_format=layout)  # fmt: skip
    images, labels = torch.randn(20, 1, 28, 28), torch.randint(3, (20,))
    images[4, 0, 9, 9] = torch.inf
    batch = (images, labels)
    limit = float(Reference(model, loss).per_example_norms(batch).nanmedian())
    with mock.patch.object(compiled, "gradients", wraps=compiled.gradients) as called:
        found = Engine(model, loss, EngineSettings()).clipped_sum(batch, limit)
    assert called.call_count >= 2
    expected = Reference(model, loss).clipped_sum(batch, limit)
    for key, gradient in expected.gradients.items():
        torch.testing.assert_close(found.gradients[key], gradient, rtol=2e-5, atol=2e-5 * limit)
    assert found.diagnostics.nonfinite == expected.diagnostics.nonfinite == 1


@built
def test_it_is_a_form_that_operations_choose_from() -> None:
    model, batch = CASES["conv2d"].make(torch.float32, 6)
    with form(0), mock.patch.object(compiled, "gradients", wraps=compiled.gradients) as called:
        Engine(model, loss).clipped_sum(batch, 1.0)
    assert called.called


@built
def test_a_library_from_another_source_is_not_called(tmp_path: Path) -> None:
    other = tmp_path / "products.c"
    other.write_bytes(compiled.SOURCE.read_bytes() + b"\n")
    shutil.copy(compiled.SOURCE.with_name("_products.so"), tmp_path)
    with mock.patch.object(compiled, "SOURCE", other):
        assert compiled.library.__wrapped__() is None


@given(
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    channels=st.integers(1, 3),
    pad=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_patches_are_those_of_torch(
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    channels: int,
    pad: tuple[int, int],
) -> None:
    images = torch.randn(2, channels, 9, 8)
    found = unfold(images, Geometry(kernel, stride, dilation, (pad[1], pad[1], pad[0], pad[0]), 1))
    expected = functional.unfold(images, kernel, dilation, pad, stride)
    assert torch.equal(found.permute(0, 3, 2, 1).flatten(1, 2), expected)


CONVOLUTIONS = {
    "paper": lambda: nn.Conv2d(1, 16, 8, stride=2, padding=3),
    "five high": lambda: nn.Conv2d(4, 3, 5, padding=2),
    "uneven": lambda: nn.Conv2d(3, 2, (6, 4), stride=(2, 1), padding=(1, 0)),
    "no bias": lambda: nn.Conv2d(1, 5, (3, 17), padding=(1, 8), bias=False),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("precise", [False, True])
def test_sums_equal_the_reference(name: str, layout: torch.memory_format, precise: bool, monkeypatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(compiled, "library", lambda: None)  # the form that is taken without a C compiler

    model = nn.Sequential(CONVOLUTIONS[name](), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.LazyLinear(3))
    batch = torch.randn(9, model[0].in_channels, 20, 22)
    batch[4, 0, 0, 0] = torch.inf
    model(batch)
    model = model.to(memory_format=layout)

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().sum(1)

    norms = Reference(model, loss).per_example_norms(batch)
    finite = norms[norms.isfinite()].sort()[0]
    limit = float(finite[3] + finite[4]) / 2
    found = Engine(model, loss, EngineSettings(accumulate="float64" if precise else "float32")).clipped_sum(
        batch, limit
    )
    expected = Reference(model, loss).clipped_sum(batch, limit)
    for key, gradient in expected.gradients.items():
        torch.testing.assert_close(found.gradients[key].float(), gradient, rtol=2e-5, atol=2e-5 * limit)
    assert found.diagnostics.clipped == expected.diagnostics.clipped
    assert found.diagnostics.nonfinite == expected.diagnostics.nonfinite == 1


def test_kept_gradients_lie_in_the_memory_that_was_taken() -> None:
    weight = torch.randn(16, 1, 8, 8)
    geometry = Geometry((8, 8), (2, 2), (1, 1), (3, 3, 3, 3), 1)
    images, d = torch.randn(300, 1, 28, 28), torch.randn(300, 16, 14, 14)
    kernel = ConvKernel(("weight",), (weight,), (), images, 300, (16, 1, 8, 8), geometry, Workspace(2**24))
    squares = kernel.squared_norms(0, d)
    whole = kernel.per_example(0, d).double()
    assert kernel.product is not None
    assert kernel.product.numel() == 300 * math.prod((16, 1, 8, 8))
    assert bool((squares >= whole.square().sum((1, 2, 3, 4))).all())
    torch.testing.assert_close(squares, whole.square().sum((1, 2, 3, 4)), rtol=1e-5, atol=0)
    weights = torch.rand(300)
    direct = torch.nn.grad.conv2d_weight(
        images.double(), (16, 1, 8, 8), d.double() * weights.double().reshape(-1, 1, 1, 1), 2, 3
    )
    torch.testing.assert_close(kernel.scaled_sum(0, d, weights).double(), direct, rtol=1e-5, atol=1e-3)
