"""What cannot be imported here is not collected: the Flower adapter's examples need the extra ``federated``. And no
generated test hangs on the clock or tries more than a few times. And a test process computes in one thread, as do the
processes that it starts, unless ``OMP_NUM_THREADS`` says otherwise: threads of several test processes wait for each
other, and burn what they wait."""

import gc
import os
from importlib.util import find_spec

import pytest
from hypothesis import settings

# Read by torch and by NumPy's OpenBLAS when they are loaded, in the test processes that begin after this one (`-n 2`).
threads = os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", threads)

# Each run draws others; `--hypothesis-profile thorough` is for `make test-slow`.
settings.register_profile("thorough", deadline=None)
settings.register_profile("decrescendo", deadline=None, max_examples=6)
settings.load_profile("decrescendo")

collect_ignore_glob = [] if find_spec("flwr") else ["src/decrescendo/federated/flower/*"]


def pytest_configure(config: pytest.Config) -> None:
    """Types are checked in every call of `make test-slow`."""
    if config.getoption("jaxtyping_packages"):
        import runtime_types

        runtime_types.leave_inner_functions()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Whether passes are replayed by default, and the run says so, a clock decides: here in the tests of that alone."""
    from decrescendo.clipping import capture_choice  # torch is loaded by the tests that need it

    capture_choice._FIRST = 2 if "capture" in item.nodeid else 10**9


def pytest_collection_finish() -> None:
    """Ten thousand tests and what they imported stay: the garbage collector need not look at them again and again."""
    gc.collect()
    gc.freeze()
