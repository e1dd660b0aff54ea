"""What one rank may do while the others go on: right all the same, or one clear error on both within ten seconds."""

import functools
import re
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks

# What must be the run of undisturbed ranks, to the bit; and what rounds otherwise.
RIGHT = (
    "a collective of all", "evaluation on one", "global generators", "joined again", "a child process", "no folder",
    "saved on one", "without gradients", "a world forgotten",
)  # fmt: skip
NEARLY = {"more threads": 1e-5, "another default dtype": 1e-5, "bf16 on one": 0.5}
LOST = "RankLost .*every rank must go on, got "
# What the error of rank 0 must say, and that of rank 1.
WRONG = {
    "one label": ("PlanViolation .*same rows of the data",) * 2,
    "two rows changed places": ("PlanViolation .*same rows of the data",) * 2,
    "other checkpoints": ("PlanViolation .*same use of checkpoints, got each 2 .* and each 3",) * 2,
    "other comparisons": ("PlanViolation .*same compare_every, got 3 on rank 0 and 2 on rank 1",) * 2,
    "trainers in another order": ("PlanViolation .*at the same training, got rank 0 training .* rank 1",) * 2,
    "two iterators": ("PlanViolation .*same steps, got rank 0 drawing a batch, rank 1 comparing",) * 2,
    "two draws": ("PlanViolation .*every drawn batch must be given",) * 2,
    "an error in a worker": (LOST + "LookupError on rank 1: .*no such file", "LookupError .*no such file"),
    "a worker that dies": (LOST + "RuntimeError on rank 1: .*worker", "RuntimeError .*worker"),
    "an error without words": (LOST + "Wordless on rank 1", "Wordless"),
    "Ctrl-C": (LOST + "KeyboardInterrupt on rank 1", "KeyboardInterrupt"),
    "Ctrl-C between steps": (LOST + "KeyboardInterrupt on rank 1", "KeyboardInterrupt"),
    "sys.exit": (LOST + "SystemExit on rank 1: 3", "SystemExit 3"),
    "the group destroyed": (LOST + "one that ended", LOST),
    "another thread": ("PlanViolation .*same steps",) * 2,
    "a schedule on one": ("PlanViolation .*same weights",) * 2,
    "a stopped rank": (LOST + "one that ended or was silent too long", LOST),
    "a collective of its own": (
        LOST + "(one that ended or was silent too long|RuntimeError on rank 1)", "(RankLost|RuntimeError) ",
    ),
}  # fmt: skip
# Ranks wait a minute for one that is silent; a machine with other work takes some seconds to end both.
SECONDS = 40.0
QUICK = (
    "joined again", "one label", "other checkpoints", "other comparisons", "trainers in another order", "Ctrl-C",
    "sys.exit", "an error without words",
)  # fmt: skip


@functools.cache
def found(race: str) -> tuple[list[tuple[str, str, Any]], float]:
    """The error of each rank, its words, and facts of its run; and the seconds it took."""
    outcomes, seconds = run_ranks("race_told", 2, race=race, workers=0 if race in QUICK else 1)
    assert not any(outcome.error for outcome in outcomes), outcomes
    return [outcome.value for outcome in outcomes], seconds


def each(*races: str) -> list[Any]:
    return [race if race in QUICK else pytest.param(race, marks=pytest.mark.slow) for race in races]


@pytest.mark.slow
@pytest.mark.parametrize("race", each(*RIGHT, *NEARLY))
def test_what_does_no_harm(race: str) -> None:
    (outcomes, seconds), (undisturbed, _) = found(race), found("nothing")
    assert seconds < SECONDS
    for (error, message, value), (*_, calm) in zip(outcomes, undisturbed, strict=True):
        assert not error, message
        assert value["ledger"] == calm["ledger"]
        for name, weight in calm["weights"].items():
            np.testing.assert_allclose(value["weights"][name], weight, rtol=0, atol=NEARLY.get(race, 0))


@pytest.mark.parametrize("race", each(*WRONG))
def test_what_does_harm_is_one_error_on_both(race: str) -> None:
    outcomes, seconds = found(race)
    for rank, (error, message, _) in enumerate(outcomes):
        assert re.search(WRONG[race][rank], f"{error} {message}", re.DOTALL), (rank, error, message)
    assert seconds < SECONDS
