"""One thread for NumPy's products: as long as anybody is inside, and no longer."""

import threading

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from decrescendo.accounting import Ledger, Pld
from decrescendo.base.one_thread import one_blas_thread


def threads() -> set[int]:
    """Of NumPy's linear algebra."""
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_inside_there_is_one_and_afterwards_there_are_as_many_as_before() -> None:
    with threadpool_limits(2, user_api="blas"):
        before = threads()
        with one_blas_thread():
            assert threads() == {1}
            with one_blas_thread():
                assert threads() == {1}
            assert threads() == {1}
        assert threads() == before


def test_python_threads_leave_as_many_as_there_were() -> None:
    """Whoever of them comes and leaves first."""
    with threadpool_limits(2, user_api="blas"):
        before = threads()

    def inside() -> None:
        for _ in range(50):
            with one_blas_thread():
                pass

    several = [threading.Thread(target=inside) for _ in range(4)]
    with threadpool_limits(2, user_api="blas"):
        for one in several:
            one.start()
        for one in several:
            one.join(120)
        assert threads() == before


def test_an_error_gives_them_back() -> None:
    with threadpool_limits(2, user_api="blas"):
        before = threads()
        try:
            with one_blas_thread():
                raise ValueError
        except ValueError:
            pass
        assert threads() == before


def test_the_accountant_runs_so() -> None:
    """Its digits do not depend on how many threads there are."""
    run = Ledger.of(np.linspace(1.4, 1.1, 12), sample_rate=np.linspace(0.01, 0.02, 12))
    found = []
    for number in (1, 2):
        with threadpool_limits(number, user_api="blas"):
            found.append(Pld().bracket(run, 1e-6))
    assert found[0] == found[1]
