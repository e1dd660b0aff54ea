"""Runs NumPy's linear algebra on one thread, for code with many small products."""

import functools
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any


@functools.cache
def _libraries() -> Any:
    """A controller of the linear algebra libraries that this process has loaded."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def one_blas_thread() -> Generator[None]:
    """Run NumPy's and SciPy's linear algebra on one thread inside, and on as many as before afterwards.

    Several threads wait for each other by spinning: on a machine with other work they made small products several times
    slower, and on one without none faster. Of several Python threads inside at once only the first sets this.

    >>> with one_blas_thread():
    ...     [library["num_threads"] for library in _libraries().info() if library["user_api"] == "blas"][:1]
    [1]
    """
    with _libraries().limit(limits=1, user_api="blas"):
        yield
