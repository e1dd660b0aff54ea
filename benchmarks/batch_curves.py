"""Batch sizes that stay, rise or fall, at one budget, one number of steps and of examples: which trains best?

    python -m benchmarks.batch_curves           # what results/batch-curves.json lacks, then the page

Every run has the same certified budget, steps and expected examples; only B_t moves, along a line. z is one number a
run, calibrated for its curve. Each curve has its own learning rate, the best of five or six on public data of the same
shape (Fashion-MNIST for MNIST, reviews of the half that is not scored for IMDB), one seed; then five seeds, paired,
once each.
"""

import functools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import ttest_rel
from torch import nn

import decrescendo as dc
from benchmarks import measured_at
from decrescendo.training import accuracy, cross_entropy
from decrescendo_papers.data import Dataset, fashion_mnist, imdb_half, imdb_public, mnist
from decrescendo_papers.models import imdb_mlp, paper_cnn

ROOT = Path(__file__).resolve().parents[1]
FOUND, PAGE = ROOT / "results/batch-curves.json", ROOT / "docs/reference/batch-curves.md"
SEEDS = range(5)
# The first and the last expected batch, as shares of their mean.
CURVES = {"constant": (1.0, 1.0), "rising": (0.2, 1.8), "falling": (1.8, 0.2)}


@dataclass(frozen=True)
class Setting:
    """One task.

    Args:
        private, public: data with a train and a test half; rates are chosen on the latter.
        build: a model from a seed.
        epsilon: certified, at delta 1 / (10 N).
        batch: expected, on average over the steps.
        rates: of plain SGD, to choose from.
    """

    private: Callable[[], Dataset]
    public: Callable[[], Dataset]
    build: Callable[[int], nn.Module]
    epsilon: float
    batch: float
    steps: int
    clip: float
    rates: tuple[float, ...]


SETTINGS: dict[str, Setting] = {
    "IMDB": Setting(imdb_half, imdb_public, imdb_mlp, 1.0, 500, 500, 1.0, (1.0, 2.0, 3.0, 4.5, 6.75)),
    "MNIST": Setting(mnist, fashion_mnist, paper_cnn, 0.4, 300, 1_000, 1.5, (0.0375, 0.075, 0.15, 0.3, 0.6, 1.2)),
}


@functools.cache
def plan_for(setting: Setting, rows: int, curve: str) -> dc.Plan:
    """The calibrated plan of one curve."""
    first, last = (share * setting.batch for share in CURVES[curve])
    return dc.calibrate(
        dc.Budget(setting.epsilon, 1 / (10 * rows)), dc.PoissonSampling(rows, setting.batch), steps=setting.steps,
        privacy=dc.curves.constant(1.0), clip=dc.curves.constant(setting.clip), batch=dc.curves.linear(first, last),
    )  # fmt: skip


def rate_text(rate: float) -> str:
    """As a key."""
    return f"{rate:g}"


def trained(setting: Setting, data: Dataset, curve: str, rate: float, seed: int) -> float:
    """Test accuracy of one run."""
    plan = plan_for(setting, len(data.train[0]), curve)
    model = setting.build(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    run = dc.train(model, cross_entropy, data.train, plan, optimizer, seed=1_000 + seed)
    assert run.guarantee.epsilon <= setting.epsilon
    return float(accuracy(model, *data.test))


def fill(found: dict[str, Any]) -> None:
    """Every run that is not there yet, each written down when it ends."""
    for name, setting in SETTINGS.items():
        entry = found.setdefault(name, {"searched": {}, "rate": {}, "accuracy": {}, "z": {}})
        for curve in CURVES:
            searched = entry["searched"].setdefault(curve, {})
            for rate in setting.rates:
                if rate_text(rate) not in searched:
                    searched[rate_text(rate)] = trained(setting, setting.public(), curve, rate, 99)
                    save(found)
            best = max(setting.rates, key=lambda rate: searched[rate_text(rate)])
            if entry["rate"].get(curve) != best:  # a wider search moved it: scores of another rate go
                entry["rate"][curve], entry["accuracy"][curve] = best, []
        private = setting.private()
        for seed in SEEDS:
            for curve in CURVES:
                scores = entry["accuracy"].setdefault(curve, [])
                if len(scores) == seed:
                    scores.append(trained(setting, private, curve, entry["rate"][curve], seed))
                    entry["z"][curve] = float(plan_for(setting, len(private.train[0]), curve).noise_multiplier[0])
                    save(found)


def save(found: Mapping[str, Any]) -> None:
    """The file, whole."""
    FOUND.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def page(found: Mapping[str, Any]) -> str:
    """The page, from the file alone."""
    lines = [TEXT.format(commit=found["commit"])]
    for name, setting in SETTINGS.items():
        entry = found[name]
        lines += [
            f"## {name}, epsilon {setting.epsilon:g}, {setting.steps} steps of {setting.batch:g} expected", "",
            "| batch | z | rate | accuracy | minus constant | |", "| --- | ---: | ---: | ---: | ---: | --- |",
        ]  # fmt: skip
        even = np.array(entry["accuracy"]["constant"]) * 100
        for curve in CURVES:
            scores = np.array(entry["accuracy"][curve]) * 100
            gap = scores - even
            rate = entry["rate"][curve]
            edge = " †" if rate in (setting.rates[0], setting.rates[-1]) else ""
            cells = [
                curve, f"{entry['z'][curve]:.3f}", f"{rate:g}{edge}", spread(scores),
                "" if curve == "constant" else spread(gap, sign="+"), "" if curve == "constant" else verdict(gap),
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def spread(values: np.ndarray, sign: str = "") -> str:
    """Mean and standard deviation."""
    return f"{values.mean():{sign}.2f} ± {values.std(ddof=1):.2f}"


TEXT = """# Batch sizes that move: do they help?

Generated by `python -m benchmarks.batch_curves` from `results/batch-curves.json`, measured at {commit}.

One certified budget (`Pld`), one number of steps, one expected number of examples; B_t stays, or moves along a line
between 0.2 and 1.8 times its mean, and one z a run is calibrated for its curve. The learning rate of plain SGD is the
best of five or six for each curve, searched on public data with one seed (Fashion-MNIST for MNIST; reviews of other
films for IMDB); nothing was tuned on rows that are scored, but 6.75, 0.075 and 0.0375 were added after the first scores
were seen, because a curve's best lay at the end. Mean and standard deviation of the test accuracy over 5 seeds; the
difference to the constant batch is paired by seed, and judged by a t test at 5 % for two comparisons.
†: the rate is at an end of them, so that a better one may lie beyond.
"""


def verdict(gap: np.ndarray) -> str:
    """What paired differences say, in a word and by a test for two comparisons.

    >>> verdict(np.array([1.0, 1.1, 0.9, 1.0, 1.05])), verdict(np.array([0.0, 0.1, -0.1, 0.05, -0.05]))
    ('better', 'undecided')
    """
    if not gap.any():
        return "undecided"
    p = float(ttest_rel(gap, np.zeros_like(gap)).pvalue) * 2
    if math.isnan(p) or p >= 0.05:
        return "undecided"
    return "better" if gap.mean() > 0 else "worse"


def main() -> None:
    """Runs, file, page."""
    torch.set_num_threads(1)
    found: dict[str, Any] = json.loads(FOUND.read_text(encoding="utf-8")) if FOUND.exists() else {}
    found.setdefault("commit", f"`{measured_at()['commit']}`")
    fill(found)
    PAGE.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
