"""Noise that is fixed beforehand, and a run that ends when its budget is spent: the protocol of Yu et al. 2019.

Nothing is calibrated. How many steps there are follows from the noise, the sampling and the budget alone, all of them
public, so that it is known before the first step and the plan is an ordinary one.
"""

import numpy as np
from jaxtyping import Float

from decrescendo import Budget, Ledger, Plan, PoissonSampling
from decrescendo.accounting import Accountant
from decrescendo.errors import ImpossibleBudget, InvalidValue
from decrescendo.plans import Schedule
from decrescendo_papers.experiments.spec import Spec

METHOD = "exponential-decay"


def fixed_noise(spec: Spec, batches_per_epoch: int) -> Float[np.ndarray, " steps"]:
    """Noise multiplier z_0 e^(-k e) of every step that ``spec`` may take, e = 0, 1, .. its epoch.

    >>> spec = Spec(task="mnist", method="exponential-decay", accountant="pld", epsilon=1, delta=1e-6, steps=4,
    ...             batch=250, seed=0, clip=1, learning_rate=1, noise=10, noise_decay=np.log(2))
    >>> fixed_noise(spec, batches_per_epoch=2)
    array([10., 10.,  5.,  5.])
    """
    return spec.noise * np.exp(-spec.noise_decay * (np.arange(spec.steps) // batches_per_epoch))


def until_spent(spec: Spec, budget: Budget, sampling: PoissonSampling, judge: Accountant) -> Plan:
    """The longest plan with the noise of ``spec`` that ``judge`` still finds within ``budget``: one step more is too
    much, or is more than ``spec.steps``.

    Raises:
        ImpossibleBudget: the first step alone is too much.
        InvalidValue: a method with another schedule, or a decay of no noise.
    """
    if spec.method != METHOD or not spec.noise:
        raise InvalidValue(
            f"noise and noise_decay must be of method={METHOD!r} with noise > 0, got noise={spec.noise:g}, "
            f"noise_decay={spec.noise_decay:g} and method={spec.method!r}"
        )
    noise = fixed_noise(spec, max(1, round(1 / sampling.sample_rate)))

    def spent(steps: int) -> float:
        return judge.epsilon(ledger(steps), budget.delta).value

    def ledger(steps: int) -> Ledger:
        return Ledger.of(noise[:steps], sample_rate=sampling.sample_rate)

    if spent(1) > budget.epsilon:
        raise ImpossibleBudget(
            f"{judge.name} must allow a first step within epsilon={budget.epsilon:g}, got epsilon={spent(1):.4g} of "
            f"noise {noise[0]:g}. Take more noise"
        )
    fits, over = 1, len(noise) + 1
    while over - fits > 1:
        middle = (fits + over) // 2
        fits, over = (middle, over) if spent(middle) <= budget.epsilon else (fits, middle)
    schedule = Schedule(noise[:fits], np.full(fits, spec.clip))
    return Plan(budget, sampling, schedule, judge.certify(ledger(fits), budget))
