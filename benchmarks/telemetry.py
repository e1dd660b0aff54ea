"""A clip norm that is ten times off: do the controllers find back? And what telemetry costs in time.

    python -m benchmarks.telemetry digits           # what results/telemetry.json lacks of these tasks, then the page
    python -m benchmarks.telemetry --time           # seconds of a step with and without telemetry

Every run of a task has one certified budget, batches, steps and curve of noise; only where C begins (a tenth of, equal
to, or ten times the clip norm that was tuned on public data) and who moves it differ. The product of learning rate and
clip norm is what was tuned: the rate is divided by the factor of each step, as C only scales it. Five paired seeds.
"""

import functools
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import decrescendo as dc
from benchmarks import measured_at, words
from benchmarks.batch_curves import spread, verdict
from decrescendo.clipping import EngineSettings
from decrescendo.training import Progress, accuracy, cross_entropy
from decrescendo.training.digits import digits, digits_cnn
from decrescendo_papers.data import imdb_half, mnist
from decrescendo_papers.models import imdb_mlp, paper_cnn

ROOT = Path(__file__).resolve().parents[1]
FOUND, PAGE = ROOT / "results/telemetry.json", ROOT / "docs/reference/telemetry.md"
SEEDS = range(5)
STARTS = (0.1, 1.0, 10.0)
RULES = ("fixed", "automatic", "quantile", "clipped", "error")
GAMMA = 0.01


@dataclass(frozen=True)
class Setting:
    """One task: private data with a test half, a model from a seed, and what was tuned on public data."""

    data: Callable[[], Any]
    build: Callable[[int], nn.Module]
    epsilon: float
    batch: float
    steps: int
    clip: float
    rate: float


def _digits() -> Any:
    return digits()


def _split(load: Callable[[], Any]) -> Callable[[], Any]:
    def halves() -> Any:
        data = load()
        return data.train, data.test

    return halves


SETTINGS: dict[str, Setting] = {
    "digits": Setting(_digits, lambda seed: digits_cnn(seed, nn.Tanh), 2.0, 256, 200, 1.0, 1.5),
    "MNIST 0.4": Setting(_split(mnist), paper_cnn, 0.4, 300, 1_000, 1.5, 0.15),
    "MNIST 1.2": Setting(_split(mnist), paper_cnn, 1.2, 300, 1_000, 1.5, 0.15),
    "IMDB 1": Setting(_split(imdb_half), imdb_mlp, 1.0, 500, 500, 1.0, 3.0),
    "IMDB 3": Setting(_split(imdb_half), imdb_mlp, 3.0, 500, 500, 1.0, 3.0),
}


@functools.cache
def plan_for(task: str, rows: int, start: float) -> dc.Plan:
    """The calibrated plan: the noise falls, the clip norm begins ``start`` times where it was tuned."""
    setting = SETTINGS[task]
    return dc.calibrate(
        dc.Budget(setting.epsilon, 1 / (10 * rows)), dc.PoissonSampling(rows, setting.batch), steps=setting.steps,
        privacy=dc.curves.growing_mu(1.25), clip=dc.curves.constant(start * setting.clip),
    )  # fmt: skip


def trained(task: str, data: Any, rule: str, start: float, seed: int) -> dict[str, float]:
    """Test accuracy of one run, and where its clip norm ended."""
    setting, (train, test) = SETTINGS[task], data
    plan = plan_for(task, len(train[1]), start)
    model = setting.build(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=setting.rate / start)
    given: Any = plan if rule in ("fixed", "automatic") else dc.steering.ClipController(plan, rule)  # type: ignore[arg-type]

    def keep_the_product(progress: Progress) -> None:
        if progress.clip_norm is not None:
            optimizer.param_groups[0]["lr"] = setting.rate * setting.clip / progress.clip_norm

    run = dc.train(
        model, cross_entropy, train, given, optimizer, seed=1_000 + seed, callback=keep_the_product,
        settings=EngineSettings(gamma=GAMMA) if rule == "automatic" else None,
    )  # fmt: skip
    assert run.guarantee.epsilon <= setting.epsilon
    ended = run.clip_norm[-1] if run.clip_norm else float(plan.clip_norm[-1])
    return {"accuracy": float(accuracy(model, *test)), "clip_norm": ended}


def fill(found: dict[str, Any], tasks: list[str]) -> None:
    """Every run that is not there yet, each written down when it ends."""
    for task in tasks:
        data = SETTINGS[task].data()
        for seed in SEEDS:
            for start in STARTS:
                for rule in RULES:
                    runs = found["tasks"].setdefault(task, {}).setdefault(f"{rule} from {start:g}", [])
                    if len(runs) == seed:
                        runs.append(trained(task, data, rule, start, seed))
                        FOUND.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def timed(batch: float = 256, steps: int = 40) -> dict[str, list[float]]:
    """Processor seconds of each step, without telemetry, with norms, and with the loss too, one after another."""
    (train, _), seconds = digits(), dict[str, list[float]]()
    one = dc.curves.constant(1.0)
    plan = dc.calibrate(
        dc.Budget(4.0, 1e-5), dc.PoissonSampling(len(train[1]), batch), steps=steps, privacy=one, clip=one
    )
    asked = {
        "none": None,
        "norms": dc.Telemetry(norms=10),
        "norms and loss": dc.Telemetry(norms=10, loss=True),
    }
    going: dict[str, Any] = {}
    for name, telemetry in asked.items():
        model = digits_cnn(0, nn.Tanh)
        trainer = dc.Trainer(
            model,
            cross_entropy,
            plan,
            torch.optim.SGD(model.parameters(), lr=0.1),
            seed=0,
            telemetry=telemetry,
        )
        going[name] = trainer, trainer.batches(train)
    for _ in range(steps):
        for name, (trainer, batches) in going.items():
            drawn = next(batches)
            began = time.process_time()
            trainer.step(drawn)
            seconds.setdefault(name, []).append(time.process_time() - began)
    return seconds


TEXT = """# Clip norms that follow telemetry: do they find back?

Generated by `python -m benchmarks.telemetry` from `results/telemetry.json`, {measured}.

Each cell: mean and standard deviation of the test accuracy in percent over {seeds} paired seeds, and in brackets the
clip norm of the last step. C begins at a tenth of, at, and at ten times the clip norm that was tuned on public data;
learning rate times clip norm is what was tuned, at every step. *Fixed* stays there; *automatic* is
`EngineSettings(gamma={gamma:g})`; the others are the rules of `steering.ClipController`, at their defaults. The verdict
compares with the tuned fixed clip norm, paired by seed, at 5 %. The noise of all runs of a task is the same.
"""


def page(found: Mapping[str, Any]) -> str:
    """The page, from the file alone."""
    parts = [TEXT.format(measured=words(found["measured"]), seeds=len(SEEDS), gamma=GAMMA)]
    for task, entry in found["tasks"].items():
        parts.append(f"## {task}\n")
        parts.append("| rule | " + " | ".join(f"from {start:g} C" for start in STARTS) + " |")
        parts.append("| --- |" + " ---: |" * len(STARTS))
        tuned = np.array([run["accuracy"] for run in entry["fixed from 1"]])
        for rule in RULES:
            cells: list[str] = []
            for start in STARTS:
                runs = entry[f"{rule} from {start:g}"]
                scores = np.array([run["accuracy"] for run in runs])
                ended = float(np.mean([run["clip_norm"] for run in runs]))
                said = "" if (rule, start) == ("fixed", 1.0) else f", {verdict(scores - tuned)}"
                cells.append(f"{spread(100 * scores)}{said} ({ended:.2g})")
            parts.append(f"| {rule} | " + " | ".join(cells) + " |")
        parts.append("")
    return "\n".join(parts)


def main() -> None:
    """Fill the file for the tasks that are named, and write the page; or measure the time."""
    if "--time" in sys.argv:
        found = timed()
        base = float(np.median(found["none"]))
        for name, seconds in found.items():
            print(
                f"{name}: {1e3 * np.median(seconds):.2f} ms a step, {100 * (np.median(seconds) / base - 1):+.1f} %"
            )
        return
    known = {"tasks": {}} | (json.loads(FOUND.read_text(encoding="utf-8")) if FOUND.exists() else {})
    known["measured"] = measured_at()
    fill(known, sys.argv[1:] or list(SETTINGS))
    PAGE.write_text(page(known), encoding="utf-8")


if __name__ == "__main__":
    main()
