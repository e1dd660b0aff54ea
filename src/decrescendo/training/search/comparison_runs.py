"""The trainings of a comparison, in parallel processes; each result is a checksummed line of one file."""

import copy
import math
import os
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from joblib import Parallel, delayed

from decrescendo.accounting import Unit
from decrescendo.base import read_whole, sealed, write_whole
from decrescendo.base.whole_file import alone_in
from decrescendo.errors import DecrescendoError, FileRefused, check_array, check_integer, check_real, within
from decrescendo.optim import averaged
from decrescendo.plans.plan import Plan
from decrescendo.training.data.rows import table_of
from decrescendo.training.loop.progress import Progress
from decrescendo.training.processes.function_digest import program_digest
from decrescendo.training.processes.world import data_facts, weight_facts
from decrescendo.training.run import versions
from decrescendo.training.search.tuning import as_many
from decrescendo.training.tasks.fitting import fit
from decrescendo.training.tasks.task import Task

FORMAT, VERSION = "decrescendo-compared-run", 1
_KEYS = {"format", "version", "about", "steps", "scores", "seconds"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The settings that all runs of a comparison share, besides their task.

    Args:
        optimizer, momentum, averaging: as in `fit`.
        points: at how many steps, evenly spread, a run is scored; the last step is one of them.
    """

    optimizer: str
    momentum: float
    averaging: float
    points: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """A run to do: its plan, seed, learning rate and how that falls."""

    name: str
    plan: Plan
    seed: int
    learning_rate: float
    lr_decay: str = "none"


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A finished run of a comparison.

    Args:
        plan: its name.
        seed: of weights, batches and noise.
        learning_rate: at the start.
        steps: after which it was scored, ascending; the last is that of the plan.
        scores: one a step, not a number where the score was not finite.
        seconds: of the training and its scores.
    """

    plan: str
    seed: int
    learning_rate: float
    steps: tuple[int, ...]
    scores: tuple[float, ...]
    seconds: float


def run_all(
    wanted: Sequence[Wanted], task: Task, settings: RunSettings, *, jobs: int, path: Path | None
) -> Iterator[ComparedRun]:
    """All wanted runs: first those found in the file ``path``, then the others as they finish and are
    written.

    Raises:
        FileRefused: a line of the file is broken.
    """
    shared = _Shared(task, settings)
    facts = {} if path is None else {"task": _task_facts(shared)}
    abouts = [
        facts | {"plan": one.plan.sha256, "seed": one.seed, "learning_rate": one.learning_rate,
                 "lr_decay": one.lr_decay} | asdict(settings)
        for one in wanted
    ]  # fmt: skip
    known = dict[str, dict[str, Any]]() if path is None else read_finished(path)
    todo: list[int] = []
    for i, (one, about) in enumerate(zip(wanted, abouts, strict=True)):
        line = known.get(sealed.digest(about))
        if line is None:
            todo.append(i)
        elif line["steps"] != (steps := _scored_at(one.plan, settings)):
            raise FileRefused(
                f"a run must be scored at the steps {steps}, got {line['steps']} in {path}. Take the line out"
            )
        else:
            yield finished(one, line)
    for i, found in _computed(shared, [(i, wanted[i]) for i in todo], jobs):
        if path is not None:
            add_finished(path, {"about": abouts[i], **found})
        yield finished(wanted[i], found)


class _Shared:
    """A task with its rows, which each process loads once."""

    def __init__(self, task: Task, settings: RunSettings) -> None:
        self.task, self.settings, self.data = task, settings, task.load()
        self.table = table_of(self.data, task.collate_fn)


def _task_facts(shared: _Shared) -> dict[str, str]:
    """Facts that identify a task; `program_digest` says what they do not see of its functions."""
    task = shared.task
    rows, _ = data_facts(shared.table)
    model = task.fresh(0, shared.data)
    program = program_digest(model, [task.loss, task.score, task.collate_fn])
    with _one_thread():
        score = task.first_score(model)
    return {
        **rows, **weight_facts(model), "model": repr(model), "engine": repr(task.engine),
        "score of seed 0 untrained": f"{score:.6g}",
        "program": program,
        **{f"version of {name}": text for name, text in versions().items()},
    }  # fmt: skip


def _computed(shared: _Shared, todo: Sequence[tuple[int, Wanted]], jobs: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """The runs in the order in which they finish; in this process if one is enough, with the same numbers."""
    if min(jobs, len(todo)) < 2:
        with _one_thread():
            for i, one in todo:
                yield i, _train(shared, one)
        return
    # Each worker gets the task once, by cloudpickle, which can send functions of a script; and the plan of each run.
    workers = Parallel(
        n_jobs=min(jobs, len(todo)), backend="loky", return_as="generator_unordered", batch_size=1,
        pre_dispatch="n_jobs", max_nbytes=None, initializer=_start, initargs=(shared.task, shared.settings),
    )  # fmt: skip
    yield from workers(delayed(_in_worker)(i, one) for i, one in todo)


_WORKER: list[_Shared] = []


def _start(task: Task, settings: RunSettings) -> None:
    torch.set_num_threads(1)
    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
    _WORKER[:] = [_Shared(task, settings)]


def _follow(parent: int) -> None:
    """End this worker if the comparison was killed: a restarted comparison would do the same run twice."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _in_worker(i: int, one: Wanted) -> tuple[int, dict[str, Any]]:
    return i, _train(_WORKER[0], one)


@contextmanager
def _one_thread() -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train(shared: _Shared, one: Wanted) -> dict[str, Any]:
    """Train and score one run; returns its steps, scores and seconds, as in the file."""
    began, task, settings, plan = time.monotonic(), shared.task, shared.settings, one.plan
    size = plan.sampling.dataset_size
    marks = set(_scored_at(plan, settings)[:-1])
    model = task.fresh(one.seed, shared.data)
    shown = averaged(model, decay=settings.averaging) if settings.averaging and marks else None
    found: list[tuple[int, float]] = []

    def look(state: Progress) -> None:
        if shown is not None:
            shown.update_parameters(model)
        if state.step in marks:
            # A copy is scored: a score may leave a model in another mode.
            looked_at = copy.deepcopy(shown.module if shown else model)
            found.append((state.step, task.first_score(looked_at)))

    _, trained = fit(
        model, task.loss, as_many(shared.table, size), plan, seed=one.seed, optimizer=settings.optimizer,
        learning_rate=one.learning_rate, momentum=settings.momentum, lr_decay=one.lr_decay,
        averaging=settings.averaging, settings=task.engine, collate_fn=task.collate_fn,
        callback=look if marks else None, people=np.arange(size) if plan.budget.unit is Unit.PERSON else None,
    )  # fmt: skip
    found.append((plan.steps, task.first_score(trained)))
    scores = [score if math.isfinite(score) else None for _, score in found]
    return {"steps": [step for step, _ in found], "scores": scores, "seconds": time.monotonic() - began}


def _scored_at(plan: Plan, settings: RunSettings) -> list[int]:
    """The steps after which a run is scored, ascending; the plan's last is one of them."""
    every = range(1, settings.points + 1)
    return sorted({max(1, round(plan.steps * i / settings.points)) for i in every} | {plan.steps})


def finished(one: Wanted, found: Mapping[str, Any]) -> ComparedRun:
    """A run from its line in the file."""
    scores = tuple(math.nan if score is None else float(score) for score in found["scores"])
    return ComparedRun(one.name, one.seed, one.learning_rate, tuple(found["steps"]), scores, float(found["seconds"]))


def add_finished(path: Path, facts: Mapping[str, Any]) -> None:
    """Append the line of a run, completely or not at all, also while another process appends to the file."""
    line = sealed.seal({"format": FORMAT, "version": VERSION, **facts}) + "\n"
    with alone_in(path.parent):
        write_whole(path, (read_whole(path) if path.exists() else b"") + line.encode())


def read_finished(path: Path) -> dict[str, dict[str, Any]]:
    """The finished runs in a file, by the digest of their inputs; empty if there is no file.

    Raises:
        FileRefused: a line is not one that was written, or of a newer version.
    """
    lines = read_whole(path).split(b"\n") if path.exists() else []
    found: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            source = f"line {number} of {path}"
            try:
                content = sealed.opened(line, source, FORMAT, VERSION, keys=_KEYS)
                _check(content, source)
            except DecrescendoError as error:
                raise FileRefused(f"{error}. Take the line out, and its run is repeated") from None
            found[sealed.digest(content["about"])] = content
    return found


def _check(content: Mapping[str, Any], source: str) -> None:
    """Check the values of a line with a right checksum: other code may have written it."""
    try:
        steps, scores = content["steps"], content["scores"]
        if not (isinstance(content["about"], dict) and isinstance(steps, list) and isinstance(scores, list)):
            raise FileRefused("steps and scores must be lists, got something else")
        check_integer("the number of scores", len(steps), at_least=1)
        for step in cast("list[object]", steps):
            check_integer("steps", step, at_least=1)
        known = [0.0 if score is None else score for score in cast("list[object]", scores)]
        check_array("scores", known, length=len(steps))
        check_real("seconds", content["seconds"], at_least=0)
    except DecrescendoError as error:
        raise FileRefused(within(f"{source} must be a finished run", error)) from None
