"""A training of several processes is one: it has the noise of one process, and its run says what any rank supposes."""

import math
import re
from pathlib import Path

import pytest
from often import some
from ranks import run_ranks

from decrescendo.training.loop.between import ROWS_CHANGED, WRITTEN
from decrescendo.training.processes.world import RANKS_ALIKE
from decrescendo.training.run import Run

# Coordinates that one life of `rank_life.noises` sees: four steps of 30,000.
COUNT = 4 * 30_000
# Of a mean of COUNT squares of standard normal numbers. 3 % of noise are 6 % of variance: 14 standard errors.
ERROR = math.sqrt(2 / COUNT)


def suits(variance: float) -> bool:
    return abs(variance - 1) < 4.5 * ERROR


@pytest.mark.parametrize(("size", "shard"), some([(1, ""), (2, ""), (4, ""), (2, "all"), (4, "all"), (4, "copies")], 2))
def test_the_noise_of_a_sum_has_variance_z_c_squared(size: int, shard: str) -> None:
    """Less than one row is expected in a batch: nearly all shares are empty. Each rank adds noise to its parts."""
    outcomes, _ = run_ranks("noises", size, seed=size, shard=shard)
    steps = outcomes[0].value
    assert [outcome.value for outcome in outcomes] == [steps] * size, outcomes
    assert suits(sum(steps) / len(steps)), steps


@pytest.mark.parametrize(("scale", "shard"), some([(0.97, ""), (1.03, ""), (1.03, "all")], 1))
def test_noise_that_is_three_percent_off_would_be_seen(scale: float, shard: str) -> None:
    outcomes, _ = run_ranks("noises", 2, seed=5, scale=scale, shard=shard)
    steps = outcomes[0].value
    assert not suits(sum(steps) / len(steps)), steps
    assert suits(sum(steps) / len(steps) / scale**2), steps


@pytest.mark.parametrize(
    ("options", "found"),
    some(
        [
            ({"what": "rows"}, (ROWS_CHANGED,)),
            ({"what": "nothing"}, ()),
            ({"what": "nothing", "shard": "all"}, ()),
            ({"what": "column"}, ()),
            ({"what": "weights", "shard": "all"}, (WRITTEN,)),
            ({"what": "weights"}, (WRITTEN,)),
            ({"what": "nothing", "items": True}, (RANKS_ALIKE,)),
            ({"what": "rank"}, ()),
        ],
        3,
    ),
    ids=str,
)
def test_what_one_rank_assumes_the_runs_of_all_say(options: dict[str, object], found: tuple[str, ...]) -> None:
    """Rank 1's share was changed between steps, or a model's part: rank 0, whose run is kept, says so. That a loss goes
    by its rank, or reads another column there, is not seen (docs/explanation/pitfalls.md)."""
    outcomes, _ = run_ranks("assumptions_of", 2, who=1, **options)
    assert [(outcome.error, outcome.message) for outcome in outcomes] == [("", "")] * 2
    assert [outcome.value for outcome in outcomes] == [found] * 2


PAGE = Path(__file__).parents[2] / "docs/how-to/distribute.md"


@pytest.mark.slow
def test_the_pages_script_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, *_ = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    exec(compile(script, "train.py", "exec"), {"__name__": "__main__"})
    assert Run.load(tmp_path / "run").steps == 100
