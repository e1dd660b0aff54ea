"""Checks that every batch drawn is given to one step before the next is drawn, and that steps do not overlap."""

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import final

from decrescendo.base.batches import count_rows
from decrescendo.clipping import Batch
from decrescendo.errors import PlanViolation
from decrescendo.training.steering import Settings
from decrescendo.training.steering.source import Source


@final
class StepOrder:
    """Checks the order of draws and steps of one training, in the process that began it.

    Attributes:
        drawn: number of rows of the drawn batch that has not been given to a step yet; ``None`` if there is
            none. Set by `Trainer.batches`, and reset by the step.
        settings: noise and clip norm of the next step; ``None`` before the first and after the last.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.drawn: int | None = None
        self.settings: Settings | None = None
        self._stepping, self._owner = threading.Lock(), os.getpid()

    @contextmanager
    def step(self) -> Generator[None]:
        """Inside, one step is taken, and no other one may begin.

        Raises:
            PlanViolation: another step has not ended, or the process is a forked one.
        """
        if os.getpid() != self._owner:
            raise PlanViolation(
                "a training must go on in the process that began it, got a step in a forked one. Both would release "
                "their sums with the same noise: begin trainings after the fork"
            )
        if not self._stepping.acquire(blocking=False):
            raise PlanViolation(
                "steps must be taken one after another, got one that began before another had ended. Both would "
                "release the batch just drawn: call step from one thread only, and never from "
                "inside a loss"
            )
        try:
            yield
        finally:
            self._stepping.release()

    def check_given(self, taken: int) -> None:
        """Check that the last drawn batch was given to a step; ``taken`` is the number of steps so far."""
        if self.drawn is not None:
            raise PlanViolation(
                f"every drawn batch must be given to step, got none for batch {taken + 1}. "
                "An empty batch (None) is a step too: its noise hides that it was empty"
            )

    def check_batch(self, batch: Batch | None, taken: int) -> Settings:
        """Check that ``batch`` has as many rows as the batch just drawn and that the plan has a step left.

        Returns the settings of that step. Whether the rows are those drawn is not checked here
        (`BetweenSteps` does that).
        """
        if taken >= self._source.steps:
            raise PlanViolation(
                f"a run must stay within the {self._source.steps} steps of its plan, got one more. "
                "Another step would spend more than was promised: make a longer plan before the start"
            )
        if self._source.stopped:
            raise PlanViolation(
                f"a training must end where its filter or policy ended it, got one more step: "
                f"{self._source.stopped}. "
                "Another step would spend budget that the filter did not grant"
            )
        given = 0 if batch is None else count_rows(batch)
        settings = self.settings_of_drawn()
        if given != self.drawn:
            raise PlanViolation(
                f"step must be given the batch just drawn, of {self.drawn} rows, got {given} rows. "
                "Transform rows as you like, but drop or add none"
            )
        return settings

    def settings_of_drawn(self) -> Settings:
        """The settings of the step whose batch was drawn."""
        if self.drawn is None or self.settings is None:
            raise PlanViolation(
                "each step must take a batch of its own, got a step without a draw from batches(data). "
                "Using a batch twice is not the sampling that the plan was accounted for"
            )
        return self.settings
