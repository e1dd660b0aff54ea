"""Builds the `Run` at the end of a training: its weights, guarantee and how it was trained (`Provenance`)."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from decrescendo.accounting.ledger import Ledger
from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import assumed
from decrescendo.base.rng import SecureStream
from decrescendo.clipping import Clipper, Engine
from decrescendo.optim.several import parts_of
from decrescendo.training.loop.drawing import RunStreams
from decrescendo.training.persistence.run_state import RunState
from decrescendo.training.processes.world import World
from decrescendo.training.run import History, Run
from decrescendo.training.statement import SECURE, SEEDED, Provenance
from decrescendo.training.steering.source import Source
from decrescendo.training.store import Account


def describe_optimizer(optimizer: torch.optim.Optimizer, controlled: str = "") -> str:
    """The optimizer's class and its nonzero numeric settings, as text; and what a `ClipController` of these settings
    does to the gradients before.

    Parameter groups with different values are joined by "/", combined optimizers by " + ". Learning rates are
    the initial ones, before any scheduler.
    """
    if "rescale_to_unit_norm" in controlled:
        return f"{describe_optimizer(optimizer)}, on mean gradients rescaled to unit norm"
    if len(parts := parts_of(optimizer)) > 1:
        return " + ".join(map(describe_optimizer, parts))
    (optimizer,) = parts
    shown: list[str] = []
    for key in optimizer.defaults:
        values = [group.get(f"initial_{key}", group.get(key)) for group in optimizer.param_groups]
        # (A setting that is zero or False in all groups is off, and left out; True is shown as 1.)
        if all(isinstance(value, int | float) for value in values) and any(values):
            shown.append(f"{key}=" + "/".join(dict.fromkeys(f"{value:g}" for value in values)))
    return f"{type(optimizer).__name__}({', '.join(shown)})"


def describe_model(model: nn.Module, trained: Mapping[str, int]) -> str:
    """The model's class and its number of trained parameters; ``trained`` maps parameter names to sizes."""
    names = dict(model.named_parameters()).keys()
    count = sum(size for name, size in trained.items() if name in names)
    return f"{type(model).__name__}, {count} trained parameters"


def assumed_of_clipping(engine: Clipper, world: World) -> tuple[Assumption, ...]:
    """The engine's assumptions about the model's passes, plus those for a user-defined clipper or `World`."""
    own = (assumed("rows-own-clipper", type(engine).__name__),)
    found = engine.assumptions if isinstance(engine, Engine) else own
    if (kind := type(world)).__module__.split(".")[0] != "decrescendo":
        found = (*found, assumed("own-world", kind.__name__))
    return found


def provenance_of(
    run_state: RunState,
    streams: RunStreams,
    account: Account | None,
    assumptions: tuple[Assumption, ...],
    *,
    model: str,
    optimizer: str,
    device: torch.device,
    processes: int,
) -> Provenance:
    """How the run was trained, across all restarts (`RunState`)."""
    return Provenance(
        random=SECURE if isinstance(streams.sampling, SecureStream) else SEEDED,
        resumed=run_state.resumed,
        model=model,
        optimizer=optimizer,
        device=f"{device}, {processes} processes" if processes > 1 else str(device),
        accumulate=run_state.accumulate,
        gamma=run_state.gamma,
        telemetry="" if run_state.telemetry is None else str(run_state.telemetry),
        account="" if account is None else f"{account.store.dataset}, run {account.id}",
        assumptions=assumptions,
    )


def run_of(source: Source, run_state: RunState, weights: Mapping[str, Tensor], provenance: Provenance) -> Run:
    """The `Run` whose steps and releases are those of ``run_state``."""
    diagnostics, ledger = run_state.diagnostics, Ledger(run_state.releases)
    return Run(
        plan=source.agreed,
        ledger=ledger,
        guarantee=source.guarantee(ledger),
        weights=weights,
        seconds=run_state.seconds,
        diagnostics=History(
            examples=tuple(d.examples for d in diagnostics),
            nonfinite=tuple(d.nonfinite for d in diagnostics),
            clipped=tuple(d.clipped for d in diagnostics),
            loss_sum=tuple(d.loss_sum for d in diagnostics),
        ),
        clip_norm=source.chosen_clip_norms[: ledger.steps],
        stopped=source.ended,
        provenance=provenance,
        telemetry=tuple(run_state.readings),
    )
