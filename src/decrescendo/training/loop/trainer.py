"""`Trainer`: batch, clipped sum, noise, ledger, step. How much noise is decided elsewhere.

Longer than most files: what a step may do, and in which order it is decided, drawn, released, written down and seen,
is to be read in one place. Batches come from `drawing`, checkpoints from `keeping`.
"""

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import astuple, dataclass, field
from functools import partial
from itertools import count
from typing import NoReturn, final

import torch
from torch import nn

from decrescendo.accounting.budget import Budget, Unit
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.release import Release
from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import assumed
from decrescendo.base.batches import count_rows, map_rows
from decrescendo.base.rng import Secure, SecureStream, Seeds, Streams
from decrescendo.clipping import Batch, Clipper, Diagnostics, Engine, EngineSettings, Loss
from decrescendo.clipping.clipped import ClippedSum, trainable, trainable_of
from decrescendo.clipping.inventory import Inventory
from decrescendo.errors import (
    DecrescendoError,
    InvalidValue,
    PlanViolation,
    UnsupportedModel,
    check_instance,
    check_integer,
)
from decrescendo.optim import apply
from decrescendo.optim.apply import check_optimizer, fill_gradients
from decrescendo.optim.noise import NoisyMean, privatise
from decrescendo.optim.several import as_one, parts_of
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import RandomAllocation
from decrescendo.training.data.data_memory import kept_by, memory_of
from decrescendo.training.data.examples import Collate, Examples
from decrescendo.training.data.finite import check_finite
from decrescendo.training.data.people import check_people
from decrescendo.training.data.repeated_records import check_distinct
from decrescendo.training.data.rows import Rows, assumption_of, held_by, table_of
from decrescendo.training.loop.assumptions import together
from decrescendo.training.loop.between import BetweenSteps
from decrescendo.training.loop.drawing import Drawing, RunStreams
from decrescendo.training.loop.earlier_runs import BEGAN_WITHOUT_NOISE
from decrescendo.training.loop.frozen_state import FrozenStateGuard
from decrescendo.training.loop.progress import Progress, unheard
from decrescendo.training.loop.schedulers import Scheduler, assumed_of_scheduler, scheduler_of
from decrescendo.training.loop.source import Source, source_of
from decrescendo.training.persistence.checkpoint import Checkpoints
from decrescendo.training.persistence.checkpoint.streams import stream_at, stream_state
from decrescendo.training.persistence.keeping import Keeper, Life
from decrescendo.training.processes.bits import digest
from decrescendo.training.processes.codes import code_of
from decrescendo.training.processes.world import (
    RANKS_ALIKE,
    Tree,
    World,
    data_facts,
    facts_of,
    weight_facts,
    world_of,
)
from decrescendo.training.run import History, Run, assumed_of, check_published, cpu_weights
from decrescendo.training.statement import FLOAT32, FLOAT64, SECURE, SEEDED, Provenance
from decrescendo.training.steering import Adaptive, QuantileClip, Settings
from decrescendo.training.store import Account, Store, check_name, new_id

# Of the trainings that rank 0 has begun.
_NUMBERS = count(1)

SAME_ORDER = assumed("same-order")


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step: what was released."""

    step: int
    release: Release
    _diagnostics: Diagnostics = field(repr=False)
    _read: Callable[[], None] = field(default=unheard, repr=False, compare=False)

    @property
    def diagnostics(self) -> Diagnostics:
        """What the clipping saw: private, covered by no guarantee. A run remembers that it was asked for."""
        self._read()
        return self._diagnostics


@final
class Trainer:
    """The steps of a plan, for people who keep their own loop; `train` is the loop most people want.

    With an `Adaptive` in place of a plan, noise and clipping of each step are decided on the way: before a batch is
    drawn the policy is asked what to do and the filter whether it fits. When the filter refuses, `batches` ends: no
    batch was drawn, no gradient computed, no noise drawn, and `stopped` says why.

    Args:
        model: trained in place, in the mode (train or eval) it is in.
        loss: ``loss(model, batch)`` returns one loss an example, shape (batch,).
        plan: the noise multiplier and clip norm of every step; a `QuantileClip`, whose clip norm follows the
            gradients; or an `Adaptive`, which decides both on the way. A plan of `Plan.without_privacy` has no noise
            and protects nobody.
        optimizer: any ``torch.optim`` optimiser over the model's parameters; or a list of several, each over its own
            part of them (`optim.Several`).
        seed: `Secure()` for weights that leave the house: batches and noise that nobody can predict or repeat. Or a
            whole number >= 0, as sensitive as the data; its streams "sampling", "noise", "model" and "data" are used.
            The random numbers that the model draws itself (dropout) come from the third, those of transforms from the
            last: global generators are neither read nor moved. With a store, each run but its first has streams of its
            own, by its place there: equal seeds do not draw equal noise.
        scheduler: of the learning rate: a scheduler of torch's over ``optimizer``, or a function that makes one of it.
            `step` steps it after the optimiser; a loop with `fill_gradients` steps it itself. Its numbers (``T_max``,
            ``total_steps``) count steps, not epochs. Checkpoints keep it. Rates that other code sets are among the
            run's assumptions.
        settings: of the clipping engine; they cannot change a guarantee.
        store: where the run is registered, its whole plan reserved, and each release written down before anything of
            it can be seen.
        checkpoints: where the state of the run is kept, and a digest of each release, written down before anything of
            it can be seen. Resumed, the run has the same batches, masks and noise as if nothing had happened: on a CPU
            the same bits. ``seed`` must then be of the same kind, and is not used.
        name: of the run in the store's list, for people; only with a store. A run that is resumed keeps its first one.
        world: from `decrescendo.distributed.join`, in a script that ``torchrun`` started: every process clips its share
            of each batch, and the first adds the noise. ``None`` is one process.

    Guarantee:
        after n steps, the weights are as private as `ledger`, the first n releases of the plan (with an `Adaptive`:
        as its filter's whole budget, and no less), for neighbours that differ in one row of ``data``; under a plan for
        people, in all rows of one person, of whom ``people`` says which they are. A step
        takes exactly one batch that `batches` has drawn, the empty ones included: nothing else would be the
        Poisson sampling that the plan was judged for.

    Edge cases:
        an empty batch is yielded as ``None``, must be given to `step`, gets noise and counts.
        where the plan's sampling has a ``max_batch_size`` no batch is larger: rows over it are left out of that step,
        by an even choice among those drawn, which `ledger` says and the guarantee pays for.
        an error inside a step after its release was recorded leaves the release in the ledger: a step may be
            wasted, never hidden. What a filter granted is spent from then on, whatever happens in the step.
        buffers and frozen parameters that a forward pass changes (running statistics, code books) hold raw
        data without noise: refused while the pass runs. Those that the loop changes between steps (a temperature, a
        teacher's average, a mask), those that are not as constructed, and frozen ones are published as they are: the
        run lists them by name among its assumptions.
        a loop that changes the rows of a batch before it gives it to `step`, or ends on a batch that it does not give:
            what is supposed of either is among the run's assumptions.

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
        self,
        model: nn.Module,
        loss: Loss,
        plan: Plan | Adaptive | QuantileClip,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        seed: int | Secure,
        scheduler: Scheduler | None = None,
        settings: EngineSettings | None = None,
        store: Store | None = None,
        checkpoints: Checkpoints | None = None,
        name: str = "",
        world: World | None = None,
    ) -> None:
        self._world = world_of(world)
        with self._world.watched():
            number = self._world.draw(lambda: {"training": next(_NUMBERS)})["training"]
            self._world = self._world.training(int(number))
            self._begin(
                model, loss, plan, as_one(optimizer), seed, scheduler, settings, store, checkpoints, name
            )

    def _begin(
        self,
        model: nn.Module,
        loss: Loss,
        plan: Plan | Adaptive | QuantileClip,
        optimizer: torch.optim.Optimizer,
        seed: int | Secure,
        scheduler: Scheduler | None,
        settings: EngineSettings | None,
        store: Store | None,
        checkpoints: Checkpoints | None,
        name: str,
    ) -> None:
        if store is not None:
            check_instance(
                "store", store, Store, "Store(path) opens one, Store.create(path, budget, ..) makes it"
            )
        check_name(name, store)
        if checkpoints is not None:
            check_instance("checkpoints", checkpoints, Checkpoints, "Checkpoints(folder) is one")
        if torch.is_inference_mode_enabled():
            raise InvalidValue("training must be outside of torch.inference_mode(), which keeps no gradients")
        self._source: Source = source_of(plan, model)
        agreed = self._source.agreed
        _check_unit(agreed.budget)
        self._parts = self._world.hold(model)
        parameters = trainable(model)
        for key, tensor in check_published(model).items():
            if tensor.is_meta:
                raise UnsupportedModel(
                    f"the model must have values, got {key} on the meta device. Load or initialise it first"
                )
        check_optimizer(optimizer, Inventory.of(model), parameters)
        self._model, self._optimizer = model, optimizer
        self._scheduler = scheduler_of(scheduler, optimizer)
        if checkpoints is not None and self._scheduler is not None:
            checkpoints = checkpoints.keeping("scheduler", self._scheduler)
        self._between = BetweenSteps(model, optimizer, self._parts.settle, self._scheduler)
        self._device = next(iter(parameters.values())).device
        place = len(store.entries()) if store is not None and self._world.rank == 0 else 0
        self._streams = RunStreams.of(_of_its_own(seed, place))
        # Of several ranks each has masks of its own, of a seed that rank 0 gives for each step.
        self._masks = self._streams.masks if self._world.size == 1 else Seeds(self._streams.masks.stream)
        chosen = settings or EngineSettings()
        engine = Engine(model, loss, chosen, seeds=self._masks, keep=self._parts.keep)
        # Looks at rows before the first step: it must not move the streams of the run.
        self._looking = (
            None if self._parts.trained else partial(Engine, model, loss, chosen, seeds=_no_stream)
        )
        self._engine: Clipper = engine
        self._life = Life(
            "" if store is None else new_id(),
            place=None if store is None else place,
            accumulate=FLOAT64 if settings is not None and settings.wide else FLOAT32,
            gamma=0.0 if settings is None else settings.gamma or 0.0,
        )
        self._life.supposed = (
            *self._source.assumptions,
            *assumed_of_scheduler(self._scheduler),
            *assumed_of(model),
        )
        self._digests = checkpoints is not None or store is not None
        self._keeper = (
            None
            if checkpoints is None
            else Keeper(checkpoints, agreed, self._world, self._streams, self._life)
        )
        self._world.agree(
            lambda: facts_of(
                model,
                optimizer,
                agreed.sha256,
                {
                    "code of the loss": code_of(loss),
                    "settings of the engine": settings,
                    "kind of seed": type(seed).__name__,
                    "scheduler": type(self._scheduler).__name__,
                    "use of a store": store is not None,
                    "use of checkpoints": "none"
                    if checkpoints is None
                    else f"each {checkpoints.every} steps, with {sorted(checkpoints.also)}",
                },
            )
        )
        if self._keeper is not None:
            self._keeper.resume(model, optimizer, self._source.tracker)
            if self._life.taken:
                noisy = all(release.noise_multiplier for release in self._life.releases)
                self._between.resumed(noisy=noisy and BEGAN_WITHOUT_NOISE not in self._life.supposed)
            # The first checkpoint has what is found now; the next may be of a life that does not know of it.
            self._between.look_back()
        self._moved_by = _described(optimizer)
        self._drawing = Drawing(self._source, self._world, self._streams, self._device)
        self._frozen_state, self._looked = FrozenStateGuard(model), False
        self._trained = {name: parameter.numel() for name, parameter in parameters.items()}
        self._keep()
        # After the first checkpoint, which has its id: a crash between the two reserves once.
        self._account: Account | None = None
        if store is not None and self._world.rank == 0:
            self._check_listed(store)
            self._account = store.start(agreed, label=name, id=self._life.run_id)
            try:
                self._check_place(store, seed)
            except PlanViolation:
                self._account.give_back()
                raise
        self._drawn: int | None = None
        self._warned = set[str]()
        self._stepping, self._owner = threading.Lock(), os.getpid()
        self._data: object = None
        self._settings: Settings | None = None
        self.spent = self._source.spent

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PlanViolation(
            "a training must stay one, got a copy asked for. Both would release their sums with the same noise"
        )

    def _check_listed(self, store: Store) -> None:
        """That the store has what was released by lives before: each release is written down here first, then there."""
        releases = None if self._keeper is None else self._keeper.releases
        written = 0 if releases is None else releases.steps
        listed = {entry.id: entry.released.steps for entry in store.entries()}.get(self._life.run_id)
        if written and (listed is None or listed < written - 1):
            raise PlanViolation(
                f"a store must list what its run has released, got {listed or 0} of {written} steps. It is another "
                "one, or an older copy put back, which has forgotten the runs registered since: put back the newest"
            )

    def _check_place(self, store: Store, seed: int | Secure) -> None:
        """That the run is where in its store it was: with a seed, another in its place draws the same noise."""
        ids, place = [entry.id for entry in store.entries()], self._life.place
        if place is None:
            return
        if ids.index(self._life.run_id) < place:
            raise PlanViolation(
                f"a store must list the runs before this one, {place} of them, got {ids.index(self._life.run_id)}. It "
                "is another one, or an older copy put back: put back the newest"
            )
        if ids[place] != self._life.run_id and not isinstance(seed, Secure):
            raise PlanViolation(
                "runs of one store that have seeds must be registered one after another, got another one where this "
                "one was to be. Both would have its noise: begin this one again, without its checkpoints"
            )

    def batches(
        self,
        data: object,
        collate_fn: Collate | None = None,
        num_workers: int = 0,
        people: object = None,
        *,
        require_finite: bool | None = None,
    ) -> Iterator[Batch | None]:
        """Draw the plan's remaining batches from ``data``, on the model's device; ``None`` is an empty batch.

        With an `Adaptive` each batch is yielded after its step was granted, and the batches end where the training
        does.

        Args:
            data: see `training.rows`; as many rows as the plan's ``dataset_size``.
            collate_fn: from a list of examples to a batch, as torch's `DataLoader` takes it; it is given one example
                at a time, so that no example is padded to the length of another. Examples that come out in different
                shapes are a `Ragged` batch.
            num_workers: processes that make batches ahead of their steps. What is drawn does not depend on it, nor do
                the random numbers of transforms.
            people: whose row each is, an id a row, for a plan that protects people: held against the number of
                examples that it allows one of them, before anything is drawn.
            require_finite: refuse data with NaN or infinity in a row of which the model makes no finite gradient: such
                a row counts as zero at every step, in silence. ``None``: where the data lie in memory (tensors, arrays,
                a data frame, a list); ``True``: of other data each example is made once for it; ``False``: nowhere. The
                refusal tells that there is such a row, and nothing else (`training.finite`).
        """
        with self._world.watched():
            check_integer("num_workers", num_workers, at_least=0)
            if require_finite is not None:
                check_instance("require_finite", require_finite, bool)
            table = self._table(data, collate_fn, num_workers, people)
            if (looking := self._looking) is not None:
                here = partial(map_rows, lambda rows: rows.to(self._device))
                check_finite(table, require_finite, lambda batch: looking().per_example_norms(here(batch)))
            elif require_finite:
                check_finite(table, require_finite)
            return self._draw(table, num_workers)

    def _table(
        self, data: object, collate_fn: Collate | None, workers: int, people: object
    ) -> Rows | Examples:
        table = table_of(data, collate_fn)
        size = self._source.sampling.dataset_size
        if isinstance(data, list) and isinstance(table, Rows) and len(data) == size > 1:
            raise InvalidValue(
                f"columns must be in a tuple where they are as many as there are rows, got a list of {size} tensors, "
                "which may be rows. Give torch.stack(rows), or tuple(columns)"
            )
        if table.count != size:
            raise InvalidValue(
                f"data must have the plan's {size} rows, got {table.count}. "
                "The sample rate was calibrated for that number: make a plan for this data"
            )
        whose = check_people(people, self._source.agreed.budget, table.count)
        supposed: set[Assumption | None] = {*self._life.supposed, assumption_of(table)}
        if self._source.agreed.budget.unit is Unit.EXAMPLE:
            supposed.add(check_distinct(data, columns=isinstance(table, Rows)))

        def facts() -> dict[str, str]:
            found, all_rows = data_facts(table)
            supposed.add(None if all_rows else RANKS_ALIKE)
            return found | {"num_workers": str(workers), "people": whose}

        self._world.agree(facts)
        sampling, taken = self._source.sampling, self._life.taken
        if data is not self._data and isinstance(sampling, RandomAllocation):
            supposed.add(SAME_ORDER if taken % sampling.steps_per_epoch else None)
        self._data = data
        kept = held_by(table)
        if isinstance(self._engine, Engine):
            self._engine.withhold(memory_of(data if kept is data else (kept, data)), kept_by(self._optimizer))
        self._life.supposed = tuple(filter(None, supposed))
        return table

    def _draw(self, table: Rows | Examples, workers: int) -> Iterator[Batch | None]:
        drawn = self._drawing.batches(table, workers, self._life.taken)
        self._iterator = drawn
        with closing(drawn):
            while self._iterator is drawn:
                with self._world.watched():
                    if not self._grant():
                        return
                    batch, self._drawn, self._drawing.place = next(drawn)
                    self._between.hand_out(batch)
                yield batch
        raise PlanViolation(
            "batches must come from one iterator at a time, got a later call of batches(data) before this one ended. "
            "Both would draw the same batches: go on with the later one"
        )

    def _grant(self) -> bool:
        """Have the next step decided; false at the end."""
        if self._drawn is not None:
            raise PlanViolation(
                f"every drawn batch must be given to step, got none for batch {self._life.taken + 1}. "
                "An empty batch (None) is a step too: its noise hides that it was empty"
            )
        self._frozen_state.begin()
        # Now, and not at the end of the step: what follows a step (a scheduler) has been done.
        self._keep()
        if self._life.taken:
            self._compare_weights(self._life.taken)
        settings = self._parts.gathered(self._following)
        decided = self._world.draw(lambda: self._decide(settings))
        self._between.begin()
        granted = decided["settings"]
        self._settings = None if granted is None else Settings(*granted)
        if self._world.rank:
            self._source.follow(self._settings, decided["stopped"])
            if self._source.tracker is not None and self._settings is not None:
                self._source.tracker.heard(self._settings.clip_norm, self._life.taken)
        if self._world.size > 1 and granted is not None:
            self._masks.stream = Streams(decided["masks"]).child(self._world.rank).numpy("model")
            if decided["noise"] is not None:
                self._streams.noise = stream_at(self._streams.noise, decided["noise"])
        return granted is not None

    def _following(self) -> Settings | None:
        """On rank 0: the next step, decided, and paid for where a filter is asked, before anything is drawn or looked
        at."""
        return None if self._world.rank else self._source.following(self._life.taken)

    def _decide(self, settings: Settings | None) -> Tree:
        """On rank 0: what the ranks are told of the next step, with a seed of their masks."""
        if settings is None:
            return {"settings": None, "stopped": self._source.stopped}
        noise = stream_state(self._streams.noise) if self._parts.trained else None
        masks = self._streams.masks() if self._world.size > 1 else None
        return {"settings": list(astuple(settings)), "stopped": "", "masks": masks, "noise": noise}

    def _compare_weights(self, step: int = 0) -> None:
        self._world.agree(lambda: weight_facts(self._model, trained=True), step)

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
        return StepResult(self._life.taken, noisy.release, diagnostics, self._between.read)

    def fill_gradients(self, batch: Batch | None) -> StepResult:
        """`step` up to the noisy mean in every ``.grad``: the caller's loop steps its optimiser and its scheduler, and
        clears ``.grad``.

        The release is recorded by then, so whatever the loop makes of ``.grad`` alone is post-processing. A loop that
        changes it before its optimiser steps, or the weights otherwise than by that one step, has the run say so.
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
        return StepResult(self._life.taken, noisy.release, diagnostics, self._between.read)

    def _release(self, batch: Batch | None) -> tuple[NoisyMean, Diagnostics]:
        """The noisy mean of a batch, recorded before anything of it can be seen; and what the clipping saw."""
        if os.getpid() != self._owner:
            raise PlanViolation(
                "a training must go on in the process that began it, got a step in a forked one. Both would release "
                "their sums with the same noise: begin trainings after the fork"
            )
        if not self._stepping.acquire(blocking=False):
            raise PlanViolation(
                "steps must be taken one after another, got one that began before another had ended. Both would "
                "release the batch just drawn: let one thread call step, and no loss"
            )
        try:
            noisy, diagnostics = self._world.release(lambda: self._clip(batch), self._noised, self._record)
            self._life.releases.append(noisy.release)
            self._life.columns.append(diagnostics)
            self._drawn = None
        finally:
            self._stepping.release()
        self._between.released(noisy=noisy.release.noise_multiplier > 0)
        if diagnostics.examples and diagnostics.nonfinite == diagnostics.examples:
            self._warn(
                "no example of a batch had a finite gradient, so noise alone was released: look for NaN in the data, "
                "or for a loss that overflows"
            )
        return noisy, diagnostics

    def _warn(self, why: str) -> None:
        """Once a run, to whoever holds the data."""
        if why not in self._warned:
            self._warned.add(why)
            warnings.warn(why, UserWarning, stacklevel=4)

    def _clip(self, batch: Batch | None) -> ClippedSum:
        settings = self._check_batch(batch)
        held = Inventory.of(self._model)
        check_optimizer(self._optimizer, held, trainable_of(held))  # before anything is released
        self._frozen_state.follow()
        self._between.enter()
        if not self._looked:
            self._frozen_state.look()
        tracker = self._source.tracker
        part = 1.0 if tracker is None else tracker.gradient_part
        clipped = self._parts.clipped(lambda: self._engine.clipped_sum(batch, part * settings.clip_norm))
        self._trained |= {name: held.parameters[name].numel() for name in clipped.gradients}
        self._frozen_state.trained(clipped.gradients)
        if batch is not None and not self._looked:  # comparing large buffers at every step would cost
            self._frozen_state.check_pass()
            self._looked = True
        return clipped

    def _noised(self, clipped: ClippedSum) -> tuple[NoisyMean, bytes]:
        """What may be seen of a sum, once it is recorded, and its digest, where one is recorded."""
        settings, tracker = self._settings, self._source.tracker
        assert settings is not None
        if tracker is not None:
            clipped = tracker.counted(clipped, settings.clip_norm)
        # The step's own declared B_t is the divisor.
        sampling = self._source.sampling.at(self._life.taken)
        noisy = privatise(clipped, settings.noise_multiplier, sampling, self._streams.noise)
        content = digest(noisy) if self._digests else b""
        return noisy if tracker is None else tracker.follow(noisy, self._life.taken), content

    def _record(self, release: Release, content: bytes) -> None:
        """On rank 0. A crash may waste a release, never hide one. One that was recorded before is compared: the same
        noise on another sum must not be seen."""
        if self._keeper is not None and self._keeper.releases is not None:
            self._keeper.releases.record(self._life.taken, content)
        if self._account is not None:
            self._account.record(self._life.taken, release, content)

    @property
    def ledger(self) -> Ledger:
        """What has been released so far."""
        return Ledger(self._life.releases)

    @property
    def steps(self) -> int:
        """The most steps this training can take: the plan's, or those an `Adaptive` allows."""
        return self._source.steps

    @property
    def stopped(self) -> str:
        """Why an adaptive training ended, in words; empty while it goes on, and with a plan."""
        return self._source.stopped

    def epsilon_spent(self) -> float:
        """Certified upper bound on the epsilon of `ledger` at the plan's delta.

        A guarantee for a number of steps fixed in advance; see `finish` for a number chosen on the way. With an
        `Adaptive` the whole budget, from the beginning: no part of it is a guarantee.
        """
        return self._source.epsilon_spent(self.ledger)

    def progress(self) -> Progress:
        """How far the training is; after at least one step."""
        decided = self._source.decided_clip_norm
        return Progress(
            self._life.taken, self._source.steps, self._life.seconds, self._life.columns[-1], self.spent,
            self._between.read, decided[self._life.taken - 1] if decided else None,
        )  # fmt: skip

    def abandon(self) -> None:
        """End a training that failed. Its entry in the store is closed; if it has released nothing, the store has back
        what was reserved for it (`Account.finish`). Not where it can go on from checkpoints."""
        if self._account is not None and self._keeper is None:
            with suppress(DecrescendoError):  # the failure is what is to be told
                self._account.finish()

    def finish(self) -> Run:
        """The run so far. Ending before the plan does is allowed, and said in the run.

        A run that took all its steps is judged by its own ledger. One that ended early is judged by the whole
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
            self._compare_weights()  # where ranks hear that one was refused, before they put parts together
            early = self._life.taken < self._source.steps and not self._source.stopped
            ended = self._between.ended(early=early, drawn=self._drawn is not None)
            assumptions = together(self._world, {*self._assumptions(), *ended})
            weights = cpu_weights(self._model, begun=True)
        if self._account is not None:
            self._account.finish()
        columns, ledger = self._life.columns, self.ledger
        return Run(
            plan=self._source.agreed,
            ledger=ledger,
            guarantee=self._source.guarantee(ledger),
            weights=weights,
            seconds=self._life.seconds,
            diagnostics=History(
                examples=tuple(d.examples for d in columns),
                nonfinite=tuple(d.nonfinite for d in columns),
                clipped=tuple(d.clipped for d in columns),
                loss_sum=tuple(d.loss_sum for d in columns),
            ),
            clip_norm=self._source.decided_clip_norm[: ledger.steps],
            stopped=self._source.ended,
            provenance=self._provenance(assumptions),
        )

    def _provenance(self, assumptions: tuple[Assumption, ...]) -> Provenance:
        kept = dict(self._model.named_parameters()).keys()
        count = sum(size for name, size in self._trained.items() if name in kept)
        return Provenance(
            random=SECURE if isinstance(self._streams.sampling, SecureStream) else SEEDED,
            resumed=self._life.resumed,
            model=f"{type(self._model).__name__}, {count} trained parameters",
            optimizer=self._moved_by,
            device=f"{self._device}, {self._world.size} processes"
            if self._world.size > 1
            else str(self._device),
            accumulate=self._life.accumulate,
            gamma=self._life.gamma,
            account="" if self._account is None else f"{self._account.store.dataset}, run {self._account.id}",
            assumptions=assumptions,
        )

    def _assumptions(self) -> tuple[Assumption, ...]:
        """Of this life of the run, and of those before."""
        self._between.look()
        if isinstance(self._engine, Engine):
            found = self._engine.assumptions
        else:
            found = (assumed("rows-own-clipper", type(self._engine).__name__),)
        if (kind := type(self._world)).__module__.split(".")[0] != "decrescendo":
            found = (*found, assumed("own-world", kind.__name__))
        found = (*found, *self._frozen_state.assumptions())
        return tuple(sorted({*self._life.supposed, *self._between.supposed, *found}))

    def assume(self, assumption: Assumption | str) -> None:
        """Have the run say what is assumed beside what is found here: a declaration of who trains.

        Args:
            assumption: for `Run.assumptions`; of a text the code is ``declared``.
        """
        if isinstance(assumption, str):
            assumption = assumed("declared", assumption)
        check_instance("assumption", assumption, Assumption)
        self._life.supposed = tuple(dict.fromkeys((*self._life.supposed, assumption)))

    def keep(self) -> None:
        """A checkpoint of the state as it is now, whether one is due or not; without ``checkpoints`` nothing.

        Raises:
            PlanViolation: in the midst of a step: a batch was drawn, and is not given to `step`; or the noisy mean of
                `fill_gradients` has not moved the weights.
        """
        if self._keeper is None:
            return
        if self._drawn is not None or self._between.waiting:
            raise PlanViolation(
                "a checkpoint must be of a step that is done, got one asked for in the midst of a step. Save after "
                "the optimizer's step, before the next batch"
            )
        self._keep(now=True)

    def _keep(self, *, now: bool = False) -> None:
        if self._keeper is not None and (self._keeper.is_due or (now and not self._keeper.is_saved)):
            # Or the next life would take what was changed for what was there before.
            self._parts.settle()
            place = {**self._drawing.place, "clip_norm": list(self._source.decided_clip_norm)}
            self._keeper.keep(self._model, self._optimizer, place, self._assumptions())

    def _check_batch(self, batch: Batch | None) -> Settings:
        if self._life.taken >= self._source.steps:
            raise PlanViolation(
                f"a run must stay within the {self._source.steps} steps of its plan, got one more. "
                "Another step would spend more than was promised: make a longer plan before the start"
            )
        if self._source.stopped:
            raise PlanViolation(
                f"a training must end where its filter or policy ended it, got one more step: "
                f"{self._source.stopped}. "
                "Another step would spend what was not granted"
            )
        given = 0 if batch is None else count_rows(batch)
        if self._drawn is None or self._settings is None:
            raise PlanViolation(
                "each step must take a batch of its own, got a step without a draw from batches(data). "
                "Using a batch twice is not the sampling that the plan was judged for"
            )
        if given != self._drawn:
            raise PlanViolation(
                f"step must be given the batch just drawn, of {self._drawn} rows, got {given} rows. "
                "Transform rows as you like, but drop or add none"
            )
        self._between.take_back(batch)
        return self._settings


def _no_stream() -> int:
    """A seed for a pass of which nothing is released."""
    return 0


def _of_its_own(seed: int | Secure, place: int) -> int | Secure:
    """The seed of a run with so many before it in its store: what a store adds up is drawn independently."""
    return seed if isinstance(seed, Secure) or not place else Streams(seed).child(place).seed


def _described(optimizer: torch.optim.Optimizer) -> str:
    """Its settings, of several those of each, as a run begins or goes on, of its groups where they have several; rates
    are those before any scheduler's."""
    if len(parts := parts_of(optimizer)) > 1:
        return " + ".join(map(_described, parts))
    (optimizer,) = parts
    shown: list[str] = []
    for key in optimizer.defaults:
        values = [group.get(f"initial_{key}", group.get(key)) for group in optimizer.param_groups]
        if all(isinstance(value, int | float) for value in values) and any(values):
            shown.append(f"{key}=" + "/".join(dict.fromkeys(f"{value:g}" for value in values)))
    return f"{type(optimizer).__name__}({', '.join(shown)})"


def _check_unit(budget: Budget) -> None:
    if budget.unit is Unit.CLIENT:
        raise InvalidValue(
            f"a plan for training must protect examples or people, got unit={budget.unit}: here each row is clipped, "
            "not each client. Use decrescendo.federated, or calibrate for examples"
        )
