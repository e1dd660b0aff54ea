"""Copies of plans, schedules and ledgers are as frozen as what they are of."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from decrescendo.accounting import Ledger
from decrescendo.plans import BatchSchedule

from .conftest import ROWS, make_plan


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_are_as_frozen_as_what_they_are_of(duplicate: Callable[[Any], Any]) -> None:
    """A copy's arrays could be written to: under a training, whose noise then was not the plan's."""
    moving = BatchSchedule(ROWS, [4.0, 8.0, 8.0], 20)
    ledger = Ledger.of([2.0, 1.0], 0.5) + Ledger.of([1.0], 0.25)
    plan = make_plan()
    for value, arrays in (
        (plan, ("noise_multiplier", "clip_norm")),
        (plan.schedule, ("noise_multiplier", "clip_norm")),
        (ledger, ("noise_multiplier", "sample_rate", "count", "overflow", "steps_per_epoch")),
        (moving, ("expected_batch_size",)),
    ):
        same = duplicate(value)
        for name in arrays:
            assert np.array_equal(getattr(same, name), getattr(value, name))
            with pytest.raises(ValueError, match="cannot set WRITEABLE"):
                getattr(same, name).setflags(write=True)
    assert duplicate(plan).sha256 == plan.sha256
    assert (duplicate(ledger), duplicate(moving)) == (ledger, moving)
