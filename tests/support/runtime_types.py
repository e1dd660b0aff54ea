"""The type checker that `make test-slow` puts on every function of the package (``--jaxtyping-packages``).

In `make test` nothing is checked at run time: that took a tenth of its time, and `make types` checks all but shapes.
"""

from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

# PEP 484's numeric tower: an int is welcome where a float is asked for.
checker = beartype(conf=BeartypeConf(is_pep484_tower=True))


def leave_inner_functions() -> None:
    """Before the package is imported: functions inside of functions, which are sent to other processes by value, are
    left as they are."""
    everywhere = jaxtyping.jaxtyped

    def jaxtyped(*, typechecker: Any) -> Callable[[Any], Any]:
        check = everywhere(typechecker=typechecker)
        return lambda found: found if "<locals>" in found.__qualname__ else check(found)

    jaxtyping.jaxtyped = jaxtyped
