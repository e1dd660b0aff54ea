"""The audit of the library, whole and broken, at four budgets on MNIST, for docs/explanation/audit.md.

    python -m benchmarks.audit            # what results/audit/mnist.json lacks; then figure and table
    python -m benchmarks.audit --draw     # figure and table only

One thread, some six minutes of processor time. Every seed is fixed: the same numbers again.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.audit_figure import Mark, draw_audits
from decrescendo.accounting.budget import Budget
from decrescendo.audit import AuditResult, many_runs, one_run
from decrescendo.audit.attacks import batch_size, counted, crowded, one_canary, opposed, padded
from decrescendo.plans.calibration import calibrate
from decrescendo.plans.curves import constant, sensitivity_decay
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.training import cross_entropy, initialised
from decrescendo_papers.data import mnist
from decrescendo_papers.experiments.perform import machine
from decrescendo_papers.models import paper_cnn

ROOT = Path(__file__).resolve().parent.parent
# The broken builds are no part of the package: tests and this script share them.
sys.path.append(str(ROOT / "tests" / "support"))
from broken_builds import BROKEN, healthy  # noqa: E402

RESULT, PAGE, FIGURE = (
    ROOT / "results/audit/mnist.json",
    ROOT / "docs/explanation/audit.md",
    ROOT / "docs/explanation/audit.png",
)
EPSILONS, DELTA, CONFIDENCE, HEALTHY = (1.0, 2.0, 4.0, 8.0), 1e-5, 0.95, "healthy"
CANARIES, ROWS = 10_000, 100
BEGIN, END = "<!-- table: python -m benchmarks.audit --draw -->", "<!-- end of table -->"

Work = Callable[[float], AuditResult]


def budget(epsilon: float) -> Budget:
    """At the delta of all audits here."""
    return Budget(epsilon, DELTA)


def plan_of(epsilon: float, rows: int, batch: float, steps: int) -> Plan:
    """A falling clip norm, as the paper's; constant noise multiplier."""
    return calibrate(
        budget(epsilon), PoissonSampling(rows, batch), steps=steps, privacy=constant(1.0),
        clip=sensitivity_decay(1.5, rho_c=3.3),
    )  # fmt: skip


def canaries(epsilon: float, build: Callable[[Plan], Any]) -> AuditResult:
    """One training of the paper's CNN on 50,000 images, and 10,000 canaries."""
    plan = plan_of(epsilon, 60_000, 3000, 10)
    with build(plan):
        return one_run(
            paper_cnn(0), cross_entropy, mnist().train, plan,
            lambda model: torch.optim.SGD(model.parameters(), lr=0.15), canaries=CANARIES, seed=7,
            confidence=CONFIDENCE,
        )  # fmt: skip


def one(epsilon: float, build: Callable[[Plan], Any]) -> AuditResult:
    """Softmax regression on a hundred images, with and without a canary."""
    images, classes = mnist().train
    data = images[:ROWS].flatten(1), classes[:ROWS]
    attack = one_canary(
        plan_of(epsilon, ROWS, ROWS / 2, 2), data, lambda: initialised(lambda: nn.Linear(784, 10), 0), cross_entropy
    )  # fmt: skip
    with build(attack.plan):
        return many_runs(attack, runs=200, seed=7, confidence=CONFIDENCE)


def crafted(make: Callable[[float], Any], runs: dict[float, int]) -> Callable[..., AuditResult]:
    """Many runs on a data set that is made for the attack."""

    def audit(epsilon: float, build: Callable[[Plan], Any]) -> AuditResult:
        attack = make(epsilon)
        with build(attack.plan):
            return many_runs(attack, runs=runs[epsilon], seed=7, confidence=CONFIDENCE)

    return audit


SAME = dict.fromkeys(EPSILONS, 160)
# A shuffled build gives away the more, the larger its epsilon: steps and runs that show it.
STEPS, SHUFFLED = {1.0: 30, 2.0: 30, 4.0: 16, 8.0: 8}, {1.0: 360, 2.0: 240, 4.0: 200, 8.0: 140}
# A record that takes another's place moves a sum by 2 C in the place of C: a factor of two in the noise.
CROWDED = {1.0: 3000, 2.0: 1500, 4.0: 600, 8.0: 300}
AUDITS: dict[str, Callable[..., AuditResult]] = {
    "batch size": crafted(lambda epsilon: batch_size(budget(epsilon)), SAME),
    "one long text": crafted(lambda epsilon: padded(budget(epsilon)), SAME),
    "opposed rows": crafted(lambda epsilon: opposed(budget(epsilon), steps=STEPS[epsilon]), SHUFFLED),
    "crowded batch": crafted(lambda epsilon: crowded(budget(epsilon)), CROWDED),
    "count": crafted(lambda epsilon: counted(budget(epsilon)), SAME),
    "canaries": canaries,
    "one canary": one,
}
# Which broken builds meet which audit; the healthy one meets all.
MEETS = {
    "batch size": ("divided by the realised batch size",),
    "one long text": ("padded to the longest of the batch",),
    "canaries": (
        "no noise", "noise for the next clip norm", "clipped at twice the norm", "divided by the realised batch size",
    ),
    "opposed rows": ("shuffled, accounted as Poisson",),
    "crowded batch": ("truncated to a buffer, accounted as whole",),
    "count": ("count without its noise",),
    "one canary": ("no noise",),
}  # fmt: skip


def measure() -> list[dict[str, Any]]:
    """Whatever is missing in the file, kept after each audit."""
    torch.set_num_threads(1)
    found: list[dict[str, Any]] = json.loads(RESULT.read_text())["audits"] if RESULT.exists() else []
    done = {(row["audit"], row["build"], row["epsilon"]) for row in found}
    for audit, work in AUDITS.items():
        for build in (HEALTHY, *MEETS[audit]):
            for epsilon in EPSILONS:
                if (audit, build, epsilon) in done:
                    continue
                start = time.process_time()
                result = work(epsilon, healthy if build == HEALTHY else BROKEN[build])
                seconds = time.process_time() - start
                found.append(
                    {"audit": audit, "build": build, "epsilon": epsilon, "cpu_seconds": round(seconds, 1),
                     "result": json.loads(result.to_json())}
                )  # fmt: skip
                print(audit, build, epsilon, result.verdict, result.caught_by, f"{seconds:.0f} s", flush=True)
                RESULT.parent.mkdir(parents=True, exist_ok=True)
                beside = RESULT.with_suffix(".part")
                beside.write_text(json.dumps({"machine": machine("cpu"), "audits": found}, indent=1) + "\n")
                os.replace(beside, RESULT)
    return found


def results(found: list[dict[str, Any]]) -> dict[tuple[str, str, float], AuditResult]:
    """Read again by the class that wrote them, which checks every verdict."""
    return {
        (row["audit"], row["build"], row["epsilon"]): AuditResult.from_json(json.dumps(row["result"])) for row in found
    }


def cell(result: AuditResult) -> str:
    """Both bounds, and what caught it."""
    words = f"{result.lower:.2f} / {result.lower_by_curve:.2f}"
    return f"**{words}** ({', '.join(result.caught_by)})" if result.caught_by else words


def table(found: list[dict[str, Any]]) -> str:
    """One row a build and audit."""
    known = results(found)
    lines = [
        "| build | audit | " + " | ".join(f"certified {epsilon:g}" for epsilon in EPSILONS) + " |",
        "| --- | --- |" + " --- |" * len(EPSILONS),
    ]
    for build in (HEALTHY, *BROKEN):
        for audit in AUDITS:
            row = [known[audit, build, epsilon] for epsilon in EPSILONS if (audit, build, epsilon) in known]
            if row:
                lines.append(f"| {build} | {audit} | " + " | ".join(map(cell, row)) + " |")
    return "\n".join(lines)


def draw(found: list[dict[str, Any]]) -> None:
    """The figure, and the table in the page."""
    marks = [
        Mark(build, epsilon, audit, max(result.lower, result.lower_by_curve), result.lower, result.caught_by)
        for (audit, build, epsilon), result in results(found).items()
    ]
    draw_audits(marks, builds=(HEALTHY, *BROKEN), path=FIGURE)
    text = PAGE.read_text(encoding="utf-8")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    PAGE.write_text(f"{head}{BEGIN}\n\n{table(found)}\n\n{END}{tail}", encoding="utf-8")


def main() -> None:
    """Measure what is missing, then draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="figure and table only")
    draw(json.loads(RESULT.read_text())["audits"] if parser.parse_args().draw else measure())


if __name__ == "__main__":
    main()
