"""`Loop`: the steps of one training whose loop is the user's own, taken when it calls ``optimizer.step()``."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

from decrescendo.accounting import Ledger
from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import assumed
from decrescendo.base.batches import Batch, count_rows, slice_rows
from decrescendo.base.rng import Secure
from decrescendo.clipping import EngineSettings
from decrescendo.errors import PlanViolation
from decrescendo.integrations.opacus.accepted import Accepted
from decrescendo.integrations.opacus.calls import Ref
from decrescendo.integrations.opacus.checks import check_gradients
from decrescendo.integrations.opacus.constants import Knowledge
from decrescendo.integrations.opacus.evaluation import all_rows, check_one_shape, no_rows
from decrescendo.integrations.opacus.model_state import ModelState
from decrescendo.integrations.opacus.one_forward import LoopLoss, OneForward
from decrescendo.integrations.opacus.program import Program
from decrescendo.integrations.opacus.recording import LoopRecording
from decrescendo.integrations.opacus.reductions import program_of
from decrescendo.integrations.opacus.source import OpenEnded, not_stepped, rest_of, with_earlier
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.row_independence.tracing import Content
from decrescendo.training import Run, Trainer
from decrescendo.training.loop.beginning import seed_at
from decrescendo.training.steering import Settings

RESUMED, READ = assumed("resumed-anew"), assumed("read-earlier")
RECORDED, EARLY = assumed("rows-recorded-loop"), (assumed("ended-early"),)
MODES = assumed("declared", "the loop put the model, or a part of it, in train() or eval() mode by public values alone")


class Loop(Content):
    """The steps of one training.

    Args:
        module: the user's model.
        optimizer: the user's optimiser.
        loader: the user's loader: its data, collate function and workers.
        sampling: Poisson sampling at one over the length of the loader.
        seed: of batches, noise and masks.
        earlier: what was released beside this training, and what is assumed of that.
        noise_multiplier: z, where there is no plan.
        max_grad_norm: C, where there is no plan.
        plan: noise and clip norm of every step.
        settings: of the clipping engine.

    Attributes:
        trainer: what takes the steps; ``None`` before the first batch is drawn.
        tape: what the loop computes of the batch, or part of one, that it has.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: DataLoader[Any],
        sampling: PoissonSampling,
        seed: int | Secure,
        earlier: Callable[["Loop"], tuple[Ledger, tuple[Assumption, ...]]],
        *,
        noise_multiplier: float = 0.0,
        max_grad_norm: float = 0.0,
        plan: Plan | None = None,
        settings: EngineSettings | None = None,
    ) -> None:
        self._module, self._optimizer, self._loader = module, optimizer, loader
        self._sampling, self._seed, self._earlier, self.plan = sampling, seed, earlier, plan
        # What was calibrated; how many of its steps an earlier training took.
        self._whole, self._before = plan, 0
        self._noise_multiplier, self._max_grad_norm = noise_multiplier, max_grad_norm
        self._loss, self._settings = LoopLoss(), settings or EngineSettings()
        self.trainer: Trainer | None = None
        self._source: OpenEnded | None = None
        self._batches: Iterator[Batch | None] = iter(())
        # The batch drawn, while it waits for its step; what the loop computed of it, or of the part that it has.
        self._waiting, self._batch = False, cast("Batch | None", None)
        self.tape: LoopRecording | None = None
        self._program: Program | None = None
        self._is_first = self._is_last = True
        # What the loop may know of its batches; what it may compute.
        self._seen, self._epochs, self._taken, self._within = Knowledge(), 0, 0, False
        self._accepted = Accepted(alone=self._settings.one_example_a_pass)
        self._state = ModelState(module)
        self._once = OneForward(self._state, self._loss, self._before_step)

    @property
    def ledger(self) -> Ledger:
        """What this training has released."""
        return Ledger() if self.trainer is None else self.trainer.ledger

    @property
    def has_read(self) -> bool:
        """Whether the loop has read numbers made of a batch."""
        return self._seen.read

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What is assumed of this training so far."""
        if self.trainer is None:
            return ()
        early = EARLY if self.plan is not None and self.ledger.steps < self.plan.steps else ()
        return tuple(dict.fromkeys((*self.trainer.assumptions, *self._earlier(self)[1], *early)))

    @property
    def run(self) -> Run:
        """The finished training, of one with a plan; with the steps of it that were taken earlier."""
        plan = self._whole
        if plan is None or self.trainer is None:
            raise PlanViolation(
                "a run must have a plan and at least one step, got none. Take make_private_with_epsilon, and train"
            )
        run = self.trainer.finish()
        _, assumptions = self._earlier(self)
        return with_earlier(run, plan, self._before, assumptions, loaded=RESUMED in assumptions)

    @property
    def expected_batch_size(self) -> float:
        """B."""
        return self._sampling.expected_batch_size

    @property
    def is_between_parts(self) -> bool:
        """Whether parts of a batch were given to `step`, and others follow."""
        return self._waiting and self.tape is None and not self._is_last

    @property
    def _next(self) -> int:
        return min(self._taken, self.plan.steps - 1) if self.plan is not None else 0

    @property
    def noise_multiplier(self) -> float:
        """z of the next step."""
        return self._noise_multiplier if self.plan is None else float(self.plan.noise_multiplier[self._next])

    @noise_multiplier.setter
    def noise_multiplier(self, value: float) -> None:
        self._set("noise_multiplier", value)

    @property
    def max_grad_norm(self) -> float:
        """C of the next step."""
        return self._max_grad_norm if self.plan is None else float(self.plan.clip_norm[self._next])

    @max_grad_norm.setter
    def max_grad_norm(self, value: float) -> None:
        self._set("max_grad_norm", value)

    def _set(self, name: str, value: float) -> None:
        if self.plan is None:
            setattr(self, f"_{name}", value)
        elif value != getattr(self, name):
            raise PlanViolation(
                f"{name} must stay what make_private_with_epsilon calibrated, got {name}={value:g}. Give it the "
                "schedule (privacy=, max_grad_norm=), or take make_private and ask get_epsilon"
            )

    def _begin(self) -> None:
        """Before the first draw: what was released earlier counts as the first steps of the plan, and its noise is not
        drawn again."""
        self._state.check(self._seen)
        earlier, _ = self._earlier(self)
        if self.plan is None:
            plan: Any = OpenEnded(self._sampling, lambda: Settings(self._noise_multiplier, self._max_grad_norm))
            self._source = plan
        else:
            plan = self.plan = rest_of(self.plan, earlier)
            self._before = earlier.steps
        self.trainer = Trainer(
            self._module, self._loss, plan, self._optimizer, seed=seed_at(earlier.steps, self._seed),
            settings=self._settings,
        )  # fmt: skip
        self.trainer.assume(RECORDED)
        self._state.note()
        self._batches = self.trainer.batches(
            self._loader.dataset, self._collate, self._loader.num_workers, require_finite=False
        )

    @property
    def _collate(self) -> Any:
        own = self._loader.collate_fn
        return None if own is default_collate else own

    def in_parts(self, most: int) -> None:
        """The memory of a step is that of so many rows, where no step was taken yet."""
        if self.trainer is None:
            self._settings = replace(self._settings, microbatch_size=most)

    def epoch(self, most: int | None) -> Generator[Batch]:
        """As many batches as the user's loader has, in parts of at most so many rows; under `torch.no_grad`, where
        nothing is trained, all rows in their order."""
        if not torch.is_grad_enabled():
            yield from all_rows(self._loader, self._collate, self._module, most, self._tape)
            return
        # An epoch that the loop left may have been left for what it read: the next one is not public then.
        self._epochs += not (self._within and (self._seen.read or self._seen.counted))
        for place in range(len(self._loader)):
            if place or not self._waiting:
                self._draw()
            self._within = place + 1 < len(self._loader)
            yield from self._parts(most)

    def _draw(self) -> None:
        if self._waiting:
            raise not_stepped()
        if self.trainer is None:
            self._begin()
        try:
            self._batch = next(self._batches)
        except StopIteration:
            raise PlanViolation(
                "a training must end with the epochs that it was calibrated for, got another batch asked for. Say more "
                "epochs in make_private_with_epsilon"
            ) from None
        check_one_shape(self._batch)
        self._waiting = True

    def _parts(self, most: int | None) -> Generator[Batch]:
        batch = self._batch
        if batch is None:
            yield self._recorded(no_rows(self._loader, self._collate, self._module), 0)
            if self._waiting:  # the loop passed it over: it is a step all the same
                self._take(None)
            return
        rows = count_rows(batch)
        count = 1 if most is None else -(-rows // most)
        bounds = np.linspace(0, rows, count + 1).round().astype(int).tolist()
        for place, (start, stop) in enumerate(pairwise(bounds)):
            self._is_first, self._is_last = place == 0, place == count - 1
            yield self._recorded(slice_rows(batch, start, stop), stop - start)
            if self.tape is not None:
                raise not_stepped()

    def _recorded(self, batch: Batch, rows: int) -> Batch:
        self._seen.when = self._taken, self._epochs
        self.tape, self._program = self._tape(rows), None
        if rows and self._is_first and self._is_last:
            self.tape.once = self._once
            self._once.begin()
        return self.tape.batch(batch)

    def _tape(self, rows: int) -> LoopRecording:
        return LoopRecording(rows, self._state, self._ended, self._seen)

    def _ended(self, tape: LoopRecording, loss: Ref) -> None:
        """The loop called ``backward`` of this loss."""
        if tape is not self.tape or self._program is not None:
            raise PlanViolation(
                "loss.backward() must be called once a batch, got it twice. Add the losses up, and call it once"
            )
        if tape.rows:
            self._program = program_of(tape, loss, self._module)

    def _before_step(self) -> list[Tensor]:
        return [] if self.trainer is None or self._batch is None else self.trainer.before_step(self._batch)

    def step(self) -> None:
        """One step with the batch just drawn; with a part of one that is not the last, what it computes is compared."""
        tape, program = self.tape, self._program
        if not self._waiting or tape is None:
            raise PlanViolation(
                "each step must take a batch of its own, got a step without a draw from the private loader. Loop over "
                "the loader that make_private returned, and call optimizer.step() once a batch"
            )
        if self._source is not None:
            self._source.check(self.noise_multiplier, self.max_grad_norm)
        if tape.rows:
            if program is None:
                raise PlanViolation(
                    "loss.backward() must come before optimizer.step(), of a loss computed from the batch of the "
                    "private loader by the private model, got none. Use what make_private returned, and tensors only"
                )
            check_gradients(self._module)
            self._loss.take(self._accepted.of(program, self._seen, is_first=self._is_first))
            if self._accepted.other_modes and self.trainer is not None:
                self.trainer.assume(MODES)
        tape.close()
        self.tape = self._program = None
        if not tape.rows or self._is_last:
            self._take(self._batch)

    def _take(self, batch: Batch | None) -> None:
        self._waiting, self._batch, self.tape = False, None, None
        with self._state.step(self._seen):
            if self.trainer is not None:
                self.trainer.step(batch)
                self._taken += 1
