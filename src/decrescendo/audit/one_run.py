"""Train once with many canaries, each included by a fair coin, and guess the coins."""

import secrets
from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from decrescendo.accounting.budget import Unit, check_budget, check_one_example
from decrescendo.audit.curve import PrivacyCurve
from decrescendo.audit.design import Design, design
from decrescendo.audit.likelihood import participation_evidence
from decrescendo.audit.noise_check import noise_p_value
from decrescendo.audit.one_run_bound import one_run_epsilon
from decrescendo.audit.probe import Probed, probed_loss, with_canaries
from decrescendo.audit.result import AuditResult
from decrescendo.audit.threshold import rates_at
from decrescendo.audit.watch import watch
from decrescendo.base.rng import Secure, Streams
from decrescendo.clipping import EngineSettings, Loss
from decrescendo.errors import InvalidValue, check_integer, check_real
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling_refusals import independent
from decrescendo.plans.stratified_sampling import StratifiedPoissonSampling
from decrescendo.training import Trainer
from decrescendo.training.loop.progress import Callback, callbacks_of
from decrescendo.training.run import certified_epsilon
from decrescendo.training.store import Store

_TESTS = 3
# Of so many fair coins both sides are seen.
FEWEST = 20


def one_run(
    model: nn.Module,
    loss: Loss,
    data: object,
    plan: Plan,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    *,
    canaries: int,
    seed: int | Secure,
    confidence: float = 0.95,
    settings: EngineSettings | None = None,
    callback: Callback | Sequence[Callback] | None = None,
    store: Store | None = None,
) -> AuditResult:
    """Train ``model`` in place by ``plan``, the last ``canaries`` rows replaced by canaries, and audit the training.

    Everything is the real thing, `Trainer`, sampling, clipping and noise, on a model that has one weight more for each
    canary. The adversary sees every noisy mean. How many coins are guessed is fixed before the run (`audit.design`).

    Three tests, each with a third of 1 - ``confidence``: `one_run_epsilon`, which assumes nothing but (epsilon,
    delta)-DP, and is far below the truth for most plans; `PrivacyCurve.epsilon` with canaries as trials, which
    besides takes the noise on different weights for independent; `noise_p_value` on the weights of those left out.

    Args:
        model: trained in place. The rows that became canaries are not learned from.
        loss: ``loss(model, batch)`` returns one loss per example.
        data: as many rows as the plan says.
        plan: what is audited.
        optimizer: makes any ``torch.optim`` optimiser over the parameters of the module it is given.
        canaries: m >= 20: the more the better, at least some hundreds; fewer than the rows.
        seed: whole number >= 0; or `Secure()`.
        confidence: in (0, 1).
        settings: of the clipping engine.
        callback: called after every step.
        store: where the run is reserved and written down: the rows that did not become canaries are trained on, and
            what they lose by it is the whole plan's epsilon, whether or not the weights are thrown away.

    Raises:
        ImpossibleBudget: the store has no room for one more run of this plan; nothing was trained.
        InvalidValue: the store is of another number of rows, or of another unit.

    >>> import decrescendo as dc
    >>> budget, sampling = dc.Budget(4.0, 1e-5), dc.PoissonSampling(900, 90)
    >>> plan = dc.calibrate(budget, sampling, steps=4, privacy=[1.0] * 4, clip=[1.0] * 4)
    >>> model, loss = nn.Linear(2, 1), lambda model, batch: model(batch)[:, 0]
    >>> sgd = lambda model: torch.optim.SGD(model.parameters(), lr=0.1)
    >>> found = one_run(model, loss, torch.ones(900, 2), plan, sgd, canaries=400, seed=0)
    >>> found.lower < 4, found.verdict
    (True, 'nothing found')
    """
    told = callbacks_of(callback)
    _check_plan(plan)
    slots = check_integer("canaries", canaries, at_least=FEWEST)
    share = 1 - (1 - check_real("confidence", confidence, above=0, below=1)) / _TESTS
    if isinstance(seed, Secure):
        coins = np.array([secrets.randbits(1) for _ in range(slots)], dtype=np.float64)
    else:
        coins = Streams(seed).numpy("audit").integers(2, size=slots).astype(np.float64)
    inserted = with_canaries(data, torch.from_numpy(coins) > 0, float(plan.clip_norm.max()))
    planned = design(plan, slots, share)

    probed = Probed(model, slots)
    device = next(model.parameters()).device
    probed.to(device)
    drawn, left_out = plan.sampling.rates(plan.steps), coins == 0
    evidence, squares = np.zeros(slots), np.zeros(plan.steps)

    def look(t: int, sums: Float[np.ndarray, " coordinates"]) -> None:
        nonlocal evidence
        z = float(plan.noise_multiplier[t])
        evidence = evidence + participation_evidence(sums, float(drawn[t]), z)
        squares[t] = float(np.sum(np.square(sums[left_out] / z)))

    made = optimizer(probed)
    watch(made, probed.probe, plan, look)
    trainer = Trainer(
        probed, probed_loss(loss), plan, made, seed=seed, settings=settings, store=store,
        name="" if store is None else "audit",
    )  # fmt: skip
    people = np.arange(plan.sampling.dataset_size) if plan.budget.unit is Unit.PERSON else None  # one row each
    try:
        for batch in trainer.batches(inserted, people=people):
            trainer.step(batch)
            for one in told:
                one(trainer.progress())
        run = trainer.finish()
    except BaseException:
        trainer.abandon()
        raise
    return _judged(
        plan, planned, coins, evidence, squares, confidence, share,
        store="" if run.provenance is None else run.provenance.account,
    )  # fmt: skip


def _check_plan(plan: Plan) -> None:
    check_budget(plan.budget)  # without a promise there is nothing to refute
    check_one_example(plan.budget, "an audit in one run")
    independent(plan.sampling, "an audit in one run")
    if isinstance(plan.sampling, StratifiedPoissonSampling):
        raise InvalidValue(
            "an audit in one run must be of a plan that draws all rows at one rate, got strata. Audit a plan of "
            "PoissonSampling at the largest rate"
        )


def _judged(
    plan: Plan,
    planned: Design,
    coins: Float[np.ndarray, " canaries"],
    evidence: Float[np.ndarray, " canaries"],
    squares: Float[np.ndarray, " steps"],
    confidence: float,
    share: float,
    store: str,
) -> AuditResult:
    """The three tests of one run, each with the confidence ``share``; ``squares``: of the noise on the weights of
    canaries left out, by step."""
    slots, left_out = len(coins), coins == 0
    right, guesses = planned.right(evidence, coins), planned.included + planned.excluded
    rates = rates_at(planned.threshold, evidence[left_out], evidence[~left_out])
    delta = plan.budget.delta
    return AuditResult(
        method="one run",
        attack="canaries with a weight each",
        certified=certified_epsilon(plan),
        delta=delta,
        confidence=confidence,
        runs=1,
        canaries=slots,
        lower=one_run_epsilon(slots, guesses, right, delta, share),
        lower_by_curve=PrivacyCurve(plan.ledger).epsilon(rates, delta, share),
        counts={
            "guesses": guesses,
            "right": right,
            "canaries in": rates.present,
            "false positives": rates.false_positives,
            "false negatives": rates.false_negatives,
        },
        noise_p_value=noise_p_value(squares, int(left_out.sum())),
        tests=_TESTS,
        plan_sha256=plan.sha256,
        store=store,
    )
