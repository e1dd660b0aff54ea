"""What a training does around the step that the engine's page measures: draws and makes the batch, compares weights
between steps, keeps the ledger.

    PYTHONPATH=. python -m benchmarks.engine.around      # writes results/engine/around.json, in ten minutes

CPU time of one thread. In each step `Trainer` takes its step, and the same batch goes through clipped sum, `privatise`
and `apply` alone, on a copy of the model; the order changes from step to step.
"""

import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

import decrescendo as dc
from benchmarks import measured_at
from benchmarks.engine.contenders.base import sgd
from benchmarks.engine.machine import machine
from benchmarks.engine.workloads import Workload, workloads
from decrescendo.base.rng import SecureStream
from decrescendo.optim import apply
from decrescendo.optim.noise import privatise

RESULT = Path(__file__).resolve().parents[2] / "results" / "engine" / "around.json"
STEPS, WARM_UP = 40, 12
T = TypeVar("T")


def added(workload: Workload) -> float:
    """Median over steps of what `Trainer` adds, in parts of the step alone. Half of twice the batch is drawn."""
    device = torch.device("cpu")
    model, data = workload.model(device), tuple(torch.cat([part, part]) for part in workload.batch(device))
    sampling = dc.PoissonSampling(len(data[0]), workload.rows)
    plan = dc.calibrate(dc.Budget(8.0, 1e-5), sampling, steps=STEPS, clip=workload.clip_norm)
    alone = copy.deepcopy(model)
    engine, optimizer, stream = dc.clipping.Engine(alone, workload.loss), sgd(alone), SecureStream.fresh()
    trainer = dc.Trainer(model, workload.loss, plan, sgd(model), seed=dc.Secure())
    batches, found = iter(trainer.batches(data)), list[float]()

    for step in range(STEPS):
        drawn, batch = _seconds(lambda: next(batches))
        ways: list[Callable[[], object]] = [
            lambda batch=batch: trainer.step(batch),
            lambda batch=batch: apply(
                privatise(engine.clipped_sum(batch, workload.clip_norm), 1.0, sampling, stream),
                alone,
                optimizer,
            ),
        ]
        taken = {at: _seconds(ways[at])[0] for at in ((0, 1) if step % 2 else (1, 0))}
        found.append((drawn + taken[0] - taken[1]) / taken[1])
    return statistics.median(found[WARM_UP:])


def _seconds(work: Callable[[], T]) -> tuple[float, T]:
    began = time.process_time()
    done = work()
    return time.process_time() - began, done


def main() -> None:
    """Measure all workloads of the page that are counted."""
    torch.set_num_threads(1)
    found = {
        name: round(added(workload), 4)
        for name, workload in workloads(torch.device("cpu")).items()
        if not workload.extra
    }
    about = {**measured_at(), "machine": machine(torch.device("cpu")), "added": found}
    RESULT.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
