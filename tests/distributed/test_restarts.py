"""A training in two processes that die: started again, it ends with the bits of one that was left alone."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from often import some
from ranks import Life, run_ranks


@cache
def undisturbed(tmp: Path, size: int) -> dict[str, Any]:
    outcomes, _ = run_ranks("trained", size, folder=str(tmp / f"undisturbed-{size}"))
    assert not outcomes[0].error, outcomes
    return outcomes[0].value


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


def released(folder: Path) -> int:
    return len((folder / "releases.jsonl").read_text().splitlines()) - 1


def same_bits(one: dict[str, Any], other: dict[str, Any]) -> bool:
    same = all(np.array_equal(one["weights"][name], value) for name, value in other["weights"].items())
    return same and one["ledger"] == other["ledger"] and one["examples"] == other["examples"]


@pytest.mark.parametrize("rank", some([0, 1], 1))
def test_a_rank_is_killed_and_all_start_again(rank: int, shared: Path, tmp_path: Path) -> None:
    """After step 3; the checkpoint is of step 2, so one step is done again."""
    outcomes, _ = run_ranks("trained", 2, folder=str(tmp_path), kill=(rank, 3, False))
    assert outcomes[rank].gone
    assert outcomes[1 - rank].error == "RankLost", outcomes
    assert released(tmp_path) >= 3
    again, _ = run_ranks("trained", 2, folder=str(tmp_path))
    for outcome in again:
        assert not outcome.error, outcome
        assert outcome.value["resumed"] == (2,)
        assert same_bits(outcome.value, undisturbed(shared, 2))


@pytest.mark.parametrize("shard", some(["", "all"], 1))
def test_earlier_noise_is_kept_and_gone_on_with(shard: str, tmp_path: Path) -> None:
    """To the same bits with as many ranks; rank 0 alone has it, or each rank that of its parts."""
    options = {"kind": "banded", "shard": shard}
    calm, _ = run_ranks("trained", 2, folder=str(tmp_path / "calm"), **options)
    outcomes, _ = run_ranks("trained", 2, folder=str(tmp_path / "again"), kill=(1, 3, False), **options)
    assert outcomes[0].error in ("RankLost", "RuntimeError")
    outcomes, _ = run_ranks("trained", 2, folder=str(tmp_path / "again"), **options)
    for outcome in outcomes:
        assert not outcome.error, outcome
        assert outcome.value["resumed"] == (2,)
        assert same_bits(outcome.value, calm[0].value)


@pytest.mark.slow
def test_parts_are_kept_and_gone_on_with(tmp_path: Path) -> None:
    """With as many ranks to the same bits; from a checkpoint with nothing after it by another number, and by one."""
    calm, _ = run_ranks("trained", 2, folder=str(tmp_path / "calm"), shard="all")
    outcomes, _ = run_ranks("trained", 2, folder=str(tmp_path / "again"), shard="all", kill=(1, 3, False))
    assert outcomes[0].error in ("RankLost", "RuntimeError"), "or torch's, where it was in an evaluation"
    outcomes, _ = run_ranks("trained", 2, folder=str(tmp_path / "again"), shard="all")
    for outcome in outcomes:
        assert not outcome.error, outcome
        assert outcome.value["resumed"] == (2,)
        assert same_bits(outcome.value, calm[0].value)
    run_ranks("trained", 2, folder=str(tmp_path / "other"), shard="all", kill=(1, 2, True))
    (outcome,), _ = run_ranks("trained", 1, folder=str(tmp_path / "other"))
    assert not outcome.error, outcome
    for name, value in calm[0].value["weights"].items():
        np.testing.assert_allclose(outcome.value["weights"][name], value, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_another_number_of_ranks_goes_on_from_a_checkpoint(shared: Path, tmp_path: Path) -> None:
    """Killed in the pass of step 3: all that was released is in the checkpoint."""
    run_ranks("trained", 2, folder=str(tmp_path), kill=(1, 2, True))
    assert released(tmp_path) == 2
    (outcome,), _ = run_ranks("trained", 1, folder=str(tmp_path))
    assert not outcome.error, outcome
    expected = undisturbed(shared, 1)
    assert outcome.value["ledger"] == expected["ledger"]
    for name, value in expected["weights"].items():
        np.testing.assert_allclose(outcome.value["weights"][name], value, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_steps_done_again_by_another_number_of_ranks_are_refused(tmp_path: Path) -> None:
    """Their sums are rounded otherwise: the same noise would meet another sum."""
    run_ranks("trained", 2, folder=str(tmp_path), kill=(1, 3, False))
    before = (tmp_path / "releases.jsonl").read_bytes()
    (outcome,), _ = run_ranks("trained", 1, folder=str(tmp_path))
    assert outcome.error == "PlanViolation", outcome
    assert "must be taken by as many processes as before, got 1 for 2" in outcome.message
    assert (tmp_path / "releases.jsonl").read_bytes() == before


@pytest.mark.slow
def test_secure_streams_go_on_where_they_were(tmp_path: Path) -> None:
    """Nobody can say what the noise must be; that steps done again are the releases they were is checked by the run."""
    run_ranks("trained", 2, folder=str(tmp_path), kill=(0, 3, False), secure=True)
    first = [json.loads(line) for line in (tmp_path / "releases.jsonl").read_text().splitlines()]
    outcomes, _ = run_ranks("trained", 2, folder=str(tmp_path), secure=True)
    last = [json.loads(line) for line in (tmp_path / "releases.jsonl").read_text().splitlines()]
    assert not outcomes[0].error, outcomes
    assert last[: len(first)] == first
    assert len(last) == 7


@pytest.mark.slow
def test_ranks_that_start_again_do_not_find_addresses_of_the_dead() -> None:
    """``torchrun`` keeps its store. In the second life rank 1 comes first, and finds what rank 0 wrote in the first."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    found = []
    for late in (0.0, 1.0):
        outcomes, _ = Life("joined", 2, port=store.port, late=late).ends(60)
        assert not any(outcome.error for outcome in outcomes), outcomes
        assert outcomes[0].value == outcomes[1].value
        found.append(outcomes[0].value)
    assert found[0] != found[1]
