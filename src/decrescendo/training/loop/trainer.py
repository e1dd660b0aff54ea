"""`Trainer`: takes DP-SGD steps one at a time: batch, clipped sum, noise, ledger, optimiser step.

Longer than most files: the order in which a step is decided, drawn, released and written down is read in one place.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import count
from typing import NoReturn, final

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from decrescendo.accounting.ledger import Ledger
from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import REPLAYED, assumed
from decrescendo.base.rng import Secure, Seeds
from decrescendo.clipping import Batch, Clipper, Diagnostics, Engine, EngineSettings, Loss
from decrescendo.clipping.clipped import ClippedSum, trainable_of
from decrescendo.clipping.inventory import Inventory
from decrescendo.clipping.telemetry import Telemetry
from decrescendo.errors import DecrescendoError, PlanViolation, check_instance, check_integer
from decrescendo.optim import apply
from decrescendo.optim.apply import check_optimizer, fill_gradients
from decrescendo.optim.noise import NoisyMean
from decrescendo.optim.several import as_one
from decrescendo.plans.plan import Plan
from decrescendo.training.data.data_memory import optimizer_tensors
from decrescendo.training.data.data_set import DataSet, data_set_of
from decrescendo.training.data.examples import Collate, Examples
from decrescendo.training.data.rows import Rows
from decrescendo.training.data.unmoved import Unmoved
from decrescendo.training.loop import beginning, ending
from decrescendo.training.loop.assumptions import together
from decrescendo.training.loop.between import BetweenSteps
from decrescendo.training.loop.deciding import decide, follow
from decrescendo.training.loop.drawing import Drawing, RunStreams
from decrescendo.training.loop.frozen_state import FrozenStateGuard
from decrescendo.training.loop.progress import Progress
from decrescendo.training.loop.releasing import Releasing
from decrescendo.training.loop.schedulers import Scheduler, assumed_of_scheduler, scheduler_of
from decrescendo.training.loop.source import planned_steps, source_of
from decrescendo.training.loop.step_order import StepOrder
from decrescendo.training.loop.step_result import StepResult
from decrescendo.training.persistence.checkpoint import Checkpoints
from decrescendo.training.persistence.keeping import Keeper
from decrescendo.training.processes.world import World, weight_facts, world_of
from decrescendo.training.run import Run, assumed_of, cpu_weights
from decrescendo.training.steering import Adaptive, ClipController
from decrescendo.training.steering.plateau import Plateau
from decrescendo.training.steering.source import Source
from decrescendo.training.store import Account, Store

_NUMBERS = count(1)  # one for each training that rank 0 begins


@final
class Trainer:
    """Takes the steps of a plan in your own training loop; most people want the ready-made loop `train`.

    With an `Adaptive` in place of a plan, noise and clipping of each step are decided during the run: before a batch
    is drawn the policy proposes them and the filter grants or refuses. When the filter refuses, `batches` ends: no
    batch was drawn, no gradient computed, no noise drawn, and `stopped` says why.

    Args:
        model .. world: as in `train`; a loop that calls `fill_gradients` steps its scheduler itself.

    Guarantee:
        after n steps, the weights are as private as `ledger`, the first n releases of the plan (with an `Adaptive`:
        as its filter's whole budget, and no less), for neighbours that differ in one row of ``data``; under a plan for
        people, in all rows of one person (by the ids in ``people``). A step takes exactly one batch that `batches`
        has drawn, the empty ones included: nothing else would be the Poisson sampling that the plan is accounted for.

    Edge cases:
        an empty batch is yielded as ``None``, must be given to `step`, gets noise and counts.
        where the plan's sampling has a ``max_batch_size`` no batch is larger: excess rows, chosen uniformly among
        those drawn, are left out of that step; `ledger` records this and the guarantee accounts for it.
        an error inside a step after its release was recorded leaves the release in the ledger: a step may be
            wasted, never hidden. What a filter granted is spent from then on, whatever happens in the step.
        buffers and frozen parameters that a forward pass changes (running statistics, code books) hold raw
        data without noise: refused while the pass runs. Those that the loop changes between steps (a temperature, a
        teacher's average, a mask), those that are not as constructed, and frozen ones are published as they are: the
        run lists them by name among its assumptions.
        a loop that changes the rows of a batch before `step`, or ends with a drawn batch that it gave to no step: the
            run lists an assumption about it.

    Raises:
        PlanViolation: more steps than the plan has, a batch that was not drawn, a drawn batch that was
            skipped.
        UnsupportedModel: a model on the meta device, or with buffers that a pass changes.
        InvalidValue: data of another length than the plan's ``dataset_size``; a plan that promises less than
            its releases spend.

    >>> from decrescendo.accounting.budget import Budget
    >>> from decrescendo.plans.calibration import calibrate
    >>> from decrescendo.plans.curves import constant
    >>> from decrescendo.plans.sampling import PoissonSampling
    >>> plan = calibrate(
    ...     Budget(2.0, 1e-3), PoissonSampling(50, 10), steps=3, privacy=constant(1.0), clip=constant(1.0)
    ... )
    >>> model = nn.Linear(1, 1)
    >>> loss = lambda model, batch: (model(batch[0]) - batch[1]).square().sum(dim=1)
    >>> trainer = Trainer(model, loss, plan, torch.optim.SGD(model.parameters(), lr=0.1), seed=0)
    >>> for batch in trainer.batches((torch.zeros(50, 1), torch.ones(50, 1))):
    ...     result = trainer.step(batch)
    >>> trainer.ledger == plan.ledger
    True
    """

    def __init__(
        self, model: nn.Module, loss: Loss, plan: Plan | Adaptive | ClipController | Source,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer], *, seed: int | Secure,
        scheduler: Scheduler | None = None, settings: EngineSettings | None = None, store: Store | None = None,
        checkpoints: Checkpoints | None = None, name: str = "", world: World | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:  # fmt: skip
        self._world = world_of(world)
        with self._world.watched():
            number = self._world.draw(lambda: {"training": next(_NUMBERS)})["training"]
            self._world = self._world.training(int(number))
            given = (seed, scheduler, settings, store, checkpoints, name, telemetry)
            self._begin(model, loss, plan, as_one(optimizer), *given)

    def _begin(
        self, model: nn.Module, loss: Loss, plan: Plan | Adaptive | ClipController | Source,
        optimizer: torch.optim.Optimizer, seed: int | Secure, scheduler: Scheduler | None,
        settings: EngineSettings | None, store: Store | None, checkpoints: Checkpoints | None, name: str,
        telemetry: Telemetry | None,
    ) -> None:  # fmt: skip
        beginning.check_given(store, checkpoints, name)
        source = self._source = source_of(plan, model)
        agreed = source.agreed
        self._telemetry = telemetry = beginning.telemetry_of(telemetry, plan, agreed)
        beginning.check_unit(agreed.budget)
        self._model, self._optimizer, self._parts = model, optimizer, self._world.hold(model)
        parameters = beginning.trained_parameters(model, optimizer)
        self._scheduler = scheduler_of(scheduler, optimizer, planned_steps(source))
        if checkpoints is not None and self._scheduler is not None:
            checkpoints = checkpoints.keeping("scheduler", self._scheduler)
        self._device = next(iter(parameters.values())).device
        place = len(store.entries()) if store is not None and self._world.rank == 0 else 0
        own = beginning.seed_at(place, seed)  # runs of one store have noise of their own each
        self._between = BetweenSteps(model, optimizer, self._parts.settle, self._scheduler, own)
        chosen = self._settings = settings or EngineSettings()
        self._streams = RunStreams.of(
            beginning.seed_at(place, seed), source.sampling, source.correlation, on_host=chosen.noise_on_host
        )
        # Each of several ranks has its own dropout masks, seeded by rank 0 for each step.
        self._masks = self._streams.masks if self._world.size == 1 else Seeds(self._streams.masks.stream)
        keep = self._parts.keep
        self._engine: Clipper = Engine(
            model, loss, chosen, seeds=self._masks, keep=keep, telemetry=telemetry, steps=source.steps
        )
        # Makes an engine that checks rows before the first step: it must not advance the run's streams.
        self._looking = None if self._parts.trained else partial(Engine, model, loss, chosen, seeds=lambda: 0)
        known = (*source.assumptions, *assumed_of_scheduler(self._scheduler), *assumed_of(model))
        self._run_state = beginning.new_run_state(store, place, settings, known, telemetry)
        self._keeper: Keeper | None = None
        if checkpoints is not None:
            self._keeper = Keeper(checkpoints, agreed, self._world, self._streams, self._run_state)
        given = (seed, self._scheduler, settings, store, checkpoints, telemetry, source.controlled)
        self._world.agree(lambda: beginning.training_facts(model, loss, agreed, optimizer, *given))
        begun = (model, optimizer, self._source, self._run_state, self._between)
        if self._keeper is not None:
            beginning.start_or_resume(self._keeper, *begun)
        self._moved_by = ending.describe_optimizer(optimizer, source.controlled)
        self._drawing = Drawing(self._source, self._world, self._streams, self._device)
        self._frozen_state, self._looked = FrozenStateGuard(model), False
        self._trained = {name: parameter.numel() for name, parameter in parameters.items()}
        self._keep()
        # Registered after the first checkpoint, which has the run's id: a crash in between does not reserve twice.
        self._account: Account | None = None
        if store is not None and self._world.rank == 0:
            self._account = beginning.registered(store, agreed, name, self._run_state, self._keeper, seed)
        self._order = StepOrder(source)
        to = (self._run_state, self._keeper, self._account)
        digests = checkpoints is not None or store is not None
        self._releasing = Releasing(source, self._order, self._streams, *to, digests=digests)
        self._data: object = None
        self._unmoved: Unmoved | None = None
        # ``_plateau``: after how many steps a `Plateau` ended the training; -1 if none did.
        self._warned, self.spent, self._plateau = set[str](), source.spent, -1

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PlanViolation(
            "a training must not be copied, got a request for a copy. Both would release their sums with the same noise"
        )

    def batches(
        self, data: object, collate_fn: Collate | None = None, num_workers: int = 0, people: object = None, *,
        require_finite: bool | None = None, strata: object = None,
    ) -> Iterator[Batch | None]:  # fmt: skip
        """Draw the plan's remaining batches from ``data``, on the model's device; ``None`` is an empty batch.

        With an `Adaptive` each batch is yielded after its step was granted, and the batches end where the training
        does.

        Args:
            data: see `training.rows`; as many rows as the plan's ``dataset_size``.
            collate_fn: from a list of examples to a batch, as torch's `DataLoader` takes it; it is given one example
                at a time, so that no example is padded to the length of another. Examples of different shapes become
                a `Ragged` batch; with ``one_example_a_pass`` it may make anything that the loss takes.
            num_workers: processes that make batches ahead of their steps. What is drawn does not depend on it, nor do
                the random numbers of transforms.
            people: the id of each row's person, for a plan that protects people: nobody may have more rows than it
                allows (checked before anything is drawn).
            require_finite: refuse data with a row of NaN or infinity whose gradient is not finite: such a row would
                count as zero at every step, in silence. ``None``: if the data are in memory (tensors, arrays, a data
                frame, a list); ``True``: also other data, each example of which is made once for it; ``False``:
                never. The refusal tells that there is such a row, and nothing else (`training.data.finite`).
            strata: the stratum of each row, for a plan of `StratifiedPoissonSampling`.
        """
        with self._world.watched():
            check_integer("num_workers", num_workers, at_least=0)
            if require_finite is not None:
                check_instance("require_finite", require_finite, bool)
            is_new = data is not self._data
            if self._unmoved is not None and beginning.are_same(data, self._data):
                self._unmoved.check()
            known = self._known(data, collate_fn, num_workers, people, strata)
            rows = beginning.checked_rows(known, require_finite, self._looking, self._device)
            if is_new or not beginning.is_order_kept(self._source.sampling, self._run_state.taken):
                self._unmoved = Unmoved(rows)
            return self._draw(rows, num_workers, known.people, strata)

    def _known(self, data: object, collate_fn: Collate | None, workers: int, people: object, strata: object) -> DataSet:
        """Check the data against the plan and the other ranks; assumptions about them are noted."""
        sampling, taken, alone = (
            self._source.sampling,
            self._run_state.taken,
            self._settings.one_example_a_pass,
        )
        known = data_set_of(
            data, collate_fn, people, sampling.dataset_size, self._source.agreed.budget, one_by_one=alone
        )
        found = (*known.assumptions, *beginning.check_data_alike(known, self._world, workers))
        assumptions = {*self._run_state.assumptions, *found}
        assumptions |= beginning.assumed_of_data(data, self._data, strata, sampling, taken)
        self._data = data
        if isinstance(self._engine, Engine):
            self._engine.withhold(known.memory(), optimizer_tensors(self._optimizer))
        self._run_state.assumptions = tuple(assumptions)
        return known

    def _draw(
        self, table: Rows | Examples, workers: int, person_of_row: Int[np.ndarray, " rows"] | None, strata: object
    ) -> Iterator[Batch | None]:  # fmt: skip
        unmoved = self._unmoved or Unmoved(table)
        drawn = self._drawing.batches(table, workers, self._run_state.taken, person_of_row, strata, unmoved=unmoved)
        self._iterator = drawn
        with closing(drawn):
            while self._iterator is drawn:
                with self._world.watched():
                    if not self._grant():
                        return
                    batch, self._order.drawn, self._drawing.positions = next(drawn)
                    self._between.note_drawn(batch)
                yield batch
        raise PlanViolation(
            "batches must come from one iterator at a time, got a later call of batches(data) before this one ended. "
            "Both would draw the same batches: go on with the later one"
        )

    def _grant(self) -> bool:
        """Get the settings of the next step; false at the end."""
        self._order.check_given(self._run_state.taken)
        self._frozen_state.begin()
        # A checkpoint of the last step is written now: what the loop does after a step (a scheduler) is done.
        self._keep()
        if self._run_state.taken:
            self._compare_weights(self._run_state.taken)
        source, world, taken = self._source, self._world, self._run_state.taken
        decided = decide(source, world, self._parts, self._streams, taken)
        if self._between.begin():
            self._moved_by = ending.describe_optimizer(self._optimizer, source.controlled)
        self._order.settings = follow(decided, source, world, self._streams, self._masks)
        return self._order.settings is not None

    def _compare_weights(self, step: int = 0) -> None:
        self._world.agree(lambda: weight_facts(self._model, trained=True), step)

    def before_step(self, batch: Batch) -> list[Tensor]:
        """`Engine.before_step` with the batch just drawn and the clip norm of its step; nothing is released."""
        if not isinstance(self._engine, Engine) or self._world.size > 1:
            return []
        return self._engine.before_step(batch, self._order.settings_of_drawn().clip_norm)

    def step(self, batch: Batch | None) -> StepResult:
        """Take the next step with the batch just drawn."""
        noisy, diagnostics = self._release(batch)
        with self._world.watched():
            self._between.leave()
        apply(noisy, self._model, self._optimizer)
        self._between.stepped()
        if self._scheduler is not None:
            self._scheduler.step()
            self._between.scheduled()
        return self._result(noisy, diagnostics)

    def fill_gradients(self, batch: Batch | None) -> StepResult:
        """Take a `step` up to the noisy mean in every ``.grad``: your loop then steps its optimiser and
        scheduler, and clears ``.grad``.

        The release is recorded by then, so whatever the loop makes of ``.grad`` alone is post-processing. If a loop
        changes it before its optimiser steps, or the weights other than by that step, the run lists an assumption.
        """
        if self._between.waiting:
            self._warn(
                "a noisy mean was not used: the optimizer took no step after the last fill_gradients, and its release "
                "is paid for. To accumulate gradients, plan larger batches (microbatch_size bounds memory)"
            )
        noisy, diagnostics = self._release(batch)
        with self._world.watched():
            self._between.leave()
        fill_gradients(noisy, self._model, self._optimizer)
        self._between.filled()
        return self._result(noisy, diagnostics)

    def _result(self, noisy: NoisyMean, diagnostics: Diagnostics) -> StepResult:
        told = self._run_state.readings[-1:]
        return StepResult(self._run_state.taken, noisy.release, diagnostics, self._between.read, *told)

    def _release(self, batch: Batch | None) -> tuple[NoisyMean, Diagnostics]:
        """The noisy mean of a batch, recorded before it can be seen, and the diagnostics of its clipping."""
        with self._order.step():
            noisy, diagnostics = self._world.release(
                lambda: self._clip(batch), self._releasing.noised, self._releasing.record
            )
            # Before all that may fail: the step cannot be taken again, and the ledger has its release.
            self._run_state.releases.append(noisy.release)
            self._run_state.diagnostics.append(diagnostics)
            self._order.drawn = None
            if self._telemetry is not None:
                self._run_state.readings.append(self._releasing.reading(noisy, self._telemetry))
                self._source.observe(self._run_state.readings[-1])
            noisy = self._releasing.divided(noisy)
        self._between.released(noisy=noisy.release.noise_multiplier > 0)
        if diagnostics.examples and diagnostics.nonfinite == diagnostics.examples:
            self._warn(
                "no example of a batch had a finite gradient, so noise alone was released: look for NaN in the data, "
                "or for a loss that overflows"
            )
        return noisy, diagnostics

    def _warn(self, why: str) -> None:
        """Warn the data's holder, once per run."""
        if why not in self._warned:
            self._warned.add(why)
            warnings.warn(why, UserWarning, stacklevel=4)

    def _clip(self, batch: Batch | None) -> ClippedSum:
        settings = self._order.check_batch(batch, self._run_state.taken)
        self._between.check_given(batch)
        held = Inventory.of(self._model)
        check_optimizer(self._optimizer, held, trainable_of(held))  # before anything is released
        self._frozen_state.follow()
        self._between.enter()
        if not self._looked:
            self._frozen_state.look()
        clipped = self._parts.clipped(lambda: self._engine.clipped_sum(batch, settings.clip_norm))
        if isinstance(self._engine, Engine) and self._engine.replayed:
            self._between.replayed()
        self._trained |= {name: held.parameters[name].numel() for name in clipped.gradients}
        self._frozen_state.trained(clipped.gradients)
        if batch is not None and not self._looked:  # comparing large buffers at every step would cost
            self._frozen_state.check_pass()
            self._looked = True
        return clipped

    @property
    def ledger(self) -> Ledger:
        """The releases so far."""
        return Ledger(self._run_state.releases)

    @property
    def steps(self) -> int:
        """The largest number of steps of this training: the plan's, or those an `Adaptive` allows."""
        return self._source.steps

    @property
    def stopped(self) -> str:
        """Why an adaptive training ended; empty while it goes on, and with a plan."""
        return self._source.stopped

    def epsilon_spent(self) -> float:
        """Certified upper bound on the epsilon of `ledger` at the plan's delta.

        A guarantee for a number of steps fixed in advance; see `finish` for a number chosen on the way. With an
        `Adaptive` the whole budget, from the beginning: no smaller epsilon is guaranteed.
        """
        return self._source.epsilon_spent(self.ledger)

    def progress(self) -> Progress:
        """How far the training is; after at least one step."""
        run, decided = self._run_state, self._source.chosen_clip_norms
        return Progress(
            run.taken, self._source.steps, run.seconds, run.diagnostics[-1], self.spent, self._between.read,
            decided[run.taken - 1] if decided else None, run.readings,
        )  # fmt: skip

    def ends(self, rule: Plateau) -> bool:
        """Whether a `Plateau` ends the training now. It sees released values only: its end needs no assumption."""
        check_instance("rule", rule, Plateau, "End by a rule of your own with break: the run then says so")
        self._plateau = self._run_state.taken if rule(self.progress()) else self._plateau
        return self._plateau == self._run_state.taken

    def abandon(self) -> None:
        """End a training that failed. Its entry in the store is closed; if nothing was released, its
        reservation is returned (`Account.finish`). A training that can resume from checkpoints stays open."""
        if self._account is not None and self._keeper is None:
            with suppress(DecrescendoError):  # the training's own error is raised instead
                self._account.finish()

    def finish(self) -> Run:
        """The run so far. It may end before the plan does; the run then says so.

        A run that took all its steps is accounted by its own ledger. One that ended early is accounted by the whole
        plan's: when to stop may have depended on what was released, and then the smaller epsilon of the steps
        taken is no guarantee (stopping is post-processing of the whole plan only). An adaptive run has its
        filter's whole budget as its guarantee, wherever it ended.

        Nothing that the loop did to the model between steps is refused here, after the budget is spent: buffers and
        frozen parameters that it changed, and parameters that it added or froze, are among the run's assumptions.

        Raises:
            PlanViolation: an adaptive run that released something else than was granted.
        """
        try:
            return self._finished()
        except BaseException:
            self.abandon()
            raise

    def _finished(self) -> Run:
        with self._world.watched():
            self._parts.settle()
            self._compare_weights()  # if one rank was refused, all raise here, before they gather shards
            early = self._run_state.taken not in (self._source.steps, self._plateau) and not self._source.stopped
            ended = self._between.ended(early=early, drawn=self._order.drawn is not None)
            assumptions = together(self._world, {*self.assumptions, *ended})
            weights = cpu_weights(self._model, begun=True)
        if self._account is not None:
            self._account.finish()
        provenance = ending.provenance_of(
            self._run_state, self._streams, self._account, assumptions,
            model=ending.describe_model(self._model, self._trained), optimizer=self._moved_by,
            device=self._device, processes=self._world.size,
        )  # fmt: skip
        return ending.run_of(self._source, self._run_state, weights, provenance)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions so far, of this and earlier processes of the run: `Run.assumptions` once it is finished."""
        self._between.look()
        found = (*ending.assumed_of_clipping(self._engine, self._world), *self._frozen_state.assumptions())
        return tuple(sorted({*self._run_state.assumptions, *self._between.assumptions, *found} - {REPLAYED}))

    def assume(self, assumption: Assumption | str) -> None:
        """Add your own assumption to the run's list: a declaration by whoever trains.

        Args:
            assumption: for `Run.assumptions`; a text gets the code ``declared``.
        """
        if isinstance(assumption, str):
            assumption = assumed("declared", assumption)
        check_instance("assumption", assumption, Assumption)
        self._run_state.assumptions = tuple(dict.fromkeys((*self._run_state.assumptions, assumption)))

    def keep(self) -> None:
        """Write a checkpoint now, whether one is due or not; no-op without ``checkpoints``.

        Raises:
            PlanViolation: within a step: a drawn batch was not given to `step` yet, or no optimiser step has used the
                noisy mean of `fill_gradients` yet.
        """
        if self._keeper is None:
            return
        if self._order.drawn is not None or self._between.waiting:
            raise PlanViolation(
                "a checkpoint must be of a step that is done, got one asked for in the midst of a step. Save after "
                "the optimizer's step, before the next batch"
            )
        self._keep(now=True)

    def _keep(self, *, now: bool = False) -> None:
        if self._keeper is not None and (self._keeper.is_due or (now and not self._keeper.is_saved)):
            # An evaluation may have left sharded parameters gathered; a checkpoint reads their shards.
            self._parts.settle()
            source = self._source
            decided = {"clip_norm": list(source.chosen_clip_norms), "controller": source.controlled}
            positions = {**self._drawing.positions, **decided, "trained": self._between.trained}
            self._keeper.keep(self._model, self._optimizer, positions, self.assumptions)
