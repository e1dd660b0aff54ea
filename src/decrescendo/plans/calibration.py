"""`calibrate`: from a budget and the shapes of two curves to a certified plan; `calibrate_selection` for a search."""

from typing import Literal

import numpy as np
from jaxtyping import Float

from decrescendo.accounting import Accountant, Pld, Selection, Trials, Truncated
from decrescendo.accounting.budget import Budget, Guarantee, check_budget
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.overflow import left_of, overflow_of, smallest_cap
from decrescendo.accounting.truncated import composes
from decrescendo.errors import ImpossibleBudget, InvalidValue, check_instance
from decrescendo.plans.correlated import correlated
from decrescendo.plans.curves import evaluate
from decrescendo.plans.passes import steps_of
from decrescendo.plans.plan import Plan
from decrescendo.plans.progress import CurveOrValues
from decrescendo.plans.relative_curves import check_epochs, relative_privacy
from decrescendo.plans.sampling import BatchSchedule, PoissonSampling, RandomAllocation, Sampling, planned
from decrescendo.plans.sampling_refusals import check_person, poisson, uncut
from decrescendo.plans.scale_search import certified_scale, first_guess, steer
from decrescendo.plans.schedule import Schedule
from decrescendo.plans.stratified_sampling import StratifiedPoissonSampling
from decrescendo.plans.workload import Workload, as_workload


def calibrate(
    budget: Budget,
    sampling: PoissonSampling | RandomAllocation | StratifiedPoissonSampling,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    privacy: CurveOrValues | Literal["constant"] | None = None,
    noise: CurveOrValues | Literal["constant"] | None = None,
    clip: CurveOrValues,
    batch: CurveOrValues | None = None,
    accountant: Accountant | None = None,
    bands: int | Literal["auto"] = 1,
    workload: Workload | CurveOrValues | None = None,
) -> Plan:
    """Scale the privacy curve until the accountant's epsilon of the whole run just meets the budget.

    The noise multiplier is z_t = 1/(k r_t) for the relative curve r_t; k is the largest found for which the
    accountant still says at most ``budget.epsilon``. Du et al., Algorithm 1, with any accountant in the CLT's place.

    Args:
        budget: what the whole run may spend.
        sampling: how batches are drawn; sample_rate 1 for full batches.
        steps: number of steps T >= 1; with a `RandomAllocation`, of whole epochs.
        epochs: in place of ``steps``: expected passes over the data, > 0. T is epochs N / B, rounded.
        privacy: curve (or array) of relative mu_t; only its shape matters, so a number, "constant" and nothing all say
            that the noise stays as it is. With a `RandomAllocation` a curve is read
            once an epoch, at its last step, and an array must be constant within each: the proof stops there.
        noise: in place of ``privacy``: curve (or array) of relative noise multipliers z_t = 1/mu_t, of which only the
            shape matters, too. The plan is that of ``privacy`` = 1/z, to the bit.
        clip: curve (or array) of C_t, or a number, which stays as it is. It never changes epsilon.
        batch: curve (or array) of expected batch sizes B_t, in place of the one of ``sampling``: each step draws at its
            own rate B_t/N and divides by its own B_t. By default all are alike.
        accountant: judges the plan; by default `Pld` (`Allocated` with a `RandomAllocation`), whose upper end is
            certified. Where ``sampling`` has a
            ``max_batch_size``, what that costs is added to what it says (`accounting.Truncated`), whoever it is.
        bands: b: from 2 on the noises of b steps in a row are correlated, so that what one step adds a later one takes
            away, and records take turns in b secret groups (`CyclicPoissonSampling`); "auto" tries 1, 2, 4, .. and
            keeps the plan of the least cost. Where it is above 1, or with a ``workload``, the noise of each step
            follows from the workload, too, and ``privacy`` and ``noise`` are left out.
        workload: what the training makes of the noise: a `Workload`, or learning rates (curve or array). By default,
            with several bands, a constant rate without momentum.

    Returns:
        The plan, with epsilon of its guarantee at most ``budget.epsilon`` (and for `Pld` its certified lower end).

    Guarantee: what the plan promises is the accountant's own word on exactly the arrays in the plan; with an
        accountant of kind "estimate" the promise is an estimate, and says so.

    Raises:
        ImpossibleBudget: no scale meets the budget; the message has the nearest that can be met.
        InvalidValue, InvalidType: an argument out of range, both or neither of ``steps`` and ``epochs``, both of
            ``privacy`` and ``noise``, or a curve that is not positive at some step.

    >>> print(calibrate(Budget(1.2, 1e-6), PoissonSampling(60_000, 250), epochs=2, clip=1.5))
    (1.2, 1e-06)-DP per example, Pld upper bound · z 0.8... · C 1.5 · 480 steps
    >>> from decrescendo import curves
    >>> plan = calibrate(
    ...     Budget(epsilon=1.2, delta=1e-6),
    ...     PoissonSampling(dataset_size=60_000, expected_batch_size=250),
    ...     steps=20, privacy=curves.growing_mu(1.25), clip=curves.sensitivity_decay(1.5, rho_c=3.3),
    ... )
    >>> print(plan)
    (1.2, 1e-06)-DP per example, Pld upper bound · z 0.83... -> 0.67... · C 1.413 -> 0.4545 · 20 steps

    The same by a curve of noise multipliers: a noise that falls by a fifth.

    >>> falling = calibrate(
    ...     Budget(1.2, 1e-6), PoissonSampling(60_000, 250), steps=20, noise=curves.linear(1.0, 0.8), clip=1.0
    ... )
    >>> print(falling)
    (1.2, 1e-06)-DP per example, Pld upper bound · z 0.8... -> 0.6... · C 1 · 20 steps

    With noise that is correlated, for a learning rate that falls as a cosine:

    >>> plan = calibrate(
    ...     Budget(epsilon=4.0, delta=1e-6), PoissonSampling(25_000, 500), steps=30, clip=1.0, bands=4,
    ...     workload=curves.cosine(1.0, 0.01),
    ... )
    >>> print(plan)
    (4, 1e-06)-DP per example, Pld upper bound · z ... · C 1 · 4 bands · 30 steps

    With batches that double on the way:

    >>> moving = calibrate(
    ...     Budget(epsilon=1.2, delta=1e-6), PoissonSampling(60_000, 250), steps=2,
    ...     privacy=curves.constant(1.0), clip=curves.constant(1.0), batch=curves.linear(250, 500),
    ... )
    >>> print(moving)
    (1.2, 1e-06)-DP per example, Pld upper bound · z 0.72... · C 1 · B 375 -> 500 · 2 steps
    """
    check_budget(budget)
    if not isinstance(sampling, RandomAllocation | StratifiedPoissonSampling):
        check_instance("sampling", sampling, PoissonSampling)
    if isinstance(sampling, StratifiedPoissonSampling) and batch is not None:
        raise InvalidValue(
            "batches of strata must have one expected size, got batch=. Each stratum has its own rate: leave batch out"
        )
    count = steps_of(sampling, steps, epochs, batch)
    given: Accountant = Pld() if accountant is None else accountant
    check_instance("accountant", given, Accountant, "Try accounting.Pld()")
    if budget.examples_per_person > 1:
        uncut(sampling, "a plan for people with several examples")
        poisson(sampling, "a plan for people with several examples")
        check_person(budget.examples_per_person, sampling)
    judge = (given if isinstance(given, Truncated) else Truncated(given)).protecting(budget)
    relative = relative_privacy(privacy, noise, sampling, count)
    relative = relative / relative.max()
    clips = evaluate("clip", clip, count)
    check_epochs(sampling, given, batch)
    drawn: Sampling = sampling
    if isinstance(sampling, PoissonSampling) and batch is not None:
        drawn = _moving(sampling, evaluate("batch", batch, count))
    if bands is True or bands != 1 or workload is not None:  # (True == 1: refused there)
        _check_left_out(privacy=privacy, noise=noise)
        poissonian = poisson(drawn, "noise that follows a workload or is correlated")
        return correlated(budget, poissonian, clips, given, bands, as_workload(workload))

    def noise_of(scale: float) -> Float[np.ndarray, " steps"]:
        return 1 / (scale * relative)

    def ledger_at(scale: float) -> Ledger:
        return planned(drawn, noise_of(scale))

    if not composes(judge, ledger_at(1.0)):
        _check_cap(ledger_at(1.0), drawn, budget)

    start = steer(judge, ledger_at, first_guess(relative, drawn.rates(count), budget), budget)
    moving = isinstance(drawn, BatchSchedule)
    scale, guarantee = certified_scale(judge, ledger_at, start, budget, moving=moving)
    return Plan(budget, drawn, Schedule(noise_of(scale), clips), guarantee)


def _check_left_out(privacy: object, noise: object) -> None:
    for name, curve in (("privacy", privacy), ("noise", noise)):
        if curve is not None and not (isinstance(curve, str) and curve == "constant"):
            raise InvalidValue(
                f"{name} must be left out with bands and with a workload, got both: the noise of each step follows "
                "from the workload"
            )


def _check_cap(ledger: Ledger, sampling: Sampling, budget: Budget) -> None:
    if left_of(ledger, budget.delta, budget.epsilon) <= 0:
        cap = smallest_cap(ledger, sampling.dataset_size, budget.epsilon, budget.delta)
        raise ImpossibleBudget(
            f"max_batch_size must leave some of delta={budget.delta:g}, got max_batch_size={sampling.max_batch_size}: "
            f"a record meets a full batch with probability {overflow_of(ledger):.3g}, which costs more. {cap} costs a "
            "hundredth of delta"
        )


def _moving(sampling: PoissonSampling, sizes: Float[np.ndarray, " steps"]) -> Sampling:
    """Batches of these expected sizes: a schedule only where they differ."""
    if sizes.min() == sizes.max():
        return PoissonSampling(sampling.dataset_size, float(sizes[0]), sampling.max_batch_size)
    return BatchSchedule(sampling.dataset_size, sizes, sampling.max_batch_size)


def calibrate_selection(
    budget: Budget,
    sampling: PoissonSampling,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    privacy: CurveOrValues | Literal["constant"] = "constant",
    clip: CurveOrValues,
    trials: Trials,
) -> tuple[Plan, Guarantee]:
    """The plan of one trial such that a whole search, the best of ``trials``, meets the budget.

    Args:
        budget: what the whole search may spend.
        sampling: how the batches of every trial are drawn.
        steps: steps of a trial.
        epochs: in place of ``steps``: expected passes of a trial over the data.
        privacy: curve (or array) of relative mu_t of a trial; only its shape matters. By default it is constant.
        clip: curve (or array) of C_t, or a number; trials may have others, it never changes epsilon.
        trials: how many; drawn by ``trials.draw`` before the first one.

    Returns:
        The plan of one trial, with its own certified guarantee, and the guarantee of the whole search, which is the
        one to publish with the winner.

    Guarantee: that of `accounting.Selection`, under its conditions on the search, which cannot be seen from here.

    Raises:
        ImpossibleBudget: no amount of noise meets the budget, or none is needed.
        InvalidValue, InvalidType: from the arguments.

    >>> from decrescendo import curves
    >>> plan, search = calibrate_selection(
    ...     Budget(1.2, 1e-6), PoissonSampling(60_000, 250),
    ...     steps=500, privacy=curves.constant(1.0), clip=curves.constant(1.0), trials=Trials(mean=10, shape=0),
    ... )
    >>> print(search)
    (1.2, 1e-06)-DP per example, Selection of 10 expected trials (logarithmic) upper bound
    >>> print(plan.guarantee)
    (0.4029, 1e-06)-DP per example, Pld upper bound (true epsilon >= 0.4026)
    """
    uncut(sampling, "a search")
    judge = Selection(trials)
    count = steps_of(sampling, steps, epochs)
    found = calibrate(budget, sampling, steps=count, privacy=privacy, clip=clip, accountant=judge)
    one = Pld().certify(found.ledger, budget)
    if one.epsilon == 0:
        raise ImpossibleBudget(
            f"a trial must spend some epsilon, got none at delta={budget.delta:g}: records take part no more often "
            "than delta allows. Ask for a smaller delta"
        )
    plan = Plan(Budget(one.epsilon, budget.delta, budget.unit), sampling, found.schedule, one)
    whole = Guarantee(
        found.guarantee.epsilon, budget.delta, budget.unit, f"{judge.name} of {trials}", found.guarantee.kind
    )
    return plan, whole
