"""Assumptions a run lists about the user's loop and public model state; their texts."""

import re
from collections import Counter
from collections.abc import Collection, Iterable

from decrescendo.base.assumption import Assumption, read_assumption
from decrescendo.base.assumptions import assumed, template
from decrescendo.training.processes.world import World

WRITTEN = assumed("weights-written")
SET = assumed("optimizer-settings-changed")
GRADIENTS_CHANGED = assumed("gradients-changed")
ROWS_CHANGED = assumed("batches-changed")
SCHEDULER_STEPS = assumed("scheduler-steps")
STEP_SKIPPED = assumed("steps-skipped")
OTHER_DATA = assumed("other-data")
ENDED_ON_A_BATCH = assumed("ended-on-a-batch")
READ_AND_SET = assumed("settings-changed-after-diagnostics")
READ_AND_ENDED = assumed("ended-after-diagnostics")
ENDED_EARLY = assumed("ended-early")

# Templates for names: state published without noise, and changes to it.
PUBLIC_BUFFERS = template("public-buffers")
PUBLIC_PARAMETERS = template("public-frozen-parameters")
STATE_SET = template("public-changed-state")
PARAMETERS_MADE = template("parameters-added")
TRAINED_SET = template("trained-set-changed")
OPTIMIZER_STATE = template("optimizer-state")
# Above _FEW names, those that differ only in digits are merged; at most _MANY are shown.
_FEW, _MANY = 6, 12


def named(names: Collection[str]) -> str:
    """A list of names for a sentence; many names are shortened by writing their numbers as ``*``.

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


def together(world: World, assumptions: Iterable[Assumption]) -> tuple[Assumption, ...]:
    """The assumptions of all ranks, sorted; every rank gets the same."""
    sentences = world.together(tuple(sorted(assumption.written() for assumption in assumptions)))
    return tuple(sorted(map(read_assumption, sentences)))
