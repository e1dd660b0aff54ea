"""The solver against uniform, growing mu and sqrt(C) on two hundred drawn problems, at equal certified epsilon.

    PYTHONPATH=tests python benchmarks/allocation_drawn.py

The problems are those of tests/plans/test_allocation.py (its slow test). Appends to results/allocation-drawn.json, a
problem at a time; what is there is not solved again. About half an hour on one core.
"""

import json
import time
from pathlib import Path

from plans.test_allocation import TOLERANCE, drawn, rivals

RESULT = Path(__file__).resolve().parent.parent / "results" / "allocation-drawn.json"
SEEDS = range(100, 300)


def main() -> None:
    """Solve what is missing, write, and say how often which rival was beaten."""
    known = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    for seed in SEEDS:
        if str(seed) in known:
            continue
        started = time.process_time()
        plan, influence, rho = drawn(seed, most=400)
        solved = time.process_time() - started
        known[str(seed)] = {
            "steps": plan.steps, "epsilon": plan.guarantee.epsilon, "sample_rate": plan.sampling.sample_rate,
            "seconds": round(solved, 2), "rivals": rivals(plan, influence, rho),
        }  # fmt: skip
        RESULT.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    for name in ("uniform", "growing mu", "sqrt(C)"):
        ratios = sorted(problem["rivals"][name] for problem in known.values())
        worse = sum(ratio < 1 - TOLERANCE for ratio in ratios)
        print(f"{name}: {len(ratios)} problems, worse than it in {worse}, smallest ratio {ratios[0]:.6f}, "
              f"median {ratios[len(ratios) // 2]:.3f}, largest {ratios[-1]:.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
