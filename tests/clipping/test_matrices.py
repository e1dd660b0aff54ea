"""The compiled products of per-example matrices (matrices.c): exact, within their own memory, and optional."""

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
from walls import walled

from decrescendo.clipping import Engine, EngineSettings
from decrescendo.clipping.rules import matrices
from decrescendo.clipping.rules.linear import LinearKernel, product_norms, product_squares, scaled_product
from decrescendo.clipping.rules.rule import round_up
from decrescendo.clipping.workspace import Workspace
from decrescendo.errors import InvalidValue

built = pytest.mark.skipif(matrices.library() is None, reason="not built on this machine")
VERSIONS = (2, 1, 0)  # AVX-512, AVX2, any; those that this processor lacks are the next lower one


@pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang")))
    or not sys.platform.startswith(("linux", "darwin"))
    or os.environ.get("DECRESCENDO_COMPILED") == "0",
    reason="no C compiler when this was installed",
)
def test_it_is_built_where_there_is_a_compiler() -> None:
    assert matrices.library() is not None


def exact(a: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """(batch, outputs, features) in float64, one outer product of one place after another."""
    found = torch.zeros(a.shape[0], d.shape[1], a.shape[2], dtype=torch.float64)
    for place in range(a.shape[1]):
        found += d[:, :, place, None].double() * a[:, place, None, :].double()
    return found


def sides(draw: Callable[[st.SearchStrategy[Any]], Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """In every layout that a linear layer or a convolution hands over; lengths on both sides of all blocks."""
    batch, places = draw(st.integers(1, 4)), draw(st.sampled_from((1, 2, 7, 64, 127, 128, 129, 300)))
    features = draw(st.one_of(st.integers(1, 20), st.sampled_from((31, 32, 33, 63, 64, 65, 130))))
    outputs = draw(st.one_of(st.integers(1, 9), st.sampled_from((127, 128, 129, 260))))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    a = torch.randn(batch, places, features, generator=generator)
    d = torch.randn(batch, outputs, places, generator=generator)
    match draw(st.integers(0, 4)):
        case 0:
            d = d.transpose(1, 2).contiguous().transpose(1, 2)  # of a linear layer
        case 1:  # the gradient of a mean over places
            d = d[:, :, :1].expand_as(d)
        case 2:
            a, d = a[:1].expand_as(a), d[:1].expand_as(d)
        case 3:  # every other feature of a wider tensor, and rows with something between them
            a = torch.randn(batch, places, 2 * features, generator=generator)[:, :, ::2]
            d = torch.randn(batch, outputs, 3 * places, generator=generator)[:, :, ::3]
        case _:
            a = torch.randn(batch, places, features + 5, generator=generator)[:, :, 2:-3]
    return a, d


@built
@given(st.data(), st.integers(1, 3), st.sampled_from(VERSIONS))
def test_products_and_squares_are_exact(data: st.DataObject, threads: int, version: int) -> None:
    a, d = sides(data.draw)
    expected = exact(a, d)
    # What lies before and after the products is nobody's to write.
    block = torch.full((expected.numel() + 32,), -7.0)
    found = block[16:-16].view(expected.shape)
    found.fill_(float("nan"))
    torch.set_num_threads(threads)
    try:
        with mock.patch.object(matrices, "BEST", version):
            squares = matrices.products(a, d, found)
    finally:
        torch.set_num_threads(1)
    assert bool((block[:16] == -7).all())
    assert bool((block[-16:] == -7).all())
    room = (a.shape[1] + 2) * 2.0**-24
    assert bool(((found.double() - expected).abs() <= room * exact(a.abs(), d.abs())).all())
    true = found.double().square().sum((1, 2))
    torch.testing.assert_close(squares, true, rtol=2e-6, atol=0)
    assert bool((round_up(squares, found[0].numel()) >= true).all())


@built
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("features", [1, 16, 33, 64, 6144])
@pytest.mark.parametrize("outputs", [4, 63, 128, 129, 4097])
def test_long_sums_of_like_squares_keep_their_digits(version: int, features: int, outputs: int) -> None:
    """No more than 64 squares are added in float32, the rest in float64: what `round_up` adds is enough."""
    outputs = min(outputs, 2**19 // features)
    for value in (0.1, 1 / 3, 0.7):
        d, found = torch.full((2, outputs, 1), value), torch.empty(2, outputs, features)
        with mock.patch.object(matrices, "BEST", version):
            squares = matrices.products(torch.ones(2, 1, features), d, found)
        true = found.double().square().sum((1, 2))
        assert bool(((squares / true - 1).abs() <= 16 * 2.0**-24).all())
        assert bool((round_up(squares, found[0].numel()) >= true).all())


@built
@pytest.mark.parametrize("room", [0, 2**28])
def test_what_a_layer_measures_is_at_least_what_it_weighs(room: int) -> None:
    """Kept products are rounded up; where the sum is another product, what its roundings can add is in the norm."""
    generator = torch.Generator().manual_seed(0)
    for places, features, outputs, like in ((200, 48, 40, False), (150, 33, 130, False), (300, 40, 20, True)):
        a = torch.randn(6, places, features, generator=generator)
        d = torch.randn(6, places, outputs, generator=generator)
        if like:  # the products cancel to a thousandth
            a = 1 + 1e-3 * a
            d = d - d.mean(1, keepdim=True) * 0.999
        weight = torch.zeros(outputs, features)
        kernel = LinearKernel(("weight",), (weight,), (), a, False, Workspace(room))
        with mock.patch.object(matrices, "products", wraps=matrices.products) as called:
            squares = kernel.squared_norms(0, d)
        assert called.called
        assert (kernel.product is None) == (room == 0)
        weighed = torch.stack([kernel.scaled_sum(0, d, row) for row in torch.eye(6)])
        assert bool((squares >= weighed.double().square().sum((1, 2))).all())
        exactly = exact(a, d.transpose(1, 2)).square().sum((1, 2))
        if not room:
            assert bool((squares >= exactly).all())
        if not like:
            assert bool((squares <= exactly * 1.01).all())


@built
def test_any_number_of_threads_gives_the_same_bits() -> None:
    a, d = torch.randn(5, 140, 70), torch.randn(5, 300, 140)
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found = torch.empty(5, 300, 70)
            results.append((matrices.products(a, d, found), found))
    finally:
        torch.set_num_threads(1)
    for squares, found in results[1:]:
        assert torch.equal(squares, results[0][0])
        assert torch.equal(found, results[0][1])


@built
def test_each_example_has_the_bits_it_has_alone() -> None:
    a, d = torch.randn(5, 140, 70), torch.randn(5, 300, 140)
    found, alone = torch.empty(5, 300, 70), torch.empty(1, 300, 70)
    squares = matrices.products(a, d, found)
    for row in range(5):
        square = matrices.products(a[row : row + 1], d[row : row + 1], alone)
        assert torch.equal(square[0], squares[row])
        assert torch.equal(alone[0], found[row])


@built
@pytest.mark.parametrize("bad", [float("inf"), float("nan"), 1e30])
@pytest.mark.parametrize("features", [5, 64])
def test_what_is_not_finite_stays_with_its_example(bad: float, features: int) -> None:
    """1e30: finite itself, its square is not in float32; such an example counts as not finite, as by other forms."""
    a, d = torch.ones(3, 16, features), torch.ones(3, 4, 16)
    a[1, 2, 3] = bad
    found = torch.empty(3, 4, features)
    squares = matrices.products(a, d, found)
    assert torch.isfinite(squares).tolist() == [True, False, True]
    assert bool((found[[0, 2]] == 16).all())
    d[0, 1, 5] = bad
    assert torch.isfinite(matrices.products(a, d, found)).tolist() == [False, False, True]


@built
def test_squares_too_small_for_float32_are_not_lost() -> None:
    found = torch.empty(2, 4, 8)
    squares = matrices.products(torch.full((2, 1, 8), 1e-30), torch.ones(2, 4, 1), found)
    assert bool((round_up(squares, 32) >= found.double().square().sum((1, 2))).all())


@built
def test_every_size_is_looked_at_before_it_is_called() -> None:
    a, d, found = torch.ones(3, 5, 2), torch.ones(3, 4, 5), torch.empty(3, 4, 2)
    matrices.products(a, d, found)
    for arguments, message in [
        ((a, torch.ones(3, 4, 6), found), "fit together"),
        ((a[:2], d, found), "fit together"),
        ((a, d, torch.empty(3, 4, 3)), "contiguous float32"),
        ((a, d, torch.empty(3, 2, 4).transpose(1, 2)), "contiguous float32"),
        ((a, d, found.double()), "contiguous float32"),
        ((a, d.double(), found), "ask covers"),
        ((a[0], d, found), "ask covers"),
        ((a[:, :0], d[:, :, :0], found), "ask covers"),
        ((a, d, found.to("meta")), "contiguous float32"),
        ((a, torch._efficientzerotensor(d.shape), found), "numbers in memory"),
    ]:
        with pytest.raises((InvalidValue, TypeError), match=message):
            matrices.products(*arguments)


@built
def test_what_torch_makes_by_default_does_not_matter() -> None:
    """C reads float32 on the CPU, whatever dtype and device new tensors have."""
    a, d = torch.randn(3, 6, 9), torch.randn(3, 4, 6)
    found, expected = torch.empty(3, 4, 9), torch.empty(3, 4, 9)
    squares = matrices.products(a, d, expected)
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        again = matrices.products(a, d, found)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert torch.equal(found, expected)
    assert torch.equal(again, squares)


@built
def test_a_tensor_that_is_negated_when_it_is_read() -> None:
    a, d = torch.randn(3, 6, 9), torch.randn(3, 4, 6)
    found, expected = torch.empty(3, 4, 9), torch.empty(3, 4, 9)
    matrices.products(a, d, expected)
    matrices.products(torch._neg_view(a), d, found)
    assert torch.equal(found, -expected)
    matrices.products(a, torch._neg_view(d), found)
    assert torch.equal(found, -expected)


# Numbers too few in a, features, version.
CASE = """
import ctypes
from decrescendo.clipping.rules import matrices

def case(missing, features, version):
    batch, places, outputs = 3, 130, 131
    sizes = ctypes.byref(
        matrices.Sizes(batch, places, features, outputs, places * features, features, outputs * places, 1, places)
    )
    squares = ending_at_a_wall(2 * batch, "float64")
    matrices.library()(
        ending_at_a_wall(batch * outputs * features, "float32")[0], squares[0],
        ending_at_a_wall(batch * places * features - missing, "float32")[0],
        ending_at_a_wall(batch * outputs * places, "float32")[0], sizes, None, 1, version)
    assert squares[1].tolist() == [float(rows * features * places**2) for rows in (128, 3)] * batch
"""


@pytest.mark.slow
@built
@pytest.mark.skipif(sys.platform != "linux", reason="walls are built as Linux does")
def test_nothing_is_read_or_written_beyond_the_ends() -> None:
    done = walled(CASE, (0, 64, 2), (0, 67, 2), (0, 5, 1), (0, 40, 0))
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    # And the walls do stop one.
    assert walled(CASE, (1, 64, 2)).returncode == -signal.SIGSEGV


@pytest.mark.parametrize("name", some(["deep", "transformer layer", "tied embedding", "self attention", "conv2d"], 2))
def test_without_it_the_other_forms_do_the_same(name: str) -> None:
    with mock.patch.object(matrices, "library", return_value=None):
        for rank in range(3):
            model, batch = CASES[name].make(torch.float32, 6)
            with form(rank):
                check_equal(model, batch, torch.float32, EngineSettings())


@built
def test_it_is_a_form_that_operations_choose_from() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    batch = (torch.randn(4, 60, 8), torch.randint(3, (4,)))
    with mock.patch.object(matrices, "products", wraps=matrices.products) as called:
        Engine(_Mean(model), loss).clipped_sum(batch, 1.0)
    assert called.called


class _Mean(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).mean(1)


def test_both_forms_of_a_product_agree() -> None:
    generator = torch.Generator().manual_seed(0)
    a, d = torch.randn(4, 90, 30, generator=generator), torch.randn(4, 20, 90, generator=generator)
    found, other = torch.empty(4, 20, 30), torch.empty(4, 20, 30)
    squares = product_squares(d, a, found)
    with mock.patch.object(matrices, "library", return_value=None):
        torch.testing.assert_close(product_squares(d, a, other), squares, rtol=1e-5, atol=0)
        norms = product_norms(d, a, 1e-6)
    torch.testing.assert_close(found, other, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(product_norms(d, a, 1e-6), norms, rtol=1e-5, atol=0)
    total = scaled_product(a, d.transpose(1, 2), torch.ones(4))
    torch.testing.assert_close(found.sum(0), total, rtol=1e-4, atol=1e-4)


@built
def test_a_library_from_another_source_is_not_called(tmp_path: Path) -> None:
    other = tmp_path / "matrices.c"
    other.write_bytes(matrices.SOURCE.read_bytes() + b"\n")
    shutil.copy(matrices.SOURCE.with_name("_matrices.so"), tmp_path)
    with mock.patch.object(matrices, "SOURCE", other):
        assert matrices.library.__wrapped__() is None
