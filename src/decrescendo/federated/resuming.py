"""What a journal says of a federated run, written and read; what is read is checked: it may be of anything."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from decrescendo.accounting import Release
from decrescendo.base.assumption import Assumption, read_assumption
from decrescendo.base.assumptions import assumed
from decrescendo.errors import FileRefused, PlanViolation, check_integer
from decrescendo.federated.books import Books
from decrescendo.federated.readings import NO_READINGS, Readings
from decrescendo.federated.replies import Replies
from decrescendo.optim.noise import NoisyMean
from decrescendo.training.loop.drawing import RunStreams
from decrescendo.training.persistence.checkpoint.streams import stream_at, stream_state
from decrescendo.training.run import cpu_weights

SAME_ORDER = assumed("same-order")


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where a run was; ``noisy``: what it has released last, which has not moved the model yet."""

    releases: list[Release]
    attendance: list[tuple[int, int]]
    one_by_one: bool
    assumptions: tuple[Assumption, ...]
    noisy: NoisyMean | None


def check_of_run(state: Mapping[str, Any], run: str, *, stored: bool) -> str:
    """The run's name in the store; ``stored``: whether there is one now.

    Raises:
        FileRefused: the journal is of another run.
        PlanViolation: there was a store and is none now, or the other way round.
    """
    if state.get("run") != run:
        raise FileRefused(
            "the journal must be of this run (plan, placement and name), got another's. "
            "Give each run a folder of its own"
        )
    id = str(state.get("account", ""))
    if bool(id) != stored:
        raise PlanViolation(
            "a run must go on with the store that it began with, or without one as it began, got "
            f"{'none' if id else 'one'}"
        )
    return id


def state_of(
    run: str, books: Books, replies: Replies, model: nn.Module, optimizer: torch.optim.Optimizer,
    scheduler: LRScheduler | None, streams: RunStreams, assumptions: tuple[Assumption, ...], noisy: NoisyMean | None,
    readings: Readings,
) -> dict[str, Any]:  # fmt: skip
    """All that a run needs to go on; as secret as the seed."""
    correlated: dict[str, Any] = {}
    if streams.correlated is not None and streams.grouping is not None:
        correlated = {"grouping": stream_state(streams.grouping), "correlated": streams.correlated.state({})}
    return {
        "run": run,
        "spent": books.spent,
        "account": books.id,
        "attendance": books.attendance,
        "one_by_one": replies.one_by_one,
        "optimizer": type(optimizer).__name__,
        "optimizer_state": optimizer.state_dict(),
        "scheduler": None if scheduler is None else scheduler.state_dict(),
        "sampling": stream_state(streams.sampling),
        "noise": stream_state(streams.noise),
        **correlated,
        "assumptions": [assumption.written() for assumption in assumptions],
        "weights": cpu_weights(model, begun=True),
        "noisy": None if noisy is None else dict(noisy.gradients),
        "noise_std": None if noisy is None else noisy.noise_std,
        "extra_coordinates": None if noisy is None else noisy.extra_coordinates,
        "telemetry": readings.state(),
    }


def resumed(
    state: Mapping[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: LRScheduler | None,
    streams: RunStreams, release_of: Callable[[int], Release], readings: Readings, *, shows_replies: bool,
) -> Resumed:  # fmt: skip
    """Have model, optimiser, scheduler and streams where `state_of` found them; say where the run was. Called inside of
    `fitting`."""
    kind = type(optimizer).__name__
    if state["optimizer"] != kind:
        raise FileRefused(f"the journal was written with the optimiser {state['optimizer']}, got {kind}")
    releases = [release_of(index) for index in range(check_integer("spent", state["spent"]))]
    attendance = [(int(members), int(replies)) for members, replies in state["attendance"]]
    _check_attendance(attendance, len(releases) if shows_replies else 0)
    assumptions = tuple(map(read_assumption, _list_of(state["assumptions"])))
    model.load_state_dict(state["weights"])
    optimizer.load_state_dict(state["optimizer_state"])
    kept: Any = state["scheduler"]
    if (kept is None) is not (scheduler is None):
        raise FileRefused(
            f"the journal was written {'without' if kept is None else 'with'} a scheduler, got "
            f"{'none' if scheduler is None else type(scheduler).__name__}. Go on as the run began"
        )
    if scheduler is not None:
        scheduler.load_state_dict(kept)
    streams.sampling = stream_at(streams.sampling, state["sampling"])
    streams.noise = stream_at(streams.noise, state["noise"])
    if streams.correlated is not None and streams.grouping is not None:
        streams.grouping = stream_at(streams.grouping, state["grouping"])
        streams.correlated.load_state(state["correlated"], len(releases))
        assumptions = (*assumptions, SAME_ORDER) if releases else assumptions
    readings.go_on(state.get("telemetry", NO_READINGS), len(releases))
    noisy = None
    if state["noisy"] is not None:
        extra = state.get("extra_coordinates")
        noisy = NoisyMean(state["noisy"], releases[-1], state["noise_std"], extra)
    return Resumed(releases, attendance, bool(state["one_by_one"]), assumptions, noisy)


def _check_attendance(attendance: list[tuple[int, int]], rounds: int) -> None:
    """Of each round spent where replies are seen; what is left out would count as never seen."""
    if len(attendance) != rounds:
        raise FileRefused(f"the journal must have the attendance of {rounds} rounds, got {len(attendance)}")
    for members, replies in attendance:
        if not 0 <= replies <= members:
            raise FileRefused(f"a round must have 0 <= replies <= members, got {replies} of {members} in the journal")


def _list_of(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"a {type(value).__name__} where a list must be")
    return cast("list[object]", value)
