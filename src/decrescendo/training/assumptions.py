"""What a run assumes of what code of the user's did, in sentences."""

import re
from collections import Counter
from collections.abc import Collection

WRITTEN = (
    "weights were changed between steps by other code than the optimiser, which made the change of released and public "
    "values alone"
)
SET = (
    "settings of the optimiser were changed between steps by other code than the run's scheduler=, which took them "
    "from released and public values alone"
)
GRADIENTS_CHANGED = (
    "gradients were changed between fill_gradients and the optimiser's step by other code, which made the change of "
    "released and public values alone"
)
ROWS_CHANGED = "batches were changed before step: each row of them was made of its own example alone"
ENDED_ON_A_BATCH = "the run ended on a batch drawn, not released: that it ended there says nothing of it"
READ_AND_SET = (
    "settings of the optimiser were changed by code that had read the private diagnostics of a step: nothing of these "
    "is in the change"
)
READ_AND_ENDED = (
    "the run was ended early by code that had read the private diagnostics of a step: that it ended there says nothing "
    "of these"
)
ENDED_EARLY = (
    "the run ended before its plan did, by code that took that from released and public values alone"
)

# Of what is published as it is, and of what moves or grows it. Each begins with the same word, and names are put in.
ASSUMED = "assumed: "
PUBLIC_BUFFERS = (
    ASSUMED + "the buffers {} hold public statistics; they are published as they are, without noise"
)
PUBLIC_PARAMETERS = (
    ASSUMED + "the frozen parameters {} are public; they are published as they are, without noise"
)
STATE_SET = (
    ASSUMED
    + "only released or public values went into {}, which code outside of the training steps changed during "
    "the run; such buffers and frozen parameters are published as they are, without noise"
)
PARAMETERS_MADE = (
    ASSUMED
    + "only released or public values went into the parameters {}, which code outside of the training steps "
    "added during the run"
)
TRAINED_SET = (
    ASSUMED
    + "only released or public values decided which parameters are trained; during the run {} by code outside "
    "of the training steps"
)
# Names that are shown one by one; of more, those alike but for their numbers are one, up to so many.
_FEW, _MANY = 6, 12


def named(names: Collection[str]) -> str:
    """Names for a sentence: few as they are, many with their numbers as ``*``.

    >>> named(["1.running_mean", "1.running_var"])
    '1.running_mean, 1.running_var'
    >>> named([f"layer.{i}.weight" for i in range(9)] + ["top"])
    'layer.*.weight (9), top'
    """
    shown = list(names)
    if len(shown) > _FEW:
        alike = Counter(re.sub(r"\d+", "*", name) for name in names)
        shown = [pattern if count == 1 else f"{pattern} ({count})" for pattern, count in alike.items()]
    more = len(shown) - _MANY
    return ", ".join(shown[:_MANY]) + (f" and {more} more" if more > 0 else "")


def is_worded(assumption: str) -> bool:
    """Whether a sentence says itself that it is an assumption.

    >>> is_worded(PUBLIC_BUFFERS.format("mean")), is_worded(WRITTEN)
    (True, False)
    """
    return assumption.startswith(ASSUMED)


def is_of_published(assumption: str) -> bool:
    """Whether it is about values that are published without noise.

    >>> is_of_published(PUBLIC_BUFFERS.format("mean")), is_of_published(TRAINED_SET.format("a was frozen"))
    (True, False)
    """
    return is_worded(assumption) and assumption.endswith("without noise")
