"""Row independence: checks that output row i depends on row i of the batch alone, for any number of rows.

DP-SGD needs it: clipping each example's gradient bounds its influence only if no other example's loss depends on it.

=================  ===========================================================================================
`Refusal`          why a pass was refused: `errors.UnsupportedModel.refusal`
`register_rule`    says which dimensions an operation of your own keeps independent
=================  ===========================================================================================

`decrescendo.clipping.Engine.check` checks a model and a loss, and trains nothing.

An engine that traces passes imports `decrescendo.row_independence.tracing`; all other modules are internal.
"""

from decrescendo.row_independence.refusals import Refusal
from decrescendo.row_independence.rules import register_rule

__all__ = ["Refusal", "register_rule"]
