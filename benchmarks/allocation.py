"""How much the noise felt at the end falls when it follows the weights: the table of docs/explanation/optimal-noise.md.

    python benchmarks/allocation.py

Writes results/allocation.json, and prints the table. Every plan is certified by `Pld` for the same budget.
"""

import json
import time
from pathlib import Path

import numpy as np

import decrescendo as dc
from decrescendo.base.markdown import table
from decrescendo.plans.allocation import allocate, noise_cost
from decrescendo.plans.noise_influence import noise_influence

RESULT = Path(__file__).resolve().parent.parent / "results" / "allocation.json"
_WIDEST = 24.0  # of log weights: beyond it the closed form asks for noise from 1 to 400, and certifying takes minutes
STEPS = (50, 500, 5000)
MNIST, WHOLE = dc.PoissonSampling(60_000, 250), dc.PoissonSampling(1_000, 1_000)


def rates(shape: str, steps: int) -> np.ndarray:
    """Relative learning rates, the first step at the full one."""
    before = np.arange(steps) / steps
    return {
        "constant": np.ones(steps),
        "linear": 1 - before,
        "cosine": (1 + np.cos(np.pi * before)) / 2,
    }[shape]


# name, epsilon, sampling, learning rate, m lr, momentum, factor by which the clip norm falls
PROBLEMS = (
    ("rate constant, clip constant", 1.2, MNIST, "constant", 0.0, 0.0, 1.0),
    ("rate to zero along a line", 1.2, MNIST, "linear", 0.0, 0.0, 1.0),
    ("rate to zero as a cosine", 1.2, MNIST, "cosine", 0.0, 0.0, 1.0),
    ("the same, epsilon 8", 8.0, MNIST, "cosine", 0.0, 0.0, 1.0),
    ("clip falls by 3.3", 1.2, MNIST, "constant", 0.0, 0.0, 3.3),
    ("cosine, clip falls by 3.3", 1.2, MNIST, "cosine", 0.0, 0.0, 3.3),
    ("m lr = 0.01", 1.2, MNIST, "constant", 0.01, 0.0, 1.0),
    ("m lr = 0.01, momentum 0.9", 1.2, MNIST, "constant", 0.01, 0.9, 1.0),
    ("m lr = 0.01, cosine", 1.2, MNIST, "cosine", 0.01, 0.0, 1.0),
    ("m lr = 0.01, full batches", 1.2, WHOLE, "constant", 0.01, 0.0, 1.0),
)


def main() -> None:
    """Solve, certify, write."""
    rows = []
    for name, epsilon, sampling, shape, forgets, momentum, fall in PROBLEMS:
        budget = dc.Budget(epsilon, 1e-6)
        for steps in STEPS:
            influence = noise_influence(rates(shape, steps), curvature=forgets, momentum=momentum)
            clip = dc.curves.sensitivity_decay(1.0, rho_c=fall)
            started = time.process_time()
            plan = allocate(budget, sampling, steps=steps, influence=influence, clip=clip)
            seconds = time.process_time() - started
            cost = noise_cost(plan, influence)
            others = {"uniform": dc.curves.constant(1.0)}
            if np.ptp(np.log(influence)) < _WIDEST:
                others["small mu"] = dc.curves.curvature(clip, influence)
            ratios = {
                other: cost
                / noise_cost(dc.calibrate(budget, sampling, steps=steps, privacy=curve, clip=clip), influence)
                for other, curve in others.items()
            }
            z = plan.noise_multiplier
            rows.append(
                {"problem": name, "steps": steps, "seconds": round(seconds, 2), **ratios}
                | {"z": [float(z[0]), float(z[-1])]}
            )
            print(rows[-1], flush=True)
    RESULT.write_text(json.dumps({"delta": 1e-6, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    print(render(rows))


def render(rows: list[dict]) -> str:
    """Per cent below uniform noise (below the small-mu closed form), a column a number of steps."""

    def cell(name: str, steps: int) -> str:
        (row,) = [row for row in rows if row["problem"] == name and row["steps"] == steps]
        closed = f"{1 - row['small mu']:.1%}" if "small mu" in row else "-"
        return f"{1 - row['uniform']:.1%} ({closed})".replace("-0.0%", "0.0%")

    body = [[name, *(cell(name, steps) for steps in STEPS)] for name, *_ in PROBLEMS]
    return table(["problem", *(f"T = {steps:,}" for steps in STEPS)], body, "lrrr")


if __name__ == "__main__":
    main()
