"""What was judged is what is executed: nobody can write to a schedule, a ledger or a plan afterwards."""

import numpy as np
import pytest

from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.release import Release
from decrescendo.errors import InvalidType
from decrescendo.plans import PoissonSampling, RandomAllocation
from decrescendo.plans.schedule import Schedule

SCHEDULE = Schedule([2.0, 1.0], [1.0, 0.5])
LEDGER = Ledger.of([2.0, 1.0], 0.1)
COLUMNS = {
    "schedule noise": SCHEDULE.noise_multiplier,
    "schedule clip": SCHEDULE.clip_norm,
    "ledger noise": LEDGER.noise_multiplier,
    "ledger rate": LEDGER.sample_rate,
    "ledger count": LEDGER.count,
    "first": LEDGER.first(1).noise_multiplier,
    "joined": (LEDGER + LEDGER).noise_multiplier,
    "distinct": LEDGER.distinct().noise_multiplier,
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_cannot_be_written_to_nor_made_writable(name: str) -> None:
    column = COLUMNS[name]
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 9.0
    with pytest.raises(ValueError, match="WRITEABLE"):
        column.setflags(write=True)
    with pytest.raises(ValueError, match="read-only"):
        column.view()[0] = 9.0


def test_a_schedule_does_not_follow_the_arrays_it_was_made_from() -> None:
    noise, clip = np.array([2.0, 1.0]), np.array([1.0, 0.5])
    schedule, ledger = Schedule(noise, clip), Ledger.of(noise, 0.1)
    noise[:], clip[:] = 0.1, 9.0
    assert schedule == SCHEDULE
    assert ledger == LEDGER


def test_a_change_of_noise_sees_columns_that_it_cannot_write_to() -> None:
    def halve(noise: np.ndarray) -> np.ndarray:
        noise *= 0.5
        return noise

    with pytest.raises(ValueError, match="read-only"):
        LEDGER.with_noise(halve)


def test_counts_are_exact_up_to_the_largest_ledger() -> None:
    half = Ledger([Release(0.1, 1.0, 2**52)])
    assert (half + half).steps == 2**53
    assert (half + half).distinct().count.tolist() == [2**53]


@pytest.mark.parametrize("kind", [PoissonSampling, RandomAllocation])
def test_a_sampling_has_no_subclasses(kind: type) -> None:
    """Its numbers are judged, and a class of its own could draw otherwise."""
    with pytest.raises(InvalidType, match="must be used as it is"):
        type("All", (kind,), {})
