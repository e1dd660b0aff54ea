"""What every test shares: one torch thread, so that parallel test processes do not fight over the cores (unless
``OMP_NUM_THREADS`` says otherwise), and types checked in a part of all calls (unless ``DECRESCENDO_CHECK_EVERY_CALL``
is set)."""

import os
import random

import numpy as np
import pytest
import runtime_types
import torch

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))
if not os.environ.get("DECRESCENDO_CHECK_EVERY_CALL"):
    runtime_types.sample()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """The first call of each function in a test is checked, and every test starts from the same random state: its
    verdict is the same alone, in any order and in any process."""
    runtime_types.next_test(str(item.path))
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
