"""The compiled sums over equal ids (segments.c): exact, within their own memory, and optional."""

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
from clipping_cases import CASES
from equality import check_equal, form
from hypothesis import given
from hypothesis import strategies as st
from walls import walled

from decrescendo.clipping import Engine, EngineSettings
from decrescendo.clipping.rules import segments
from decrescendo.clipping.rules.embedding import EmbeddingKernel, sum_segments
from decrescendo.errors import InvalidValue

built = pytest.mark.skipif(segments.library() is None, reason="not built on this machine")
VERSIONS = (2, 1, 0)  # AVX-512, AVX2, any; those that this processor lacks are the next lower one


@pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang")))
    or not sys.platform.startswith(("linux", "darwin"))
    or os.environ.get("DECRESCENDO_COMPILED") == "0",
    reason="no C compiler when this was installed",
)
def test_it_is_built_where_there_is_a_compiler() -> None:
    assert segments.library() is not None


def exact(ids: torch.Tensor, d: torch.Tensor, words: int, padding: int | None) -> torch.Tensor:
    """(batch, words, dim) in float64, one place of one example after another."""
    found = torch.zeros(len(ids), words, d.shape[2], dtype=torch.float64)
    for row in range(len(ids)):
        for place, word in enumerate(ids[row].tolist()):
            if word != padding:
                found[row, word] += d[row, place].double()
    return found


def lookups(
    draw: Callable[[st.SearchStrategy[Any]], Any],
) -> tuple[torch.Tensor, torch.Tensor, int, int | None]:
    """Few words and many, dimensions on both sides of a vector, gradients in every layout."""
    batch, places = draw(st.integers(1, 5)), draw(st.sampled_from((1, 2, 3, 31, 32, 33)))
    words, dim = draw(st.sampled_from((1, 2, 7, 1000))), draw(st.sampled_from((1, 3, 8, 15, 16, 17, 40)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    ids = torch.randint(words, (batch, places), generator=generator)
    d = torch.randn(batch, places, dim, generator=generator)
    match draw(st.integers(0, 4)):
        case 0:  # the gradient of a mean over places
            d = d[:, :1].expand_as(d)
        case 1:
            ids, d = ids[:1].expand_as(ids), d[:1].expand_as(d)
        case 2:  # every other number of a wider tensor
            d = torch.randn(batch, places, 2 * dim, generator=generator)[..., ::2]
            ids = torch.randint(words, (places, batch), generator=generator).T
        case 3:
            d = torch.randn(places, batch, dim + 4, generator=generator)[..., 2:-2].transpose(0, 1)
        case _:
            pass
    return ids, d, words, draw(st.sampled_from((None, 0, words - 1)))


@built
@given(st.data(), st.integers(1, 3), st.sampled_from(VERSIONS))
def test_sums_and_squares_are_exact(data: st.DataObject, threads: int, version: int) -> None:
    ids, d, words, padding = lookups(data.draw)
    expected = exact(ids, d, words, padding)
    factors = torch.linspace(0.1, 1, len(ids))
    torch.set_num_threads(threads)
    try:
        with mock.patch.object(segments, "BEST", version):
            found = segments.blocks_of(ids, d, words, padding)
            total = found.scaled_sum((words, d.shape[2]), factors)
    finally:
        torch.set_num_threads(1)
    each = found.per_example(len(ids), (words, d.shape[2]))
    room = (ids.shape[1] + 2) * 2.0**-24
    sizes = exact(ids, d.abs(), words, padding)
    assert bool(((each.double() - expected).abs() <= room * sizes).all())
    true = each.double().square().sum((1, 2))
    squares = found.squared_norms(len(ids))
    torch.testing.assert_close(squares, true, rtol=1e-12, atol=0)
    assert bool((squares >= true).all())
    weighed = torch.einsum("b,bwd->wd", factors.double(), each.double())
    room = (len(ids) + 2) * 2.0**-24
    assert bool(((total.double() - weighed).abs() <= room * torch.einsum("b,bwd->wd", factors.double(), each.double().abs()) + 1e-30).all())  # fmt: skip  # noqa: E501
    # What the sorted form finds, but for the order of the pairs; on a GPU with some that are nothing.
    sorted_form = sum_segments(ids, d, padding)
    with mock.patch("decrescendo.clipping.rules.embedding.places_of", segments.padded_places_of):
        filled_up = sum_segments(ids, d, padding)
    for one in (sorted_form, filled_up):
        torch.testing.assert_close(one.per_example(len(ids), (words, d.shape[2])), each, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(one.squared_norms(len(ids)), true, rtol=1e-5, atol=1e-9)
        torch.testing.assert_close(one.scaled_sum((words, d.shape[2]), factors), weighed.float(), rtol=1e-4, atol=1e-5)
    pairs = sum(len({*row.tolist()} - {padding}) for row in ids)
    assert pairs == int(found.counts.sum()) == int((sorted_form.identity != (-1 if padding is None else padding)).sum())
    assert len(filled_up.example) == ids.numel()


@built
def test_any_number_of_threads_gives_the_same_bits() -> None:
    ids, d = torch.randint(50, (7, 90)), torch.randn(7, 90, 12)
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found = segments.blocks_of(ids, d, 50)
            results.append((found.squares, found.scaled_sum((50, 12), torch.rand(7).fill_(0.3)), found.counts))
    finally:
        torch.set_num_threads(1)
    for result in results[1:]:
        assert all(torch.equal(one, first) for one, first in zip(result, results[0], strict=True))


@built
def test_each_example_has_the_bits_it_has_alone() -> None:
    ids, d = torch.randint(9, (5, 40)), torch.randn(5, 40, 6)
    found = segments.blocks_of(ids, d, 9)
    for row in range(5):
        alone = segments.blocks_of(ids[row : row + 1], d[row : row + 1], 9)
        count = int(alone.counts)
        assert torch.equal(alone.squares[0], found.squares[row])
        assert torch.equal(alone.sums[0, :count], found.sums[row, :count])


@built
def test_ids_that_fall_into_one_slot_of_the_table() -> None:
    """Ids far apart whose hashes agree in all bits that count are told apart by themselves."""
    words, places = 200_000, 40
    slots = 1 << (2 * places - 1).bit_length()
    hashes = [(word * 0x9E3779B97F4A7C15 % 2**64 >> 32) % slots for word in range(words)]
    alike = torch.tensor([[word for word in range(words) if hashes[word] == slots - 1][:places]])
    assert alike.shape == (1, places)
    d = torch.randn(1, places, 3)
    found = segments.blocks_of(alike, d, words)
    assert found.counts.tolist() == [places]
    assert torch.equal(found.identity, alike)
    assert torch.equal(found.sums, d)


@built
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_what_is_not_finite_stays_with_its_example(bad: float) -> None:
    ids, d = torch.tensor([[0, 1], [1, 1], [2, 1]]), torch.ones(3, 2, 5)
    d[1, 0, 3] = bad
    found = segments.blocks_of(ids, d, 3)
    assert torch.isfinite(found.squares).tolist() == [True, False, True]
    left = found.without_rows(torch.tensor([False, True, False]))
    assert left.squared_norms(3).round().tolist() == [10, 0, 10]
    assert left.scaled_sum((3, 5), torch.ones(3))[:, 3].tolist() == [1, 2, 1]


def test_an_example_that_is_not_finite_counts_for_nothing_whichever_form_is_taken() -> None:
    table = torch.nn.Embedding(4, 3)
    loss = lambda model, batch: (model(batch[0]) * batch[1].unsqueeze(2)).sum((1, 2))  # noqa: E731
    batch = (
        torch.tensor([[0, 1], [1, 1], [2, 1]]),
        torch.tensor([[1.0, 1.0], [float("inf"), 1.0], [1.0, 1.0]]),
    )
    sums = []
    for library in (segments.library(), None):
        with mock.patch.object(segments, "library", return_value=library):
            found = Engine(table, loss).clipped_sum(batch, 100.0)
            assert found.diagnostics.nonfinite == 1
            sums.append(found.gradients["weight"])
    torch.testing.assert_close(sums[0], torch.tensor([[1.0] * 3, [2.0] * 3, [1.0] * 3, [0.0] * 3]))
    torch.testing.assert_close(*sums)


@built
@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_squares_that_float32_cannot_hold_are_not_lost(size: float) -> None:
    found = segments.blocks_of(torch.zeros(2, 4, dtype=torch.long), torch.full((2, 4, 8), size), 1)
    torch.testing.assert_close(found.squared_norms(2), torch.full((2,), 8 * (4 * size) ** 2, dtype=torch.float64))


@built
def test_every_size_is_looked_at_before_it_is_called_and_every_id_in_it() -> None:
    ids, d = torch.zeros(3, 5, dtype=torch.long), torch.ones(3, 5, 2)
    found = segments.blocks_of(ids, d, 4)
    for arguments, message in [
        ((ids[:2], d, 4), "each id needs a gradient"),
        ((ids, d.double(), 4), "ask covers"),
        ((ids.int(), d, 4), "ask covers"),
        ((ids, d[0], 4), "ask covers"),
        ((ids[:, :0], d[:, :0], 4), "ask covers"),
        ((ids, torch._efficientzerotensor(d.shape), 4), "numbers in memory"),
        ((ids + 4, d, 4), "rows of a table of 4, got 4 to 4"),
        ((ids - 1, d, 4), "rows of a table of 4, got -1 to -1"),
    ]:
        with pytest.raises(InvalidValue, match=message):
            segments.blocks_of(*arguments)
    for shape, factors in (((4, 3), torch.ones(3)), ((4, 2), torch.ones(2))):
        with pytest.raises(InvalidValue, match="one factor"):
            found.scaled_sum(shape, factors)


@built
def test_what_torch_makes_by_default_does_not_matter() -> None:
    """C reads and writes float32 on the CPU, whatever dtype and device new tensors have."""
    ids, d, factors = torch.randint(4, (3, 6)), torch.randn(3, 6, 9), torch.rand(3)
    expected = segments.blocks_of(ids, d, 4)
    total, each = expected.scaled_sum((4, 9), factors), expected.per_example(3, (4, 9))
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        again = segments.blocks_of(ids, d, 4)
        assert torch.equal(again.scaled_sum((4, 9), factors), total)
        assert torch.equal(again.per_example(3, (4, 9)), each)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


@built
def test_a_tensor_that_is_negated_when_it_is_read() -> None:
    ids, d = torch.randint(4, (3, 6)), torch.randn(3, 6, 9)
    found = segments.blocks_of(ids, torch._neg_view(d), 4)
    assert torch.equal(found.per_example(3, (4, 9)), -segments.blocks_of(ids, d, 4).per_example(3, (4, 9)))


# Numbers too few in d, dim, version.
CASE = """
import ctypes
from decrescendo.clipping.rules import segments

def case(missing, dim, version):
    batch, places, words, slots = 3, 33, 33, 128
    sizes = ctypes.byref(segments.Sizes(batch, places, dim, words, -1, places * dim, dim, slots))
    ids, numbers = ending_at_a_wall(batch * places, "int64")
    numbers[:] = list(range(places)) * 2 + [words - 1] * places  # all ids of a table, and its last one alone
    d = ending_at_a_wall(batch * places * dim - missing, "float32")[0]
    sums = ending_at_a_wall(batch * places * dim, "float32")[0]
    distinct, counts = ending_at_a_wall(batch * places, "int64")[0], ending_at_a_wall(batch, "int64")
    squares, tables = ending_at_a_wall(batch, "float64"), ending_at_a_wall(2 * slots, "int64")[0]
    last = (None, 1, version)
    segments.library()(ids, d, None, sums, distinct, counts[0], squares[0], None, tables, sizes, *last)
    assert counts[1].tolist() == [places, places, 1]
    assert squares[1].tolist() == [places * dim, places * dim, places**2 * dim]
    total = ending_at_a_wall(words * dim, "float32", 0)
    factors = ending_at_a_wall(batch, "float32")[0]
    segments.library()(None, None, factors, sums, distinct, counts[0], None, total[0], None, sizes, *last)
    assert total[1].reshape(words, dim)[:, 0].tolist() == [2] * (words - 1) + [2 + places]
"""


@pytest.mark.slow
@built
@pytest.mark.skipif(sys.platform != "linux", reason="walls are built as Linux does")
def test_nothing_is_read_or_written_beyond_the_ends() -> None:
    done = walled(CASE, (0, 16, 2), (0, 19, 2), (0, 5, 1), (0, 12, 0))
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    # And the walls do stop one.
    assert walled(CASE, (1, 16, 2)).returncode == -signal.SIGSEGV


@pytest.mark.parametrize("name", ["embedding", "tied embedding", "lstm"])
def test_without_it_the_other_form_does_the_same(name: str) -> None:
    with mock.patch.object(segments, "library", return_value=None):
        for rank in range(2):
            model, batch = CASES[name].make(torch.float32, 6)
            with form(rank):
                check_equal(model, batch, torch.float32, EngineSettings())


@pytest.mark.parametrize("library", [True, False])
def test_the_gradient_is_not_kept_beside_its_sums(library: bool) -> None:
    """Once it has arrived, sums over equal ids are all that is needed of it."""
    if library and segments.library() is None:
        pytest.skip("not built on this machine")
    kernel = EmbeddingKernel((torch.zeros(5, 3),), (), torch.tensor([[1, 1], [2, 4]]), None)
    d = torch.randn(2, 2, 3)
    with mock.patch.object(segments, "library", return_value=segments.library() if library else None):
        assert kernel.absorb(d)
        nothing = d.new_empty((2, 0))
        expected = torch.stack([(d[0, 0] + d[0, 1]).square().sum(), d[1].square().sum()])
        torch.testing.assert_close(kernel.squared_norms(0, nothing).float(), expected)
        left = kernel.without_rows(torch.tensor([True, False])).scaled_sum(0, nothing, torch.tensor([1.0, 0.5]))
    torch.testing.assert_close(left, torch.zeros(5, 3).index_copy(0, torch.tensor([2, 4]), d[1] / 2))


@built
def test_a_library_from_another_source_is_not_called(tmp_path: Path) -> None:
    other = tmp_path / "segments.c"
    other.write_bytes(segments.SOURCE.read_bytes() + b"\n")
    for name in ("_segments.so", "kernels.h"):
        shutil.copy(segments.SOURCE.with_name(name), tmp_path)
    with mock.patch.object(segments, "SOURCE", other):
        assert segments.library.__wrapped__() is None
