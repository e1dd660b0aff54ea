"""What `Trainer` checks, compares across ranks and registers in the ledger store before the first step."""

import operator
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import TensorDataset

from decrescendo.accounting.budget import Budget, Unit
from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import assumed
from decrescendo.base.batches import to_device
from decrescendo.base.rng import Secure, Streams
from decrescendo.clipping import Batch, Engine, EngineSettings, Loss
from decrescendo.clipping.clipped import trainable
from decrescendo.clipping.inventory import Inventory, check_values
from decrescendo.clipping.telemetry import Telemetry
from decrescendo.errors import InvalidValue, PlanViolation, check_instance
from decrescendo.optim.apply import check_optimizer
from decrescendo.plans.agreement import Agreement
from decrescendo.plans.cyclic_sampling import CyclicPoissonSampling
from decrescendo.plans.sampling import RandomAllocation, Sampling
from decrescendo.training.data.data_set import DataSet
from decrescendo.training.data.examples import Examples
from decrescendo.training.data.finite import check_finite
from decrescendo.training.data.rows import Rows
from decrescendo.training.loop.assumptions import OTHER_DATA
from decrescendo.training.loop.between import BetweenSteps
from decrescendo.training.loop.earlier_runs import BEGAN_WITHOUT_NOISE
from decrescendo.training.persistence.checkpoint import Checkpoints
from decrescendo.training.persistence.keeping import Keeper
from decrescendo.training.persistence.run_state import RunState
from decrescendo.training.processes.function_digest import function_digest
from decrescendo.training.processes.world import RANKS_ALIKE, World, facts_of
from decrescendo.training.run import check_published
from decrescendo.training.statement import FLOAT32, FLOAT64
from decrescendo.training.steering import ClipController
from decrescendo.training.steering.source import Source
from decrescendo.training.store import Account, Store, check_name, new_id

# The fewest norm bins with which a `ClipController` works.
_NORMS = 2


SAME_ORDER, OWN_STRATA = assumed("same-order"), assumed("own-strata")


def assumed_of_data(data: object, before: object, strata: object, sampling: Sampling, taken: int) -> set[Assumption]:
    """What is assumed of data that are given after ``taken`` steps, where ``before`` were given last (`None`: none)."""
    found = set[Assumption]() if strata is None else {OWN_STRATA}
    if are_same(data, before):
        return found
    found |= {SAME_ORDER} if is_order_kept(sampling, taken) else set()
    return found | ({OTHER_DATA} if taken and before is not None else set())


def are_same(data: object, other: object) -> bool:
    """Whether two data sets are one object, or tuples, dicts or `TensorDataset`s of the same objects."""
    if type(data) is TensorDataset and type(other) is TensorDataset:
        return are_same(data.tensors, other.tensors)
    if isinstance(data, tuple) and isinstance(other, tuple):
        ours, theirs = cast("tuple[object, ...]", data), cast("tuple[object, ...]", other)
        return len(ours) == len(theirs) and all(map(operator.is_, ours, theirs))
    if isinstance(data, dict) and isinstance(other, dict):
        own, its = cast("dict[Any, object]", data), cast("dict[Any, object]", other)
        return own.keys() == its.keys() and all(value is its[key] for key, value in own.items())
    return data is other


def seed_at(place: int, seed: int | Secure) -> int | Secure:
    """The seed of a run registered after ``place`` others in its store: runs of one store must have
    independent noise."""
    return seed if isinstance(seed, Secure) or not place else Streams(seed).child(place).seed


def check_given(store: Store | None, checkpoints: Checkpoints | None, name: str) -> None:
    """Check ``store``, ``checkpoints`` and ``name``, and refuse torch's inference mode, which keeps no gradients."""
    if store is not None:
        check_instance("store", store, Store, "Store(path) opens one, Store.create(path, budget, ..) makes it")
    check_name(name, store)
    if checkpoints is not None:
        check_instance("checkpoints", checkpoints, Checkpoints, "Checkpoints(folder) is one")
    if torch.is_inference_mode_enabled():
        raise InvalidValue("training must be outside of torch.inference_mode(), which keeps no gradients")


def is_order_kept(sampling: Sampling, taken: int) -> bool:
    """Whether the order of the rows must not change after ``taken`` steps: within an epoch of random
    allocation, and in cyclic sampling."""
    if isinstance(sampling, RandomAllocation):
        return bool(taken % sampling.steps_per_epoch)
    return isinstance(sampling, CyclicPoissonSampling) and taken > 0


def check_unit(budget: Budget) -> None:
    """Refuse a plan whose privacy unit is a client: training clips rows."""
    if budget.unit is Unit.CLIENT:
        raise InvalidValue(
            f"a plan for training must protect examples or people, got unit={budget.unit}: here each row is clipped, "
            "not each client. Use decrescendo.federated, or calibrate for examples"
        )


def telemetry_of(telemetry: Telemetry | None, plan: object, agreed: Agreement) -> Telemetry | None:
    """The telemetry of a run: the one asked for, or the default of a `ClipController`. Refused if a step has
    no noise. (A filter grants only steps with noise.)"""
    if telemetry is None:
        return Telemetry() if isinstance(plan, ClipController) else None
    check_instance("telemetry", telemetry, Telemetry, "dc.Telemetry(norms=10) is one")
    if isinstance(plan, ClipController) and telemetry.norms < _NORMS:
        raise InvalidValue(
            f"telemetry for a ClipController must have norms >= {_NORMS}, got norms={telemetry.norms}. It follows them"
        )
    if agreed.planned is not None and not agreed.planned.noise_multiplier.min() > 0:
        raise InvalidValue(
            f"a plan for telemetry must have noise at every step, got {agreed}. Without noise it would publish raw "
            "sums: read the private diagnostics"
        )
    return telemetry


def trained_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, nn.Parameter]:
    """The trainable parameters by name; refuses tensors on the meta device, and an ``optimizer`` that misses
    some parameters."""
    parameters = trainable(model)
    check_values(check_published(model).items())
    check_optimizer(optimizer, Inventory.of(model), parameters)
    return parameters


def new_run_state(
    store: Store | None,
    place: int,
    settings: EngineSettings | None,
    assumptions: Iterable[Assumption],
    telemetry: Telemetry | None = None,
) -> RunState:
    """The initial `RunState` of a new run with ``place`` earlier runs in ``store`` and the assumptions found so
    far."""
    return RunState(
        "" if store is None else new_id(),
        assumptions=tuple(assumptions),
        place=None if store is None else place,
        accumulate=FLOAT64 if settings is not None and settings.wide else FLOAT32,
        gamma=0.0 if settings is None else settings.gamma or 0.0,
        telemetry=telemetry,
    )


def check_data_alike(known: DataSet, world: World, workers: int) -> tuple[Assumption, ...]:
    """Check that all ranks have the same data, each with ``workers`` that make batches; returns `RANKS_ALIKE` if not
    all rows could be compared."""
    alike = True

    def facts() -> dict[str, str]:
        nonlocal alike
        found, alike = known.facts(workers)
        return found

    world.agree(facts)
    return () if alike else (RANKS_ALIKE,)


def start_or_resume(
    keeper: Keeper,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    source: Source,
    run_state: RunState,
    between: BetweenSteps,
) -> None:
    """Start a run, or resume it from the newest checkpoint of ``keeper``."""
    norms, controlled = keeper.resume(model, optimizer)
    for reading in run_state.readings:
        source.observe(reading)
    if run_state.taken and (norms, controlled) != (source.chosen_clip_norms, source.controlled):
        raise PlanViolation(
            f"a run must go on with the ClipController it began with, {controlled or 'none'}, and by the same version, "
            f"got {source.controlled or 'none'}. Its clip norms would not be those that its releases decided"
        )
    if run_state.taken:
        noisy = all(release.noise_multiplier for release in run_state.releases)
        noisy = noisy and BEGAN_WITHOUT_NOISE not in run_state.assumptions
        between.resumed(noisy=noisy, trained=keeper.trained)
    if keeper.was_read:
        between.read()
    between.when_read = keeper.note_read
    # Before the first checkpoint, which saves what is found: a process that resumes cannot detect it.
    between.look_back()


def checked_rows(
    known: DataSet, require_finite: bool | None, looking: Callable[[], Engine] | None, device: torch.device
) -> Rows | Examples:
    """The rows of ``known``, after the check that each has a finite gradient (`training.data.finite`).
    ``looking`` makes an engine that uses no random stream of the run."""

    def norms(make: Callable[[], Engine], batch: Batch) -> Tensor:
        return make().per_example_norms(to_device(batch, device))

    if looking is not None or require_finite:
        check_finite(known.table, require_finite, None if looking is None else partial(norms, looking))
    return known.table


def training_facts(
    model: nn.Module,
    loss: Loss,
    agreed: Agreement,
    optimizer: torch.optim.Optimizer,
    seed: int | Secure,
    scheduler: LRScheduler | None,
    settings: EngineSettings | None,
    store: Store | None,
    checkpoints: Checkpoints | None,
    telemetry: Telemetry | None,
    controlled: str,
) -> dict[str, str]:
    """The facts on which several processes must agree before the first step."""
    others: dict[str, object] = {
        "code of the loss": function_digest(loss),
        "settings of the engine": settings,
        "telemetry": telemetry,
        "clip controller": controlled,
        "kind of seed": type(seed).__name__,
        "scheduler": type(scheduler).__name__,
        "use of a store": store is not None,
        "use of checkpoints": "none"
        if checkpoints is None
        else f"each {checkpoints.every} steps, with {sorted(checkpoints.also)}",
    }
    return facts_of(model, optimizer, agreed.sha256, others)


def registered(
    store: Store, agreed: Agreement, name: str, run_state: RunState, keeper: Keeper | None, seed: int | Secure
) -> Account:
    """Register the run in ``store`` and reserve its whole plan; returns its account."""
    _check_listed(store, run_state, keeper)
    account = store.start(agreed, label=name, id=run_state.run_id)
    try:
        _check_place(store, run_state, seed)
    except PlanViolation:
        account.give_back()
        raise
    return account


def _check_listed(store: Store, run_state: RunState, keeper: Keeper | None) -> None:
    """Check that the store lists the releases of earlier processes of this run. (The last may be missing: it is
    recorded beside the checkpoints first.)"""
    releases = None if keeper is None else keeper.releases
    written = 0 if releases is None else releases.steps
    listed = {entry.id: entry.released.steps for entry in store.entries()}.get(run_state.run_id)
    if written and (listed is None or listed < written - 1):
        raise PlanViolation(
            f"a store must list what its run has released, got {listed or 0} of {written} steps. It is another "
            "one, or an older copy put back, which has forgotten the runs registered since: put back the newest"
        )


def _check_place(store: Store, run_state: RunState, seed: int | Secure) -> None:
    """Check that the run has its position in the store: with a seed, another run at that position would draw
    the same noise."""
    ids, place = [entry.id for entry in store.entries()], run_state.place
    if place is None:
        return
    if ids.index(run_state.run_id) < place:
        raise PlanViolation(
            f"a store must list the runs before this one, {place} of them, got {ids.index(run_state.run_id)}. It "
            "is another one, or an older copy put back: put back the newest"
        )
    if ids[place] != run_state.run_id and not isinstance(seed, Secure):
        raise PlanViolation(
            "runs of one store that have seeds must be registered one after another, got another one where this "
            "one was to be. Both would have its noise: begin this one again, without its checkpoints"
        )
