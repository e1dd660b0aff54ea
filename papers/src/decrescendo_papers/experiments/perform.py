"""One spec becomes one result: calibrate, train, test. Nothing here is written to disk.

Longer than most files: each kind of run is one path from a spec to a result.
"""

import functools
import math
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from decrescendo import Budget, Plan, PoissonSampling, Run, Streams, Unit, accounting, calibrate
from decrescendo.accounting import Accountant
from decrescendo.base import Seeds
from decrescendo.clipping import Engine, EngineSettings
from decrescendo.errors import ImpossibleBudget, InvalidValue
from decrescendo.optim import averaged
from decrescendo.plans import schedule_curves
from decrescendo.training import (
    Progress,
    accuracy,
    cross_entropy,
    decay_scheduler,
    fit,
    make_optimizer,
    mean_loss,
    rows,
    versions,
)
from decrescendo_papers.data import Dataset
from decrescendo_papers.data.splits import published_order
from decrescendo_papers.experiments.over_clients import fit_clients
from decrescendo_papers.experiments.pretrain import check_start, load_pretrained
from decrescendo_papers.experiments.results import REVISION, Result
from decrescendo_papers.experiments.spec import Spec
from decrescendo_papers.experiments.stand_ins import load_stand_in
from decrescendo_papers.experiments.stopped import until_spent
from decrescendo_papers.experiments.tasks import find_task

Tick = Callable[[int], None]  # steps taken since the last call


def rows_of(spec: Spec) -> int:
    """Number N of rows that ``spec`` trains on.

    Raises:
        InvalidValue: more than the task has.
    """
    rows = find_task(spec.task).rows
    if spec.rows > rows:
        raise InvalidValue(f"rows must be at most the {rows} of {spec.task}, got rows={spec.rows}")
    return spec.rows or rows


def units_of(spec: Spec) -> int:
    """How many units of privacy ``spec`` trains on: rows, or clients.

    Raises:
        InvalidValue: clients of so many records do not share the rows evenly.
    """
    rows, each = rows_of(spec), max(spec.records, 1)
    if rows % each:
        raise InvalidValue(f"records must divide the {rows} rows of {spec.task}, got records={each}")
    return rows // each


def accountant_of(spec: Spec) -> Accountant:
    """Whose word the noise of ``spec`` is calibrated by."""
    if spec.accountant == "zcdp":
        batches = round(units_of(spec) / spec.batch)
        return accounting.Zcdp(batches_per_epoch=max(1, batches))
    known: dict[str, Accountant] = {
        "pld": accounting.Pld(),
        "clt": accounting.GdpClt(),
        "tcdp": accounting.Tcdp(),
    }
    return known[spec.accountant]


@functools.lru_cache(maxsize=64)
def _plan(spec: Spec) -> Plan:
    sampling = PoissonSampling(units_of(spec), spec.batch)
    unit = Unit.CLIENT if spec.records else Unit.EXAMPLE
    if spec.noise or spec.noise_decay:
        return until_spent(spec, Budget(spec.epsilon, spec.delta, unit), sampling, accountant_of(spec))
    epochs = max(1, round(spec.steps * sampling.sample_rate))
    privacy, clip = schedule_curves(spec.method, clip=spec.clip, rho_mu=spec.rho_mu, rho_c=spec.rho_c, epochs=epochs)
    return calibrate(
        Budget(spec.epsilon, spec.delta, unit), sampling, steps=spec.steps, privacy=privacy, clip=clip,
        accountant=accountant_of(spec),
    )  # fmt: skip


def plan_of(spec: Spec) -> Plan:
    """The plan of a private spec; seeds share it.

    Raises:
        ImpossibleBudget: the accountant's theorem does not reach this budget.
    """
    return _plan(spec.seeded(0))


@functools.lru_cache(maxsize=2)
def data_of(task: str, stand_in: str = "") -> Dataset:
    """The task's own data, or the stand-in as many rows long; kept for the next run on the same."""
    return load_stand_in(stand_in, find_task(task)) if stand_in else find_task(task).load()


def chosen_rows(spec: Spec, data: Dataset) -> Dataset:
    """``data`` with the train rows that ``spec`` trains on; runs with one seed and one number of rows share them."""
    if not spec.rows:
        return data
    drawn = published_order(f"{spec.task} rows {spec.seed}", len(data))[: rows_of(spec)]
    inputs, targets = data.batch(torch.from_numpy(drawn))
    return replace(data, train_inputs=inputs, train_targets=targets)


def perform(
    spec: Spec, *, device: str = "cpu", tick: Tick | None = None, engine: EngineSettings | None = None
) -> Result:
    """Run ``spec`` and measure it on the task's public test data.

    Args:
        spec: the run.
        device: of the model; batches are moved to it.
        tick: called with the number of steps taken since its last call.
        engine: how the clipping engine works; for measurements of its speed.
    """
    if spec.start:
        check_start(spec)
    if spec.private:
        try:
            plan_of(spec)
        except ImpossibleBudget as error:
            return Result(spec, refused=str(error), commit=commit(), revision=REVISION)
    data, model = chosen_rows(spec, data_of(spec.task, spec.stand_in)), fresh_model(spec, device)
    # What weights from public data score before a row is trained on: the rest is what the budget bought.
    before = {"start_accuracy": accuracy(model, *data.test)} if spec.start else {}
    if spec.private:
        result = _private(spec, data, model, device, tick, engine)
    else:
        result = _plain(spec, data, model, device, tick)
    return replace(result, metrics={**result.metrics, **before}, commit=commit(), revision=REVISION)


def fresh_model(spec: Spec, device: str = "cpu") -> nn.Module:
    """The model that a run of ``spec`` starts with."""
    task = find_task(spec.task)
    model = task.build(spec.model, spec.seed)
    if spec.start:
        load_pretrained(model, spec)
    return model.to(device)


def train_by(
    spec: Spec, plan: Plan, data: Dataset, model: nn.Module, after_step: Callable[[int], None] | None = None,
    engine: EngineSettings | None = None,
) -> tuple[Run, nn.Module]:  # fmt: skip
    """Train ``model`` by ``plan`` with the optimiser, rate, decay and averaging of ``spec``, over clients if any.

    Returns:
        The run, and the model to test: the average where there is one.
    """

    def stepped(state: Progress) -> None:
        if after_step is not None:
            after_step(state.step)

    if spec.records:
        return fit_clients(spec, plan, data, model, stepped)
    return fit(
        model, cross_entropy, data.train, plan, seed=spec.seed, optimizer=spec.optimizer,
        learning_rate=spec.learning_rate, momentum=spec.momentum, lr_decay=spec.lr_decay, averaging=spec.averaging,
        callback=stepped, settings=engine,
    )  # fmt: skip


def _private(
    spec: Spec, data: Dataset, model: nn.Module, device: str, tick: Tick | None, engine: EngineSettings | None
) -> Result:
    plan, trace = plan_of(spec), Trace(spec, data, model)

    def after_step(step: int) -> None:
        trace(step)
        _count(tick, step, plan.steps)

    run, tested = train_by(spec, plan, data, model, after_step, engine)
    guarantee = run.guarantee
    lower = guarantee.epsilon if guarantee.epsilon_lower is None else guarantee.epsilon_lower
    noise, clip = plan.schedule.noise_multiplier, plan.schedule.clip_norm
    return Result(
        spec,
        metrics=scores(spec, tested, data),
        claimed=plan.guarantee.epsilon,
        certified=(lower, guarantee.epsilon),
        clt=accounting.GdpClt().epsilon(run.ledger, guarantee.delta).value,
        noise_multiplier=(float(noise[0]), float(noise[-1])),
        clip_norm=(float(clip[0]), float(clip[-1])),
        trace=trace.series,
        seconds=run.seconds,
        machine=machine(device),
        steps=plan.steps if spec.noise else 0,
    )


def _plain(spec: Spec, data: Dataset, model: nn.Module, device: str, tick: Tick | None) -> Result:
    """The same batches and initial weights as a private run, without clipping and noise."""
    optimizer = make_optimizer(model, spec.optimizer, spec.learning_rate, spec.momentum)
    scheduler = decay_scheduler(optimizer, spec.lr_decay, spec.steps)
    average, trace = _average(spec, model), Trace(spec, data, model)
    table, sampling = rows(data.train), PoissonSampling(len(data), spec.batch)
    start = time.monotonic()
    for step, chosen in enumerate(sampling.batches(spec.steps, Streams(spec.seed).numpy("sampling")), start=1):
        if len(chosen):
            batch = tuple(part.to(device) for part in table.take(chosen))
            optimizer.zero_grad()
            (cross_entropy(model, batch).sum() / spec.batch).backward()
            optimizer.step()
        scheduler.step()
        if average is not None:
            average.update_parameters(model)
        trace(step)
        _count(tick, step, spec.steps)
    return Result(
        spec,
        metrics=scores(spec, average or model, data),
        trace=trace.series,
        seconds=time.monotonic() - start,
        machine=machine(device),
    )


def scores(spec: Spec, model: nn.Module, data: Dataset) -> dict[str, float]:
    """Test accuracy, and for tasks that say so the mean loss on the rows trained on."""
    found = {"test_accuracy": accuracy(model, *data.test)}
    if find_task(spec.task).train_loss:
        found["train_loss"] = mean_loss(model, *data.train)
    return found


def _average(spec: Spec, model: nn.Module) -> AveragedModel | None:
    return averaged(model, decay=spec.averaging) if spec.averaging else None


def _count(tick: Tick | None, step: int, steps: int, every: int = 20) -> None:
    if tick is not None and (step % every == 0 or step == steps):
        tick(every if step % every == 0 else step % every)


def machine(device: str) -> dict[str, str]:
    """What a result was computed on: device, threads, versions; no names of machines."""
    kind = torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()
    return {"device": device, "kind": kind, "threads": str(torch.get_num_threads()), **versions()}


@functools.cache
def commit() -> str:
    """Of the checkout that this package lies in: twelve digits, and "+" where a file that git follows was changed,
    other than results; empty where there is none."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
            )
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    found = git("rev-parse", "--short=12", "HEAD")
    if found is None or git("ls-files", "--error-unmatch", __file__) is None:
        return ""
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)papers/results")
    return found + "+" * bool(changed)


class Trace:
    """Mean length of the gradients of one thousand training examples, not clipped, and test accuracy, as training goes:
    at steps evenly spread, and at 1, 2, 4, .. before the first of them.

    The lengths are raw private data, covered by no guarantee; they are recorded for published data sets only.
    """

    def __init__(self, spec: Spec, data: Dataset, model: nn.Module, examples: int = 1000) -> None:
        self.series: dict[str, list[float]] = {}
        self._data, self._model = data, model
        self._steps, self._batch = set[int](), tuple[torch.Tensor, ...]()
        self._engine: Engine | None = None
        if spec.trace:
            self.series = {"step": [], "gradient_norm": [], "test_accuracy": []}
            self._steps = {max(1, round(spec.steps * i / spec.trace)) for i in range(1, spec.trace + 1)}
            first = min(self._steps)
            self._steps |= {2**power for power in range(first.bit_length()) if 2**power < first}
            device = next(model.parameters()).device
            self._batch = tuple(part[:examples].to(device) for part in data.train)
            # A stream of its own: what is looked at must not move what is trained.
            self._engine = Engine(model, cross_entropy, seeds=Seeds.of(spec.seed, "trace"))

    def __call__(self, step: int) -> None:
        if self._engine is None or step not in self._steps:
            return
        length = float(self._engine.per_example_norms(self._batch).mean())
        if math.isfinite(length):  # of a model that diverged there is nothing to draw
            self.series["step"].append(float(step))
            self.series["gradient_norm"].append(length)
            self.series["test_accuracy"].append(accuracy(self._model, *self._data.test))
