"""Numbers of examples that a program keeps from pass to pass: said, and refused where it becomes another by them."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from decrescendo.base.assumptions import assumed
from decrescendo.clipping import Engine
from decrescendo.errors import UnsupportedModel

ROWS = list[int]()


class Counting(nn.Module):
    """Keeps how many examples it has seen, and is another function from the ``until``-th on."""

    def __init__(self, keep: Callable[["Counting", int], int], until: int = 121) -> None:
        super().__init__()
        self.layer, self.keep, self.until = nn.Linear(6, 1), keep, until
        self.seen, self.calls, self.best, self.rate = 0, 0, math.inf, 1.0
        self.inner: dict[str, list[int]] = {"rows": []}

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).squeeze(1) * (1.0 if self.keep(self, len(x)) < self.until else -1.0)


def _counted(m: Counting, n: int) -> int:
    m.seen += n
    return m.seen


def _round(m: Counting, n: int) -> int:
    m.seen = (m.seen + n) % 1000
    return m.seen


def _listed(m: Counting, n: int) -> int:
    m.inner["rows"].extend([0] * n)
    return len(m.inner["rows"])


def _global(m: Counting, n: int) -> int:
    ROWS.extend([0] * n)
    return len(ROWS)


def call(model: Any, x: Tensor) -> Tensor:
    return model(x)


@pytest.mark.parametrize("keep", [_counted, _round, _listed, _global])
def test_a_program_that_counts_examples_and_changes_by_it_is_refused(
    keep: Callable[[Counting, int], int],
) -> None:
    """One example less in the first batch turned the sign of all examples of a later one: 7 C."""
    torch.manual_seed(0)
    ROWS.clear()
    engine = Engine(Counting(keep), call)
    engine.clipped_sum(torch.randn(6, 6), 0.1)
    assert "the number of examples" in engine.assumptions[0].sentence
    batches = torch.randn(40, 6, 6)
    with pytest.raises(UnsupportedModel, match="how many examples earlier ones had"):
        [engine.clipped_sum(batch, 0.1) for batch in batches]


def test_who_counts_examples_for_nothing_is_taken_and_it_is_said() -> None:
    engine = Engine(Counting(_counted, until=10**9), call)
    for rows in (1, 2, 5, 7):
        engine.clipped_sum(torch.randn(rows, 6), 0.1)
    assert engine.assumptions == (assumed("stored-count", "Counting.seen"),)


def _called(m: Counting, n: int) -> int:
    del n
    m.calls, m.rate, m.best = m.calls + 1, m.rate * 0.99, min(m.best, math.inf)
    return m.calls


def test_who_counts_passes_for_nothing_is_proven() -> None:
    """It does the same whatever the batches were; decays and best values so far that are none do not matter."""
    engine = Engine(Counting(_called, until=10**9), call)
    for _ in range(20):
        engine.clipped_sum(torch.randn(6, 6), 0.1)
    assert engine.assumptions == ()


KEPT = {"rows": 0}


class Hooked(nn.Sequential):
    """A hook of a module has a memory of its own."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 1), nn.Flatten(0))
        kept = {"rows": 0}

        def turn(module: nn.Module, given: Any, made: Tensor) -> Tensor:
            kept["rows"] += len(made)
            return made * (1.0 if kept["rows"] < 121 else -1.0)

        self[0].register_forward_hook(turn)


def _refused_late(make: Callable[[], nn.Module], loss: Any = call) -> None:
    torch.manual_seed(0)
    KEPT["rows"] = 0
    engine = Engine(make(), loss)
    engine.clipped_sum(torch.randn(6, 6), 0.1)
    assert "the number of examples" in engine.assumptions[0].sentence
    batches = torch.randn(40, 6, 6)
    with pytest.raises(UnsupportedModel, match="how many examples earlier ones had"):
        [engine.clipped_sum(batch, 0.1) for batch in batches]


def test_the_number_of_examples_is_found_where_a_hook_keeps_it() -> None:
    _refused_late(Hooked)


class Turned(torch.autograd.Function):
    """A function of autograd's with a memory of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        KEPT["rows"] += len(x)
        ctx.sign = 1.0 if KEPT["rows"] < 121 else -1.0
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.sign


class Losses:
    """A loss that is an object with a memory."""

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, model: nn.Module, x: Tensor) -> Tensor:
        self.rows += len(x)
        return model(x).squeeze(1) * (1.0 if self.rows < 121 else -1.0)


def test_the_number_of_examples_is_found_where_a_loss_keeps_it() -> None:
    _refused_late(lambda: nn.Linear(6, 1), lambda m, x: Turned.apply(m(x).squeeze(1)))
    _refused_late(lambda: nn.Linear(6, 1), Losses())


INSTALLED = """
SEEN = 0
def loss(model, x):
    global SEEN
    SEEN += len(x)
    return model(x)[:, 0] * (1.0 if SEEN < 121 else -1.0)
"""


def test_code_that_is_installed_or_has_no_folder_is_searched_like_a_script() -> None:
    """A project that was installed with pip, one in a folder of such a name, a script that a profiler runs."""
    for folder in ("/lib/site-packages/project", "my-packages", ""):
        space: dict[str, Any] = {}
        exec(compile(INSTALLED, str(Path(folder, "warm.py")), "exec"), space)
        engine = Engine(nn.Linear(6, 1), space["loss"])
        batches = torch.randn(40, 6, 6)
        with pytest.raises(UnsupportedModel, match="how many examples earlier ones had"):
            [engine.clipped_sum(batch, 0.1) for batch in batches]


def test_a_count_is_found_among_many_numbers() -> None:
    """Of a table with more entries than are looked at one by one, the sum is."""
    for table in (np.zeros(2_000, dtype=np.int64), [0] * 2_000, dict.fromkeys(range(2_000), 0)):

        def count(m: Counting, n: int, table: Any = table) -> int:
            table[7] += n
            return int(table[7])

        engine = Engine(Counting(count), call)
        with pytest.raises(UnsupportedModel, match="how many examples earlier ones had"):
            [engine.clipped_sum(batch, 0.1) for batch in torch.randn(40, 6, 6)]
