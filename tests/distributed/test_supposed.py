"""What one rank's loop does, the runs of all ranks say."""

import pytest
from ranks import run_ranks

from decrescendo.training.between import ROWS_CHANGED, WRITTEN
from decrescendo.training.world import RANKS_ALIKE


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"what": "nothing"}, ()),
        ({"what": "nothing", "shard": "all"}, ()),
        ({"what": "rows"}, (ROWS_CHANGED,)),
        ({"what": "weights"}, (WRITTEN,)),
        ({"what": "weights", "shard": "all"}, (WRITTEN,)),
        ({"what": "nothing", "items": True}, (RANKS_ALIKE,)),
    ],
    ids=str,
)
def test_what_one_rank_supposes_the_runs_of_all_say(
    options: dict[str, object], found: tuple[str, ...]
) -> None:
    """Rank 1's share was changed between steps, or a model's part: rank 0, whose run is kept, said that it was proven.
    So it did where ranks had compared eight of their rows."""
    outcomes, _ = run_ranks("supposed", 2, who=1, **options)
    assert [(outcome.error, outcome.message) for outcome in outcomes] == [("", "")] * 2
    assert [outcome.value for outcome in outcomes] == [found] * 2
