"""Programs that got past the proof by what Python keeps, and good ones that one example had refused."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decrescendo.clipping import Engine
from decrescendo.clipping.proof.remembered import following, numbers_of
from decrescendo.errors import UnsupportedModel

ROWS = list[int]()


class Counts(nn.Module):
    """Keeps how many examples it has seen, and is another function from the ``until``-th on."""

    def __init__(self, keep: Callable[["Counts", int], int], until: int = 121) -> None:
        super().__init__()
        self.layer, self.keep, self.until = nn.Linear(6, 1), keep, until
        self.seen, self.calls, self.best, self.rate = 0, 0, math.inf, 1.0
        self.inner: dict[str, list[int]] = {"rows": []}

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).squeeze(1) * (1.0 if self.keep(self, len(x)) < self.until else -1.0)


def _counted(m: Counts, n: int) -> int:
    m.seen += n
    return m.seen


def _round(m: Counts, n: int) -> int:
    m.seen = (m.seen + n) % 1000
    return m.seen


def _listed(m: Counts, n: int) -> int:
    m.inner["rows"].extend([0] * n)
    return len(m.inner["rows"])


def _global(m: Counts, n: int) -> int:
    ROWS.extend([0] * n)
    return len(ROWS)


def call(model: Any, x: Tensor) -> Tensor:
    return model(x)


@pytest.mark.parametrize("keep", [_counted, _round, _listed, _global])
def test_a_program_that_counts_examples_and_changes_by_it_is_refused(
    keep: Callable[[Counts, int], int],
) -> None:
    """One example less in the first batch turned the sign of all examples of a later one: 7 C."""
    torch.manual_seed(0)
    ROWS.clear()
    engine = Engine(Counts(keep), call)
    engine.clipped_sum(torch.randn(6, 6), 0.1)
    assert "the number of examples" in engine.assumptions[0]
    batches = torch.randn(40, 6, 6)
    with pytest.raises(UnsupportedModel, match="how many examples earlier ones had"):
        [engine.clipped_sum(batch, 0.1) for batch in batches]


def test_who_counts_examples_for_nothing_is_taken_and_it_is_said() -> None:
    engine = Engine(Counts(_counted, until=10**9), call)
    for rows in (1, 2, 5, 7):
        engine.clipped_sum(torch.randn(rows, 6), 0.1)
    assert engine.assumptions == ("the number of examples, kept in Counts.seen, steers no later pass",)


def _called(m: Counts, n: int) -> int:
    del n
    m.calls, m.rate, m.best = m.calls + 1, m.rate * 0.99, min(m.best, math.inf)
    return m.calls


def test_who_counts_passes_for_nothing_is_proven() -> None:
    """It does the same whatever the batches were; decays and best values so far that are none do not matter."""
    engine = Engine(Counts(_called, until=10**9), call)
    for _ in range(20):
        engine.clipped_sum(torch.randn(6, 6), 0.1)
    assert engine.assumptions == ()


def test_what_a_program_reaches_is_looked_at_without_its_code() -> None:
    class Trap(dict[str, int]):
        def items(self) -> Any:
            raise AssertionError

        def __getattribute__(self, name: str) -> Any:
            if name == "__dict__":
                raise AssertionError
            return super().__getattribute__(name)

    kept = {"trap": Trap(n=3), "long": [0.0] * 5000, "loop": []}
    kept["loop"].append(kept)  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
    found = numbers_of(nn.Linear(1, 1), lambda m, x: m(x) * len(kept))
    assert found["loss.kept.trap.n"] == 3
    assert found["len(loss.kept.long)"] == 5000
    assert not any(name.startswith("loss.kept.long.") for name in found)


def test_numbers_that_are_as_they_were_follow_nothing() -> None:
    kept = {"best": math.inf, "none": 0.0, "what": math.nan, "five": 5.0}
    assert following((2, kept, kept), (3, kept, kept)) == []
    assert following((2, {}, {"n": 2.0}), (3, {"n": 2.0}, {"n": 3.0})) == ["n"]


@pytest.mark.parametrize(
    "layer",
    [nn.Conv1d(2, 3, 3), nn.Linear(9, 4), nn.ConvTranspose1d(2, 3, 3)],
    ids=lambda layer: type(layer).__name__,
)
def test_one_example_that_overflows_does_not_have_the_others_refused(layer: nn.Module) -> None:
    """It counts for nothing; compared with autograd's, infinity times nothing was the gradient of the others."""
    torch.manual_seed(0)
    batch = torch.randn(3, 2, 9)
    engine = Engine(layer, lambda m, x: m(x).sum((1, 2)))
    expected = engine.clipped_sum(batch[1:], 1.0).gradients
    batch[0] *= 1e38
    found = Engine(layer, lambda m, x: m(x).sum((1, 2))).clipped_sum(batch, 1.0)
    assert found.diagnostics.nonfinite == 1
    for name, gradient in expected.items():
        torch.testing.assert_close(found.gradients[name], gradient)
