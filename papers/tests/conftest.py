"""What every test shares: one torch thread, so that parallel test processes do not fight over the cores (unless
``OMP_NUM_THREADS`` says otherwise)."""

import os
import random

import numpy as np
import torch

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))


def pytest_runtest_setup() -> None:
    """Every test starts from the same random state: its verdict is the same alone, in any order and in any process."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
