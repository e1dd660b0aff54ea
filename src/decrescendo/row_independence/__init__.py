"""Row independence: checks that output row i depends on row i of the batch alone, for any number of rows.

DP-SGD needs it: clipping each example's gradient bounds its influence only if no other example's loss depends on it.

=================  ===========================================================================================
`check`            one forward pass of a program: `Independent`, or a `Refusal`
`register_rule`    says which dimensions an operation of your own keeps independent
=================  ===========================================================================================

Who builds an engine on it takes `decrescendo.row_independence.tracing`; nobody else imports what is inside.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decrescendo.row_independence.checking import Independent as Independent
    from decrescendo.row_independence.checking import check as check
    from decrescendo.row_independence.refusals import Refusal as Refusal
    from decrescendo.row_independence.rules import register_rule as register_rule

_HOME_OF = {"Independent": "checking", "check": "checking", "Refusal": "refusals", "register_rule": "rules"}

__all__ = ["Independent", "Refusal", "check", "register_rule"]


def __getattr__(name: str) -> object:
    if name in _HOME_OF:
        return getattr(import_module(f"decrescendo.row_independence.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
