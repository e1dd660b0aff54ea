"""A hundred kills of one training in two processes, at random moments: nothing is lost, repeated or hidden.

The same with ``torchrun --max-restarts``, and all that a life loads: ``python -m benchmarks.kill --ranks 2``.
"""

import functools
import random
from pathlib import Path

import pytest
from ranks import Life, run_ranks

from decrescendo.accounting.budget import Budget
from decrescendo.training.store import Store

KILLS, STEPS = 100, 600


def prepared(folder: Path) -> str:
    folder.mkdir()
    Store.create(folder / "store.db", Budget(100.0, 1e-3), dataset="digits", rows=1438).close()
    return str(folder)


def seen(folder: Path) -> int:
    """The last step that any rank had the result of."""
    return max((int(line) for path in folder.glob("seen-*") for line in path.read_text().split()), default=0)


def beyond(folder: Path, step: int) -> bool:
    return seen(folder) > step


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "bands"), [(2, 1), (2, 4), (0, 4)])
def test_a_hundred_kills_of_one_rank_or_of_all(tmp_path: Path, ranks: int, bands: int) -> None:
    """Of two, or of one process without a world. With several bands each checkpoint has the noise of earlier steps."""
    options = {"steps": STEPS, "bands": bands}
    calm, _ = run_ranks("digits_life", ranks, folder=prepared(tmp_path / "calm"), within=600, **options)
    assert not calm[0].error, calm
    folder, dice, listed, kills, hit = tmp_path / "rough", random.Random(0), 0, 0, set()
    place = prepared(folder)
    while True:
        life = Life("digits_life", ranks, folder=place, **options)
        if kills == KILLS or not life.waits_for(functools.partial(beyond, folder, listed + dice.randint(0, 4))):
            outcomes, _ = life.ends(within=600)
            break
        life.pause(dice.uniform(0.0, 0.03))
        life.kill(dice.choice([[0], [1], [0, 1]] if ranks else [[0]]))
        outcomes, seconds = life.ends(within=60)
        assert seconds < 20, "the others ended too"
        assert all(outcome.gone or outcome.error == "RankLost" for outcome in outcomes), outcomes
        kills += 1
        store = Store(folder / "store.db")
        entries = store.entries()
        store.close()
        found = entries[0].released.steps
        assert found >= seen(folder), "the ledger is behind what was seen"
        assert found >= listed
        assert len(entries) == 1
        listed = found
        hit.add(found)
    assert kills == KILLS, f"the training ended after {kills} kills"
    assert len(hit) > KILLS / 2
    for outcome, expected in zip(outcomes, calm, strict=True):
        assert not outcome.error, outcome
        assert outcome.value == expected.value
