"""Facts: `check` says whether the rows of a program's result are independent, knowing nothing of clipping."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decrescendo.row_independence import Independent, Refusal, check

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
LAYER = nn.Linear(4, 3)
INDEPENDENT: dict[str, Any] = {
    "a layer": lambda x: LAYER(x).square().sum(1),
    "a normalisation of each row": lambda x: nn.functional.layer_norm(x, (4,)).sum(1),
    "a shuffle within rows": lambda x: x.flip(1).cumsum(1)[:, -1],
    "a constant": lambda x: x.new_ones(len(x)),
    "dropout": lambda x: nn.functional.dropout(x, 0.5).sum(1),
}
DEPENDENT: dict[str, Any] = {
    "a mean of the batch": (lambda x: (x - x.mean(0)).sum(1), "mean"),
    "a division by the number of rows": (lambda x: x.sum(1) / len(x), ""),
    "the row before": (lambda x: x.roll(1, 0).sum(1), "roll"),
    "a place in the batch": (lambda x: x.sum(1) * torch.arange(len(x)), "mul"),
    "a sum that is shared": (lambda x: x.sum().expand(len(x)), "sum"),
    "similarities of rows, of which the diagonal is taken": (
        lambda x: (x @ x.T).diagonal_scatter(x[:, 0]).sum(1),
        "mm",
    ),
    "a number of the data in Python": (lambda x: x.sum(1) * (2.0 if float(x[0, 0]) > 0 else 1.0), ""),
}


@pytest.mark.parametrize("name", INDEPENDENT)
def test_independent_rows_are_said_to_be(name: str) -> None:
    assert check(INDEPENDENT[name], X) == Independent(6)


@pytest.mark.parametrize("name", DEPENDENT)
def test_a_dependence_is_a_refusal_with_a_remedy(name: str) -> None:
    program, operation = DEPENDENT[name]
    found = check(program, X)
    assert isinstance(found, Refusal)
    assert found.why
    assert found.remedy
    assert found.operation == operation


def test_a_refusal_names_the_line_that_called_the_operation() -> None:
    def program(x: Tensor) -> Tensor:
        return x.sum(1) - x.max(0).values.sum()

    line = program.__code__.co_firstlineno + 1
    found = check(program, X)
    assert isinstance(found, Refusal)
    assert found.where == f"test_check.py:{line}"


def test_a_truth_value_that_steers_a_row_is_a_refusal() -> None:
    def program(x: Tensor) -> Tensor:
        return x.sum(1) if bool((x > 0).any()) else 2 * x.sum(1)

    assert isinstance(check(program, -X.abs()), Refusal | Independent)
    steering = check(lambda x: x.sum(1) * (3.0 if bool((x[0] > 0.0).any()) else 1.0), X)
    assert isinstance(steering, Refusal)


def test_what_is_no_number_a_row_is_a_refusal() -> None:
    found = check(lambda x: x, X)
    assert isinstance(found, Refusal)
    assert "one number a row" in found.why


@pytest.mark.slow
def test_it_loads_nothing_of_clipping() -> None:
    code = (
        "import sys, decrescendo.row_independence.tracing\n"
        "print([name for name in sys.modules if name.startswith('decrescendo.clipping')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
