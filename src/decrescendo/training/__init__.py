"""Training by a plan, the only way from raw rows to weights.

==============  ============================================================================================
`train`         the loop most people want
`Trainer`       its steps, for people who keep their own loop
`StepResult`    one step: what was released, and what the clipping saw
==============  ============================================================================================
"""

from decrescendo.training.loop import train
from decrescendo.training.source import check_promise
from decrescendo.training.trainer import StepResult, Trainer
from decrescendo.training.untouched import Untouched

__all__ = ["train", "Trainer", "StepResult", "Untouched", "check_promise"]
