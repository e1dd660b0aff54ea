"""The compiled norms from Gram matrices (grams.c): never short, hardly long, within their own memory, and optional."""

import shutil
import signal
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from walls import walled

from decrescendo.clipping.rules import grams
from decrescendo.clipping.rules.grams import gram_norms
from decrescendo.clipping.rules.linear import LinearKernel
from decrescendo.clipping.workspace import Workspace

built = pytest.mark.skipif(grams.library() is None, reason="not built on this machine")
VERSIONS = (2, 1, 0)  # AVX-512, AVX2, any; those that this processor lacks are the next lower one


def exact(a: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    return torch.bmm(d.double().transpose(1, 2), a.double()).square().sum((1, 2))


def without(a: torch.Tensor, d: torch.Tensor, slack: float) -> torch.Tensor:
    with mock.patch.object(grams, "library", return_value=None):
        return gram_norms(a, d, slack)


def side(batch: int, places: int, features: int, layout: int, seed: int) -> torch.Tensor:
    """In every layout that a linear layer hands over."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.randn(batch, places, 2 * features + 5, generator=generator)
    match layout:
        case 0:
            return wide[:, :, :features].contiguous()
        case 1:
            return wide[:, :, 2 : features + 2]
        case 2:
            return wide[:, :, ::2][:, :, :features]
        case 3:
            return wide[:, :1, :features].expand(-1, places, -1)
        case _:
            return wide[:1, :, :features].contiguous().expand(batch, -1, -1)


lengths = st.one_of(st.integers(1, 40), st.sampled_from((255, 256, 257, 520, 600)))


@built
@given(
    st.integers(1, 3), st.sampled_from((1, 2, 3, 4, 5, 31, 32, 33, 65, 100)), lengths, lengths,
    st.integers(0, 4), st.integers(0, 4), st.integers(1, 3), st.sampled_from(VERSIONS), st.integers(0, 2**31),
)  # fmt: skip
def test_norms_are_those_of_the_products_rounded_up_by_as_much_as_without_it(
    batch: int, places: int, features: int, outputs: int, one: int, other: int, threads: int, version: int, seed: int
) -> None:  # fmt: skip
    a, d = side(batch, places, features, one, seed), side(batch, places, outputs, other, seed + 1)
    torch.set_num_threads(threads)
    try:
        with mock.patch.object(grams, "BEST", version):
            found = gram_norms(a, d, 1e-6)
    finally:
        torch.set_num_threads(1)
    assert bool((found >= exact(a, d)).all())
    # Both forms add the same bound, made of their own roundings.
    scale = torch.linalg.vector_norm(a, dim=2).double() * torch.linalg.vector_norm(d, dim=2)
    off = (found - without(a, d, 1e-6)).abs()
    assert bool((off <= 1e-6 * scale.sum(1).square()).all())


@built
def test_any_number_of_threads_and_any_company_gives_the_same_bits() -> None:
    a, d = torch.randn(5, 70, 300), torch.randn(5, 70, 33)
    found = gram_norms(a, d, 0.0)
    try:
        torch.set_num_threads(3)
        assert torch.equal(gram_norms(a, d, 0.0), found)
    finally:
        torch.set_num_threads(1)
    for row in range(5):
        assert torch.equal(gram_norms(a[row : row + 1], d[row : row + 1], 0.0)[0], found[row])


@built
@pytest.mark.parametrize("bad", [float("inf"), float("nan"), 1e30])
@pytest.mark.parametrize("place", [0, 34])
def test_what_is_not_finite_stays_with_its_example(bad: float, place: int) -> None:
    a, d = torch.ones(3, 35, 20), torch.ones(3, 35, 4)
    a[1, place, 19] = bad
    assert torch.isfinite(gram_norms(a, d, 0.0)).tolist() == [True, False, True]
    d[0, place, 3] = bad
    assert torch.isfinite(gram_norms(a, d, 0.0)).tolist() == [False, False, True]


@built
def test_a_tensor_that_is_negated_when_it_is_read_and_what_torch_makes_by_default() -> None:
    a, d = torch.randn(3, 6, 9), torch.randn(3, 6, 4)
    found = gram_norms(a, d, 1e-6)
    assert torch.equal(gram_norms(torch._neg_view(a), d, 1e-6), found)
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        again = gram_norms(a, d, 1e-6)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert torch.equal(again, found)


@built
@pytest.mark.parametrize(("a", "d"), [((3, 5, 2), (3, 6, 2)), ((3, 5, 2), (2, 5, 2)), ((3, 5), (3, 5))])
def test_sides_that_do_not_fit_are_not_read(a: tuple[int, ...], d: tuple[int, ...]) -> None:
    with pytest.raises((ValueError, IndexError)):
        gram_norms(torch.ones(a), torch.ones(d), 0.0)


# Numbers too few in a, places, features, version.
CASE = """
import ctypes
from decrescendo.clipping.rules import grams

def case(missing, places, features, version):
    batch, outputs = 2, 7
    a, d = (grams._Side(n, places * n, n, 1.0, 0.0, 0.0, 0.0) for n in (features, outputs))
    found = ending_at_a_wall(4 * batch, "float64")
    grams.library()(
        found[0], ending_at_a_wall(batch * places * features - missing, "float32")[0],
        ending_at_a_wall(batch * places * outputs, "float32")[0],
        ctypes.byref(grams._Sizes(batch, places, a, d)), None, 1, version)
    assert found[1].reshape(batch, 4)[:, 0].tolist() == [float(places**2 * features * outputs)] * batch
"""


@pytest.mark.slow
@built
@pytest.mark.skipif(sys.platform != "linux", reason="walls are built as Linux does")
def test_nothing_is_read_or_written_beyond_the_ends() -> None:
    cases = [(0, places, features, v) for places in (1, 33, 64) for features in (3, 64, 300) for v in VERSIONS]
    done = walled(CASE, *cases)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    # And the walls do stop one.
    assert walled(CASE, (1, 64, 64, 2)).returncode == -signal.SIGSEGV


@built
def test_layers_of_few_places_are_measured_by_it() -> None:
    generator = torch.Generator().manual_seed(0)
    a, d = torch.randn(4, 20, 200, generator=generator), torch.randn(4, 20, 300, generator=generator)
    weight = torch.zeros(300, 200)
    kernel = LinearKernel(("weight",), (weight,), (), a, False, Workspace(0))
    with mock.patch.object(grams, "_compiled_norms", wraps=grams._compiled_norms) as called:
        squares = kernel.squared_norms(0, d)
    assert called.called
    weighed = torch.stack([kernel.scaled_sum(0, d, row) for row in torch.eye(4)])
    assert bool((squares >= weighed.double().square().sum((1, 2))).all())


@built
def test_a_library_from_another_source_is_not_called(tmp_path: Path) -> None:
    other = tmp_path / "grams.c"
    other.write_bytes(grams.SOURCE.read_bytes() + b"\n")
    shutil.copy(grams.SOURCE.with_name("_grams.so"), tmp_path)
    with mock.patch.object(grams, "SOURCE", other):
        assert grams.library.__wrapped__() is None
