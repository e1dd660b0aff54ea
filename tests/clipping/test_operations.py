"""Operations that take a parameter directly, in every layout, against the slow loop; and what the labels say of all."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import overloads
import pytest
import torch
from clipping_cases import loss
from equality import check_equal
from often import some
from operation_cases import OPERATIONS
from torch import Tensor, nn

from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.clipping.rules.fallback import FallbackKernel
from decrescendo.row_independence.labels import Mixed, Public, RowLayout

# What vmap does: forms without a closed form of their own.
FALLBACK = {
    "einsum, diagonal",
    "einsum, summed parameter",
    "numbers by ids",
    "attention with a learned bias",
    "attention with learned keys",
    "a parameter read as complex numbers",
    "matmul from the left",
    "matmul of matrices by head",
    "matmul with a vector",
    "mv",
    "bmm, columns",
    "baddbmm, columns",
    "addmm, scaled",
    "einsum",
    "einsum, ellipsis",
    "einsum, implicit",
    "einsum, three operands",
    "einsum, columns",
    "einsum, folded",
    "einsum, interleaved",
    "einsum of one example's two",
    "bilinear",
    "linear of one output",
    "conv_transpose1d",
    "conv_transpose1d dilated",
    "conv_transpose2d groups",
    "conv_transpose2d without bias",
    "conv_transpose3d",
    "conv_transpose2d folded",
}
# Ids are made from the inputs in these: infinity is no id.
IDS = {name for name in OPERATIONS if "by ids" in name or name == "index_select"}


@pytest.mark.parametrize(
    "dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.slow)], ids=["float64", "float32"]
)
@pytest.mark.parametrize("name", some(OPERATIONS, 8))
def test_an_operation_equals_the_reference(name: str, dtype: torch.dtype) -> None:
    """Batch sizes 5 and 4 are a length and a width of the models."""
    for size in (6, 1, 5, 4):
        model, batch = OPERATIONS[name].make(dtype, size, seed=size)
        check_equal(model, batch, dtype, EngineSettings())


@pytest.mark.parametrize("name", some(OPERATIONS, 15))
def test_an_operation_has_the_closed_form_it_should_have(name: str) -> None:
    model, batch = OPERATIONS[name].make(torch.float64, 7)
    uses = Engine(model, loss).checked_pass(batch).uses
    assert any(isinstance(use.kernel, FallbackKernel) for use in uses) == (name in FALLBACK)


@pytest.mark.parametrize(
    ("name", "closed"),
    [
        ("first rows of a table", True),
        ("position table of distinct ids", True),
        ("position table of ids that repeat", False),
        ("position table with padding", False),
        ("relative positions by a buffer of ids", False),
    ],
)
def test_rows_of_a_table_that_come_once_need_no_gradient_an_example(name: str, closed: bool) -> None:
    """A choice of entries keeps norms; where one comes twice, its two gradients are added first."""
    model, batch = OPERATIONS[name].make(torch.float64, 7)
    uses = Engine(model, loss).checked_pass(batch).uses
    (made,) = [p for use in uses if use.name == "add" for p in use.parameters]
    assert made.isometric == closed


@pytest.mark.parametrize("name", some(sorted(OPERATIONS.keys() - IDS), 10))
def test_an_example_that_is_not_finite_leaves_nothing_behind(name: str) -> None:
    model, (x, y) = OPERATIONS[name].make(torch.float64, 6)
    engine = Engine(model, loss)
    keep = torch.tensor([0, 1, 3, 4, 5])
    expected = engine.clipped_sum((x[keep], y[keep]), 0.1).gradients
    x[2] = float("nan")
    found = engine.clipped_sum((x, y), 0.1)
    assert found.diagnostics.nonfinite == 1
    for parameter, gradient in expected.items():
        torch.testing.assert_close(found.gradients[parameter], gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", some(OPERATIONS, 10))
def test_one_example_never_exceeds_the_clip_norm_as_stored_in_float32(name: str) -> None:
    model, batch = OPERATIONS[name].make(torch.float32, 6)
    engine = Engine(model, loss)
    limit = 0.5 * float(engine.per_example_norms(batch).max())
    for row in range(6):
        alone = engine.clipped_sum(tuple(rows[row : row + 1] for rows in batch), limit)
        length = torch.cat([g.double().flatten() for g in alone.gradients.values()]).norm()
        assert float(length) <= limit


OVERLOADS = overloads.overloads()


def called(names: list[str], tries: int) -> list[dict[str, Any]]:
    """What random calls of overloads of torch's came to."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(Path(overloads.__file__)),
        "--tries",
        str(tries),
        "--seconds",
        "60",
    ]
    done = subprocess.run([*command, *names], check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_labels(found: list[dict[str, Any]]) -> None:
    assert [one for one in found if one["broken"]] == []
    # Of many no random arguments make sense; the labels of as many were held against something.
    assert sum(one["accepted"] > 0 for one in found) > 0.4 * len(found)


def test_labels_hold_where_operations_are_called_at_random() -> None:
    check_labels(called(OVERLOADS[::480], 6))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_labels_hold_of_every_overload(part: int) -> None:
    check_labels(called(OVERLOADS[part::8], 150))


def test_a_label_that_does_not_hold_is_found() -> None:
    """The power of the tests above."""
    x = torch.arange(8.0).reshape(4, 2)
    moved = x.clone()
    moved[1] += 1
    own, other = [(x, RowLayout(0))], [(moved, RowLayout(0))]
    assert overloads.broken(own, other, changed=1) == ""
    assert "example 1" in overloads.broken(own, other, changed=2)
    assert overloads.broken(own, [(x[overloads.ORDER], RowLayout(0))], changed=None) == ""
    assert "example" in overloads.broken(own, own, changed=None)
    assert "public" in overloads.broken([(x, Public.ANY)], [(moved, Public.ANY)], changed=1)
    assert overloads.broken([(x, Mixed("it is"))], [(moved, Mixed("it is"))], changed=1) == ""
    assert "a number" in overloads.broken([(1, None)], [(2, None)], changed=1)


@pytest.mark.parametrize("affine", [False, True])
def test_an_instance_norm_by_kept_statistics_is_taken_as_what_it_is(affine: bool) -> None:
    """Torch lays its statistics along all examples; it does by them what batch norm does."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 1), nn.InstanceNorm2d(3, affine=affine, track_running_stats=True))
    model(torch.randn(9, 1, 4, 4))
    model.eval()

    def loss(m: Any, x: Tensor) -> Tensor:
        return m(x).square().flatten(1).sum(1)

    batch = torch.randn(5, 1, 4, 4)
    found, slow = (kind(model, loss).clipped_sum(batch, 1.0).gradients for kind in (Engine, Reference))
    torch.testing.assert_close(found, slow)
