"""A model of which each rank holds a part is trained as if each held all of it, in a part of the memory."""

from typing import Any

import numpy as np
import pytest
from often import some
from ranks import run_ranks

from .test_equality import alone, check


@pytest.mark.parametrize(
    ("size", "kind", "shard"),
    some(
        [
            pytest.param(1, "dynamic", "all", marks=pytest.mark.slow),
            (2, "adaptive", "all"),
            (2, "quantile", "all"),
            pytest.param(4, "dynamic", "all", marks=pytest.mark.slow),
            (4, "dynamic", "copies"),
        ],
        1,
    ),
)
def test_a_cnn_in_parts_is_the_cnn(size: int, kind: str, shard: str) -> None:
    """Also where there are more ranks than rows of a weight; "copies" are two of each part."""
    check(size, "CNN", kind, shard=shard)


def test_correlated_noise_in_parts() -> None:
    """Each rank keeps the noise of its parts."""
    check(2, "CNN", "banded", shard="all")


@pytest.mark.slow
def test_in_float32_too() -> None:
    check(2, "CNN", "dynamic", wide=False, shard="all")


@pytest.mark.slow
def test_an_lstm_in_parts() -> None:
    check(2, "LSTM of the tutorial", "dynamic", shard="all")


@pytest.mark.slow
def test_two_modules_that_share_a_parameter_are_given_to_one_call() -> None:
    check(2, "tied", "dynamic", shard="all")


@pytest.mark.slow
def test_a_method_that_gathers_as_forward_does_may_be_called() -> None:
    """`register_fsdp_forward_method` puts torch's gathering, which needs ranks in step, around it: a
    loss that called it got an AttributeError of torch's."""
    (alone,), _ = run_ranks("of_a_method", 0)
    assert not alone.error, alone
    outcomes, _ = run_ranks("of_a_method", 2)
    for outcome in outcomes:
        assert not outcome.error, outcome
        for weight, value in alone.value["weights"].items():
            np.testing.assert_allclose(outcome.value["weights"][weight], value, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_one_world_has_two_trainings_at_once() -> None:
    """One in parts, one whole."""
    (alone,), _ = run_ranks("two_at_once", 0)
    outcomes, _ = run_ranks("two_at_once", 2, shard="all")
    for outcome in outcomes:
        assert not outcome.error, outcome
        for found, expected in zip(outcome.value, alone.value, strict=True):
            for weight, value in expected["weights"].items():
                np.testing.assert_allclose(found["weights"][weight], value, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_empty_shares_and_empty_batches() -> None:
    """Ranks without a row gather and sum for those that have one."""
    check(4, "CNN", "constant", batch=1.0, shard="all")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [pytest.param({"microbatch": 1}, marks=pytest.mark.slow), {"name": "ragged"}], ids=str
)
def test_ranks_pass_as_often_as_they_need(options: dict[str, Any]) -> None:
    """Shares of different sizes are cut into different numbers of micro-batches."""
    expected = alone(options.get("name", "CNN"), "dynamic", True)["weights"]
    outcomes, _ = run_ranks("trained", 4, shard="all", batch=8.0, **options)
    for outcome in outcomes:
        assert not outcome.error, outcome
        for weight, value in expected.items():
            np.testing.assert_allclose(outcome.value["weights"][weight], value, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_copies_have_the_same_bits() -> None:
    outcomes, _ = run_ranks("trained", 4, shard="copies", wide=False)
    for outcome in outcomes:
        assert not outcome.error, outcome
        for weight, value in outcomes[0].value["weights"].items():
            np.testing.assert_array_equal(outcome.value["weights"][weight], value)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize(
    ("name", "kind", "shard"),
    [
        ("LoRA on GPT-2 (peft)", "constant", "base"),
        ("LoRA on GPT-2 (peft)", "adaptive", "base"),
        ("GPT-2 small", "dynamic", "all"),
        ("LSTM of the tutorial", "constant", "all"),
    ],
)
def test_every_kind_of_model(name: str, kind: str, shard: str, wide: bool, size: int) -> None:
    """GPT-2 has an embedding that is its output layer, too."""
    check(size, name, kind, wide=wide, shard=shard, within=600)


@pytest.mark.parametrize("what", some([pytest.param("base", marks=pytest.mark.slow), "all"], 0))
def test_memory_falls_as_the_number_of_ranks_grows(what: str) -> None:
    """Of 32 equal blocks two are whole at once; with "all" one sum is, and all sums are in parts."""
    peaks = {}
    for size in (1, 2, 4):
        outcomes, _ = run_ranks("remembered", size, what=what)
        assert not any(outcome.error for outcome in outcomes), outcomes
        peaks[size] = max(outcome.value for outcome in outcomes)
    assert peaks[1] > 32 * 4 * 16 * 17
    for size in (2, 4):
        assert peaks[size] * size < 1.25 * peaks[1], peaks
