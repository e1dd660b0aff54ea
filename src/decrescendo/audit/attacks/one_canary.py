"""One canary among ordinary rows: the strongest record there is against noise, clipping and sampling as declared."""

from collections.abc import Callable

import torch
from torch import nn

from decrescendo.audit.attack import Attack, Sums
from decrescendo.audit.likelihood import participation_evidence, turns_evidence
from decrescendo.audit.probe import Probed, probed_loss, with_canaries
from decrescendo.clipping import EngineSettings, Loss
from decrescendo.plans.plan import Plan


def one_canary(
    plan: Plan,
    data: object,
    build: Callable[[], nn.Module],
    loss: Loss,
    *,
    learning_rate: float = 0.1,
    settings: EngineSettings | None = None,
) -> Attack:
    """The last row becomes a canary, or is left away; all others are trained on as they are.

    Under a plan for people the last k rows become canaries of one person, which all pull the same way.

    Args:
        plan: for as many rows as ``data`` has.
        data: what `Trainer.batches` takes.
        build: a fresh model.
        loss: one loss per example.
        learning_rate: of SGD.
        settings: of the clipping engine.

    >>> from decrescendo.audit import many_runs
    >>> import decrescendo as dc
    >>> budget, sampling = dc.Budget(4.0, 1e-5), dc.PoissonSampling(20, 10)
    >>> plan = dc.calibrate(budget, sampling, steps=1, privacy=[1.0], clip=[1.0])
    >>> loss = lambda model, batch: model(batch)[:, 0]
    >>> attack = one_canary(plan, torch.ones(20, 2), lambda: nn.Linear(2, 1), loss)
    >>> many_runs(attack, runs=20, seed=0).verdict
    'nothing found'
    """
    # A float32 clip norm is never above C: the pull is steep against the largest of them.
    rows = plan.budget.examples_per_person
    inner, own, pull, slot = with_canaries(data, torch.ones(rows).bool(), float(plan.clip_norm.max()))
    canary = inner, own, pull, torch.zeros_like(slot)

    def evidence(sums: Sums, plan: Plan) -> float:
        if plan.correlation is not None:
            return turns_evidence(sums[:, 0], plan.strategy, plan.sampling.rates(plan.steps))
        rates = plan.sampling.rates(plan.steps).tolist()
        steps = zip(sums, rates, plan.noise_multiplier.tolist(), strict=True)
        return float(sum(participation_evidence(x, p, z, rows)[0] for x, p, z in steps))

    return Attack(
        "one canary",
        plan,
        canary,
        lambda: Probed(build(), 1),
        probed_loss(loss),
        evidence,
        learning_rate,
        settings,
    )
