"""The type checker that the test run puts on every function of the package (see pyproject.toml, jaxtyping hook).

A check costs more than most functions do: with all calls checked the suite took twice as long. So `sample` makes it the
first call of each function in each test, and now and then one after it; functions inside of functions, for which a
check would be built whenever they are defined, are left alone. ``make test-slow`` checks all of them.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

# PEP 484's numeric tower: an int is welcome where a float is asked for.
checker = beartype(conf=BeartypeConf(is_pep484_tower=True))

# Of each function in each test these calls are checked: the first ones, then one in so many. The proof's rules are
# called hundreds of times in thousands of short tests: with ten first calls, checks were four tenths of their time.
FIRST, ONE_IN = 1, 50

_tests = 0


def next_test() -> None:
    """Begin to count from nought again."""
    global _tests
    _tests += 1


def sample() -> None:
    """From now on functions that the hook instruments are checked in a part of their calls; before the package is
    imported."""
    everywhere = jaxtyping.jaxtyped
    if getattr(everywhere, "of_a_part", False):
        return

    def jaxtyped(*, typechecker: Any) -> Callable[[Any], Any]:
        def instrument(found: Any) -> Any:
            if not inspect.isclass(found):
                if "<locals>" in found.__qualname__:
                    return found
                return sampled(found, functools.partial(everywhere, typechecker=typechecker))
            if hasattr(found, "__dataclass_fields__") and "__init__" in vars(found):
                found.__init__ = instrument(found.__init__)
            return found

        return instrument

    jaxtyped.of_a_part = True
    jaxtyping.jaxtyped = jaxtyped


def sampled(function: Callable[..., Any], check: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, or ``check(function)`` in some of its calls."""
    checked: Callable[..., Any] | None = None
    test, calls = -1, 0

    @functools.wraps(function)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        nonlocal checked, test, calls
        if test != _tests:
            test, calls = _tests, 0
        calls += 1
        if calls > FIRST and calls % ONE_IN:
            return function(*args, **kwargs)
        if checked is None:  # not before: building a check takes longer than most tests
            checked = check(function)
        return checked(*args, **kwargs)

    return chosen
