"""The models of `one_example_models` as parameters of tests: those of libraries are slow, and skipped without them."""

import importlib.util
from collections.abc import Callable

import pytest
from one_example_models import INSTALLED, MODELS, Case


def of_library(name: str) -> Callable[..., Case]:
    """A model of a library as a user has it."""

    def make(*size: int) -> Case:
        library, found = INSTALLED[name]
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
        return found(*size)

    return make


_LIBRARIES = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # on import
cases = pytest.mark.parametrize(
    "make",
    [
        *(pytest.param(make, id=name) for name, make in MODELS.items()),
        *(pytest.param(of_library(name), id=name, marks=_LIBRARIES) for name in INSTALLED),
    ],
)
