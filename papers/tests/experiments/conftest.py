"""A toy task whose own data cannot be opened, a public stand-in for it, and an executor in this process."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from decrescendo.training import initialised
from decrescendo_papers.data import Dataset
from decrescendo_papers.experiments import stand_ins, tasks
from decrescendo_papers.experiments.execute import Outcome, missing
from decrescendo_papers.experiments.perform import data_of
from decrescendo_papers.experiments.results import Result, save
from decrescendo_papers.experiments.search import Run
from decrescendo_papers.experiments.spec import Spec
from decrescendo_papers.experiments.stand_ins import StandIn
from decrescendo_papers.experiments.tasks import Task

ROWS = 60


def toy_data(seed: int, rows: int = ROWS) -> Dataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 3, generator=generator)
    targets = (inputs[:, 0] > 0).long()
    return Dataset("toy", inputs, targets, inputs[:20], targets[:20], classes=2)


def closed() -> Dataset:
    raise AssertionError("the private data were opened")


def toy_task(load: object = closed) -> Task:
    def build(activation: type[nn.Module]) -> tasks.Build:
        return lambda seed: initialised(lambda: nn.Sequential(nn.Linear(3, 4), activation(), nn.Linear(4, 2)), seed)

    models = {"paper": build(nn.ReLU), "tanh": build(nn.Tanh)}
    return Task("toy", load, models, 1.0, 0.5, 12, 1, ROWS, "here", images=False)  # type: ignore[arg-type]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy task, with private data that raise, and its stand-in."""
    data_of.cache_clear()
    monkeypatch.setitem(tasks.TASKS, "toy", toy_task())
    stand_in = StandIn("toy-public", lambda: toy_data(1, 75), ("toy",), "drawn here, public")
    monkeypatch.setitem(stand_ins.STAND_INS, "toy-public", stand_in)


def pretend(spec: Spec) -> Result:
    """A smooth score in place of a training, the best at a clip norm and a stride of one; large ones are refused."""
    if spec.clip > 1.8:
        return Result(spec, refused="too large")
    away = abs(math.log(spec.clip)) + abs(math.log(spec.learning_rate * spec.clip)) + 0.01 * spec.seed
    return Result(spec, metrics={"test_accuracy": math.exp(-away)}, seconds=6.0)


def spoil(path: Path, spec: Spec) -> None:
    """Damage the line of ``spec``."""
    lines = path.read_text().splitlines()
    (number,) = [n for n, line in enumerate(lines) if Spec.of(json.loads(line)["spec"]) == spec]
    lines[number] = lines[number].replace("0.", "1.", 1)
    path.write_text("\n".join(lines) + "\n")


def here(
    folder: Path,
    performed: list[Spec] | None = None,
    die_after: int | None = None,
    compute: Callable[[Spec], Result] = pretend,
) -> Run:
    """What `execute` does, in this process; killed after ``die_after`` runs."""
    count = 0

    def run(specs: Sequence[Spec]) -> Outcome:
        nonlocal count
        failed: dict[str, str] = {}
        for spec in missing(specs, folder):
            if count == die_after:
                raise KeyboardInterrupt
            try:
                save(folder, compute(spec))
            except ValueError as error:
                failed[spec.name] = str(error)
            count += 1
            if performed is not None:
                performed.append(spec)
        return Outcome(0, count, failed)

    return run
