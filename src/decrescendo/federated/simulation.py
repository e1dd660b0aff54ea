"""A federated run in one process: a million clients of few records, whole cohorts at once."""

import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from decrescendo.accounting.epsilon_curve import EpsilonCurve
from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import REPLAYED, assumed
from decrescendo.base.rng import Secure, SecureStream, Seeds, Streams
from decrescendo.clipping import ClippedSum, EngineSettings, Loss, Telemetry
from decrescendo.errors import InvalidType, InvalidValue, check_instance
from decrescendo.federated.clients import Clients
from decrescendo.federated.cohort import CohortSum
from decrescendo.federated.messages import Round
from decrescendo.federated.outcome import Outcome
from decrescendo.federated.placement import Placement
from decrescendo.federated.readings import readings_of
from decrescendo.federated.rounds import OWN_NOISE, REPLIES, SUMS
from decrescendo.federated.server import Server
from decrescendo.federated.server_checks import check_unit
from decrescendo.federated.update import LocalSteps, with_share
from decrescendo.plans.plan import Plan
from decrescendo.training.loop.progress import Callback, Progress, callbacks_of, ends
from decrescendo.training.loop.schedulers import Scheduler
from decrescendo.training.steering.controller import ClipController
from decrescendo.training.store import Store

# Whether a client does not answer, from the round's number and its own.
Dropouts = Callable[[int, int], bool]
DROPOUTS_APART = assumed("own-dropouts")


def client_streams(seed: int | SecureStream, client: int) -> Streams | SecureStream:
    """The secret streams of one simulated client; a deployed one has a seed of its own instead.

    >>> client_streams(0, 1) == client_streams(0, 2)
    False
    """
    if isinstance(seed, SecureStream):
        return seed.child(f"client {client}")
    return Streams(seed).child(0).child(client)


def round_stream(seed: int | SecureStream, number: int) -> np.random.Generator | SecureStream:
    """Where the random numbers that the model draws itself (dropout) come from, in one round.

    Of each round its own, so that a run that goes on from a journal needs no state of it.

    >>> round_stream(0, 1).integers(9) == round_stream(0, 1).integers(9)
    np.True_
    """
    if isinstance(seed, SecureStream):
        return seed.child(f"model, round {number}")
    return Streams(seed).child(number).numpy("model")


def simulate(
    model: nn.Module,
    loss: Loss,
    clients: Clients,
    plan: Plan | ClipController,
    optimizer: torch.optim.Optimizer,
    *,
    seed: int | Secure,
    placement: Placement,
    scheduler: Scheduler | None = None,
    local: LocalSteps | None = None,
    dropouts: Dropouts | None = None,
    name: str = "",
    journal: str | os.PathLike[str] | None = None,
    store: Store | None = None,
    callback: Callback | Sequence[Callback] | None = None,
    settings: EngineSettings | None = None,
    telemetry: Telemetry | None = None,
) -> Outcome:
    """Train ``model`` in place by ``plan`` over simulated clients: what `Server` does, without messages.

    Args:
        model, plan, optimizer, scheduler, name, journal, store, telemetry: as in `Server`.
        loss: ``loss(model, batch)`` returns one loss a record, of that record alone; a client's loss is their mean.
            (A loss that looks at several records of a client sees padding here, repeats of the client's first record,
            and none on a deployed client: the weights differ.)
        clients: as many as the plan's ``dataset_size``.
        seed: `Secure()`, or a whole number >= 0; the streams "sampling" and "noise" of the server, all clients'
            (`client_streams`), and the model's own (`round_stream`; torch's global generators are neither read nor
            moved). Who knows it knows all noise.
        placement: in DISTRIBUTED and LOCAL each member's noise is drawn from its own stream, as a deployed client
            would; that is slow. The models of DISTRIBUTED have the same law as those of CENTRAL, so simulate CENTRAL
            to study them; what LOCAL costs cannot be had cheaper.
        local: ``None`` for one gradient a client (FedSGD), else several steps of local SGD.
        dropouts: ``dropouts(round, client)`` returns whether that client does not answer in that round; ``None`` for
            nobody. Each client is asked by itself: in "every second of the cohort" one client more changes who of all
            the others answers, which no noise hides. The list of who dropped out is in no guarantee.
        callback: called after each round with a `Progress`, as in `training.train`.
        settings: of the clipping engine, without ``gamma``; ``microbatch_size`` counts clients.

    Guarantee:
        as `Server`'s. For the same seed, survivors and records the weights are those of a `Server` that is fed with
        the replies one by one, up to rounding.

    Raises:
        InvalidValue: another number of clients than the plan's, records that are not one part a client, or a
            ``gamma`` in the settings.
        UnsupportedModel: examples that see each other (across clients), buffers or frozen parameters that training
            changes, more in the model's state dict than its parameters and buffers.

    >>> import decrescendo as dc
    >>> budget, sampling = dc.Budget(2.0, 1e-3, dc.Unit.CLIENT), dc.PoissonSampling(50, 10)
    >>> plan = dc.calibrate(budget, sampling, steps=2, privacy=[1.0, 1.0], clip=[1.0, 1.0])
    >>> model = nn.Linear(1, 1)
    >>> loss = lambda model, batch: (model(batch) - 1).square().sum(dim=1)
    >>> clients = Clients.equal(torch.ones(100, 1), records=2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> outcome = simulate(model, loss, clients, plan, optimizer, seed=0, placement=Placement.CENTRAL)
    >>> outcome.ledger == plan.ledger
    True
    """
    told = callbacks_of(callback)
    check_instance("clients", clients, Clients)
    given, (plan, readings) = plan, readings_of(plan, telemetry)
    check_unit(plan)  # before its number is compared with another kind of rows
    if clients.count != plan.sampling.dataset_size:
        raise InvalidValue(
            f"clients must be the plan's {plan.sampling.dataset_size}, got {clients.count}. "
            "The sample rate was calibrated for that number: make a plan for these clients"
        )
    members = SecureStream.fresh() if isinstance(seed, Secure) else seed
    seeds = Seeds(round_stream(members, 0))
    cohorts = CohortSum(model, loss, local, settings or EngineSettings(), seeds, readings.telemetry)
    cohorts.withhold(clients.held)
    check_unmoved = clients.unmoved()
    server = Server(
        model, given, optimizer, seed=seed, placement=placement, scheduler=scheduler, name=name,
        journal=journal, store=store, telemetry=telemetry,
    )  # fmt: skip
    _warn_if_finished(server, journal)
    spent, start = EpsilonCurve(plan.ledger, plan.budget.delta), time.monotonic()
    try:
        while not server.done:
            check_unmoved()
            opened = server.open()
            seeds.stream = round_stream(members, opened.round.number)
            present = _answering(opened.round.number, opened.cohort, dropouts)
            records = clients.records(np.array(present, dtype=np.int64)) if present else None
            clipped = cohorts.clipped_sum(records, opened.round.clip_norm)
            total = _noised(clipped, opened.round, present, members)
            server.release(total, len(present), clipped.diagnostics, clipped.extra_coordinates)
            seconds, seen = time.monotonic() - start, clipped.diagnostics
            about = (server.spent, plan.steps, seconds, seen, spent, server.read)
            clip_norm = opened.round.clip_norm if server.max_clip_norm else None
            now = Progress(*about, clip_norm=clip_norm, readings=server.telemetry)
            if ends([one(now) for one in told]):
                break
    finally:
        server.stop()  # whatever ends this, the next call may go on
    found = (clients.assumption, None if dropouts is None else DROPOUTS_APART)
    return _computed_here(server.finish(), {*cohorts.assumptions, *filter(None, found)})


def _computed_here(outcome: Outcome, found: set[Assumption]) -> Outcome:
    """An outcome of which there were no replies, with what else is assumed."""
    assumptions = {*outcome.assumptions, *found} - {REPLAYED, REPLIES, OWN_NOISE, SUMS}
    return replace(outcome, assumptions=tuple(sorted(assumptions)))


def _warn_if_finished(server: Server, journal: str | os.PathLike[str] | None) -> None:
    if server.done:
        warnings.warn(
            f"the run in {os.fspath(journal or '')!r} is finished: its outcome is returned, without a round. Name "
            "another journal for another run",
            UserWarning, stacklevel=3,
        )  # fmt: skip


def _answering(number: int, cohort: tuple[int, ...], dropouts: Dropouts | None) -> list[int]:
    """Who of the cohort answers. A rule that counts, or draws from one stream, says another thing in another order."""
    if dropouts is None:
        return list(cohort)
    try:
        away: dict[int, object] = {client: dropouts(number, client) for client in cohort}
    except TypeError as error:
        raise InvalidType(f"dropouts must work as dropouts(round, client), for one client, got: {error}") from error
    for client in reversed(cohort):
        if not isinstance(away[client], (bool, np.bool_)):
            raise InvalidType(
                f"dropouts must return True or False for one client, got {type(away[client]).__name__}. It is called "
                "as dropouts(round, client), for each of the cohort"
            )
        if dropouts(number, client) != away[client]:
            raise InvalidValue(
                f"dropouts must say of each client by itself whether it answers, got two answers for client {client} "
                f"in round {number}. Let it follow from the two numbers: random.Random(f'{{round}} {{client}}')"
            )
    return [client for client in cohort if not away[client]]


def _noised(clipped: ClippedSum, asked: Round, present: list[int], seed: int | SecureStream) -> dict[str, Tensor]:
    """The sum with the noise that its members have added themselves."""
    if asked.share_std == 0:
        return dict(clipped.gradients)
    total = {name: value.cpu().double() for name, value in clipped.gradients.items()}
    nothing = {name: torch.zeros_like(value) for name, value in total.items()}
    for client in present:
        for name, noise in with_share(nothing, asked, client_streams(seed, client)).items():
            total[name] += noise
    return total
