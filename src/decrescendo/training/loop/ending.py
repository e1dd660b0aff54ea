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
from decrescendo.training.loop.source import Source
from decrescendo.training.persistence.life import Life
from decrescendo.training.processes.world import World
from decrescendo.training.run import History, Run
from decrescendo.training.statement import SECURE, SEEDED, Provenance
from decrescendo.training.store import Account


def described(optimizer: torch.optim.Optimizer) -> str:
    """Its settings, of several those of each, as a run begins or goes on, of its groups where they have several; rates
    are those before any scheduler's."""
    if len(parts := parts_of(optimizer)) > 1:
        return " + ".join(map(described, parts))
    (optimizer,) = parts
    shown: list[str] = []
    for key in optimizer.defaults:
        values = [group.get(f"initial_{key}", group.get(key)) for group in optimizer.param_groups]
        if all(isinstance(value, int | float) for value in values) and any(values):
            shown.append(f"{key}=" + "/".join(dict.fromkeys(f"{value:g}" for value in values)))
    return f"{type(optimizer).__name__}({', '.join(shown)})"


def described_model(model: nn.Module, trained: Mapping[str, int]) -> str:
    """Its class, and how many numbers of it were trained: ``trained`` has those of each parameter."""
    kept = dict(model.named_parameters()).keys()
    count = sum(size for name, size in trained.items() if name in kept)
    return f"{type(model).__name__}, {count} trained parameters"


def assumed_of_clipping(engine: Clipper, world: World) -> tuple[Assumption, ...]:
    """What the engine has assumed of the model's passes, and what must be of one, or of a world, of the user's."""
    own = (assumed("rows-own-clipper", type(engine).__name__),)
    found = engine.assumptions if isinstance(engine, Engine) else own
    if (kind := type(world)).__module__.split(".")[0] != "decrescendo":
        found = (*found, assumed("own-world", kind.__name__))
    return found


def provenance_of(
    life: Life,
    streams: RunStreams,
    account: Account | None,
    assumptions: tuple[Assumption, ...],
    *,
    model: str,
    optimizer: str,
    device: torch.device,
    engine: Clipper,
    processes: int,
) -> Provenance:
    """How the run was trained, over all its lives."""
    return Provenance(
        random=SECURE if isinstance(streams.sampling, SecureStream) else SEEDED,
        resumed=life.resumed,
        model=model,
        optimizer=optimizer,
        device=f"{device}, {processes} processes" if processes > 1 else str(device),
        accumulate=life.accumulate,
        passes=engine.passes if isinstance(engine, Engine) else "",
        gamma=life.gamma,
        telemetry="" if life.telemetry is None else str(life.telemetry),
        account="" if account is None else f"{account.store.dataset}, run {account.id}",
        assumptions=assumptions,
    )


def run_of(source: Source, life: Life, weights: Mapping[str, Tensor], provenance: Provenance) -> Run:
    """The run of the steps that ``life`` has taken."""
    columns, ledger = life.columns, Ledger(life.releases)
    return Run(
        plan=source.agreed,
        ledger=ledger,
        guarantee=source.guarantee(ledger),
        weights=weights,
        seconds=life.seconds,
        diagnostics=History(
            examples=tuple(d.examples for d in columns),
            nonfinite=tuple(d.nonfinite for d in columns),
            clipped=tuple(d.clipped for d in columns),
            loss_sum=tuple(d.loss_sum for d in columns),
        ),
        clip_norm=source.decided_clip_norm[: ledger.steps],
        stopped=source.ended,
        provenance=provenance,
        telemetry=tuple(life.readings),
    )
