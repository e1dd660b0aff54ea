"""What a budget of privacy and one of examples buy together: results/frontier.json and docs/images/frontier.png.

    python -m benchmarks.frontier            # about three CPU minutes; a point that is there is not computed again

Every point is a plan certified by `Pld`: uniform noise and batches, noise that follows the influence, and batches that
follow it too, for a training whose later steps matter more.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import decrescendo as dc
from decrescendo.plans.allocation import allocate
from decrescendo.plans.compute import allocate_compute, mean_noise_cost
from decrescendo.report import canvas

ROOT = Path(__file__).resolve().parents[1]
FOUND, PICTURE = ROOT / "results/frontier.json", ROOT / "docs/images/frontier.png"
ROWS, STEPS, DELTA = 60_000, 200, 1e-6
INFLUENCE, CLIP = np.exp(4 * np.arange(1, STEPS + 1) / STEPS), dc.curves.constant(1.0)
EPSILON, COMPUTE = 1.0, 300_000
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
TICKS = tuple(digit * 10.0**power for power in (-4, -3) for digit in (2, 3, 5, 7, 10))
COMPUTES = (30_000, 100_000, 300_000, 1_000_000, 3_000_000)


def _uniform(budget: dc.Budget, compute: float) -> dc.Plan:
    sampling = dc.PoissonSampling(ROWS, compute / STEPS)
    return dc.calibrate(budget, sampling, steps=STEPS, privacy=dc.curves.constant(1.0), clip=CLIP)


def _noise(budget: dc.Budget, compute: float) -> dc.Plan:
    return allocate(budget, dc.PoissonSampling(ROWS, compute / STEPS), steps=STEPS, influence=INFLUENCE, clip=CLIP)


def _both(budget: dc.Budget, compute: float) -> dc.Plan:
    return allocate_compute(budget, ROWS, steps=STEPS, compute=compute, influence=INFLUENCE, clip=CLIP)


WAYS: dict[str, Callable[[dc.Budget, float], dc.Plan]] = {
    "uniform": _uniform,
    "noise follows the influence": _noise,
    "noise and batches follow it": _both,
}


def key(way: str, epsilon: float, compute: float) -> str:
    """Of a point."""
    return f"{way}, {epsilon:g}, {compute:g}"


def draw(found: dict[str, Any]) -> Any:
    """Noise felt at the end against compute at one epsilon, and against epsilon at one compute."""
    figure, (left, right) = canvas.new_figure(columns=2, width=11.0, height=4.2)
    for i, way in enumerate(WAYS):
        style = {
            "color": canvas.COLOURS[i],
            "linestyle": canvas.LINES[i],
            "marker": "o",
            "markersize": 3,
            "label": way,
        }
        left.plot(COMPUTES, [found[key(way, EPSILON, compute)] for compute in COMPUTES], **style)
        right.plot(EPSILONS, [found[key(way, epsilon, COMPUTE)] for epsilon in EPSILONS], **style)
    words = "noise on the mean, felt at the end"
    canvas.label(left, f"epsilon {EPSILON:g}", words, "expected examples in all steps")
    canvas.label(right, f"{COMPUTE:,} expected examples", words, "certified epsilon")
    for panel, at in ((left, COMPUTES), (right, EPSILONS)):
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xticks(at, [f"{one:,g}" if one < 1e4 else f"{one:,}" for one in at])
        panel.minorticks_off()
        low, high = panel.get_ylim()
        ticks = [one for one in TICKS if low <= one <= high]
        panel.set_yticks(ticks, [f"{one:g}" for one in ticks])
    canvas.legend(figure, left, columns=3)
    return figure


def main() -> None:
    """Certify what is missing, write, draw."""
    found: dict[str, Any] = json.loads(FOUND.read_text(encoding="utf-8")) if FOUND.exists() else {}
    for epsilon, compute in [*((EPSILON, one) for one in COMPUTES), *((one, COMPUTE) for one in EPSILONS)]:
        for way, made in WAYS.items():
            if key(way, epsilon, compute) not in found:
                plan = made(dc.Budget(epsilon, DELTA), compute)
                # A standard deviation: what a weight of influence 1 on average feels.
                cost = mean_noise_cost(plan, INFLUENCE) / float(INFLUENCE.sum())
                found[key(way, epsilon, compute)] = float(f"{cost**0.5:.6g}")
                FOUND.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    canvas.save(draw(found), PICTURE)


if __name__ == "__main__":
    main()
