"""The type checker that the test run puts on every function of the package (see pyproject.toml, jaxtyping hook).

A check costs more than most functions do: with all calls checked the suite took twice as long. So `sample` makes it the
first call of each function in each of the first tests of a file; functions inside of functions, for which a check
would be built whenever they are defined, are left alone. ``make test-slow`` checks all of them.

Even a wrapper that only counts cost a quarter of the suite's time: hence a function's own code is exchanged for code
that checks one call, and put back by that call.
"""

import functools
import inspect
from collections import Counter
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

# PEP 484's numeric tower: an int is welcome where a float is asked for.
checker = beartype(conf=BeartypeConf(is_pep484_tower=True))

# A loss, of which a search compares between two trials whether it is the same code: checked in every call or in none.
_AS_THEY_ARE = ("cross_entropy", "cross_entropy_and_accuracy")

# In so many tests of one file: there are files of a thousand short tests, and then checks are a fifth of them.
MOST = 1

# Functions that were called since `next_test`, with the code that checks their next call and in how many tests of this
# file it did; and those whose calls are no longer checked.
_called: list[tuple[FunctionType, CodeType]] = []
_through: list[tuple[FunctionType, CodeType]] = []
_times: Counter[FunctionType] = Counter()
_file = ""


def next_test(file: str = "") -> None:
    """From now on the next call of each function is checked, but for those that were in many tests of this file."""
    global _file
    again = [*_called, *_through] if file != _file else _called.copy()
    if file != _file:
        _file = file
        _times.clear()
        _through.clear()
    _called.clear()
    for function, checking in again:
        _times[function] += 1
        if _times[function] <= MOST:
            function.__code__ = checking
        else:
            _through.append((function, checking))


def sample() -> None:
    """From now on functions that the hook instruments are checked in a part of their calls; before the package is
    imported."""
    everywhere = jaxtyping.jaxtyped
    if getattr(everywhere, "of_a_part", False):
        return

    def jaxtyped(*, typechecker: Any) -> Callable[[Any], Any]:
        def instrument(found: Any) -> Any:
            if not inspect.isclass(found):
                if "<locals>" in found.__qualname__ or found.__qualname__ in _AS_THEY_ARE:
                    return found
                return sampled(found, functools.partial(everywhere, typechecker=typechecker))
            if hasattr(found, "__dataclass_fields__") and "__init__" in vars(found):
                found.__init__ = instrument(found.__init__)
            return found

        return instrument

    jaxtyped.of_a_part = True
    jaxtyping.jaxtyped = jaxtyped


def sampled(function: FunctionType, check: Callable[..., Any]) -> FunctionType:
    """``function``, whose next call is one of ``check(function)``."""
    if isinstance(getattr(function, "__wrapped__", None), FunctionType):
        return function  # done: the hook meets what a dataclass is given for `__init__` twice
    usual, same, inner = function.__code__, _copied(function), None
    function.__wrapped__ = same  # what its signature is read of, and what a test calls unchecked

    def first(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        nonlocal inner
        function.__code__ = usual
        _called.append((function, checking))
        if inner is None:  # not before: building a check takes longer than most tests
            inner = check(same)
        return inner(*args, **kwargs)

    # What looks at which code has called it must look past this, as past jaxtyping's own.
    first.__code__ = first.__code__.replace(co_filename=str(jaxtyping.__file__))
    checking = _calling(first, usual)
    function.__code__ = checking
    return function


def _copied(function: FunctionType) -> FunctionType:
    outside, kept = function.__globals__, function.__closure__
    same = FunctionType(function.__code__, outside, function.__name__, function.__defaults__, kept)
    same.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(same, function)
    del same.__wrapped__
    return same


def _calling(target: Callable[..., Any], usual: CodeType) -> CodeType:
    """Code that hands its arguments to ``target``, for a function with the variables that ``usual`` finds outside."""
    scope: dict[str, Any] = {}
    outside = ", ".join(usual.co_freevars)
    exec(
        f"def outer({outside}):\n"
        " def inner(*args, **kwargs):\n"
        f"  if 0: ({outside})\n"
        "  call = 'target'\n"
        "  return call(*args, **kwargs)\n"
        " return inner",
        scope,
    )
    (code,) = (const for const in scope["outer"].__code__.co_consts if isinstance(const, CodeType))
    return code.replace(
        # Who asks which names a function uses is told those of the usual code, as of one inside.
        co_consts=(*(target if const == "target" else const for const in code.co_consts), usual),
        co_filename=usual.co_filename,
        co_firstlineno=usual.co_firstlineno,
        co_name=usual.co_name,
        co_qualname=usual.co_qualname,
    )
