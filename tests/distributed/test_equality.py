"""Several processes are one process, computed elsewhere: weights, ledger, noise, masks."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from often import some
from rank_life import ROWS
from ranks import run_ranks

KINDS = ("constant", "dynamic", "adaptive")


@cache
def alone(name: str, kind: str, wide: bool, batch: float = 8.0) -> dict[str, Any]:
    """One process, with no world."""
    (outcome,), _ = run_ranks("trained", 0, name=name, kind=kind, wide=wide, batch=batch)
    assert not outcome.error, outcome
    return outcome.value


def check(
    size: int,
    name: str,
    kind: str,
    *,
    wide: bool = True,
    batch: float = 8.0,
    shard: str = "",
    within: float = 120,
) -> None:
    expected = alone(name, kind, wide, batch)
    outcomes, _ = run_ranks("trained", size, name=name, kind=kind, wide=wide, batch=batch, shard=shard, within=within)
    for outcome in outcomes:
        assert not outcome.error, outcome
        assert outcome.value["ledger"] == expected["ledger"]
        for fact in ("clip_norm", "stopped", "examples"):
            assert outcome.value[fact] == expected[fact]
        assert np.allclose(outcome.value["telemetry"], expected["telemetry"], rtol=1e-6, atol=1e-9)
        for weight, value in expected["weights"].items():
            largest = float(np.abs(value).max())
            error = float(np.abs(outcome.value["weights"][weight] - value).max())
            assert error <= (1e-10 if wide else 1e-5) * max(largest, 1.0), (weight, error)


@pytest.mark.parametrize(("size", "kind"), some([(2, "adaptive"), (4, "dynamic"), (2, "quantile")], 1))
def test_a_cnn_in_several_processes_is_the_cnn_in_one(size: int, kind: str) -> None:
    check(size, "CNN", kind)


@pytest.mark.slow
def test_batches_that_are_cut() -> None:
    """Eight rows are expected, six are the most: rank 0 cuts, before the ranks share."""
    expected = alone("CNN", "cut", True)
    assert max(expected["examples"]) == 6 < max(alone("CNN", "constant", True)["examples"])
    assert min(expected["ledger"][3]) > 0
    check(2, "CNN", "cut")


@pytest.mark.slow
def test_each_row_once_an_epoch() -> None:
    """Rank 0 draws the bins of the epoch; every row is in one share of one of its steps."""
    expected = alone("CNN", "once", True)
    steps = len(expected["examples"])
    assert expected["ledger"][4] == [steps] * steps
    assert sum(expected["examples"]) == ROWS
    check(2, "CNN", "once")


def test_correlated_noise() -> None:
    """Rank 0 keeps the noise of earlier steps, and draws who takes turns."""
    check(2, "CNN", "banded")


@pytest.mark.slow
def test_in_float32_too() -> None:
    check(2, "CNN", "dynamic", wide=False)


@pytest.mark.slow
def test_an_lstm_in_two_processes() -> None:
    check(2, "LSTM of the tutorial", "dynamic")


@pytest.mark.slow
def test_empty_shares_and_empty_batches_are_steps() -> None:
    """One row is expected in a batch: of four shares most are empty, and some batches are."""
    expected = alone("CNN", "constant", True, 1.0)
    assert 0 in expected["examples"]
    assert max(expected["examples"]) < 4
    check(4, "CNN", "constant", batch=1.0)


@pytest.mark.parametrize(
    ("name", "items"),
    some([pytest.param("CNN", False, marks=pytest.mark.slow), ("CNN", True), ("ragged", False)], 0),
)
def test_batches_that_others_make_ahead(name: str, items: bool) -> None:
    """By two processes a rank; of columns, of examples, and of examples in several shapes. Without them, too."""
    expected = alone(name, "dynamic", True)
    for size, workers in ((1, 2), (2, 0), (2, 2)):
        outcomes, _ = run_ranks("trained", size, name=name, items=items, workers=workers, within=300)
        for outcome in outcomes:
            assert not outcome.error, outcome
            assert outcome.value["examples"] == expected["examples"]
            for weight, value in expected["weights"].items():
                np.testing.assert_allclose(outcome.value["weights"][weight], value, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("name", ["CNN", "LSTM of the tutorial", "LoRA on GPT-2 (peft)"])
def test_every_kind_of_model_and_plan(name: str, kind: str, wide: bool, size: int) -> None:
    check(size, name, kind, wide=wide, within=600)


@pytest.mark.slow
def test_another_seed_is_another_training() -> None:
    """The comparison above can fail."""
    (outcome,), _ = run_ranks("trained", 1, seed=4)
    expected = alone("CNN", "dynamic", True)["weights"]
    assert max(float(np.abs(outcome.value["weights"][name] - expected[name]).max()) for name in expected) > 0.01


def test_masks_differ_between_rows_and_between_ranks() -> None:
    (first, second), _ = run_ranks("masks", 2)
    assert not first.error, first
    assert not second.error, second
    for one, other in zip(first.value["masks"], second.value["masks"], strict=True):
        rows = np.concatenate([one, other])
        assert len(np.unique(rows, axis=0)) == len(rows)
        assert 0.4 < rows.mean() < 0.6
    assert not np.array_equal(first.value["masks"][0], first.value["masks"][1])


@pytest.mark.slow
def test_a_step_sends_each_number_twice_and_little_else() -> None:
    """P numbers are summed and P are handed back; the rest hangs on the batch, not on the model."""
    (first, _), _ = run_ranks("talked", 2)
    numbers = first.value["numbers"]
    for step in first.value["steps"]:
        assert step["reduce"] == 4 * numbers
        assert 4 * numbers < step["broadcast"] < 4 * numbers + 4096
        assert step["all_gather"] == 4 * 256
        assert step["calls"] == 4 + 3, "four meetings; rows, sum and mean"
