"""Decide everything before the start: python make_plan.py [rounds]."""

import sys

from digits.task import CLIENTS

import decrescendo as dc


def make_plan(rounds: int = 20) -> dc.Plan:
    """Epsilon 8 for a client: 500 clients are few. The clip norm falls, and the noise with it."""
    return dc.calibrate(
        dc.Budget(epsilon=8.0, delta=1e-3, unit=dc.Unit.CLIENT),
        dc.PoissonSampling(dataset_size=CLIENTS, expected_batch_size=100),
        steps=rounds,
        privacy=dc.curves.growing_mu(1.25),
        clip=dc.curves.exponential(1.0, 0.5),
    )


if __name__ == "__main__":
    plan = make_plan(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
    plan.save("plan.json")
    print(plan)
