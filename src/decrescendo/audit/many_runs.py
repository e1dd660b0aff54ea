"""Train many times with a record and without it, and see how well the releases tell which."""

import numpy as np

from decrescendo.accounting.budget import check_budget
from decrescendo.audit.attack import Attack
from decrescendo.audit.curve import PrivacyCurve
from decrescendo.audit.error_rates import errors_epsilon
from decrescendo.audit.result import AuditResult
from decrescendo.audit.threshold import choose_threshold, rates_at
from decrescendo.base.rng import Secure, Streams
from decrescendo.errors import check_integer, check_real
from decrescendo.training.run import certified_epsilon

_TESTS = 2
# To choose by: with the confidence asked for, few runs show nothing, and every threshold would be as good.
_LIKELY = 0.5


def many_runs(
    attack: Attack, *, runs: int, seed: int | Secure, confidence: float = 0.95, choosing: float = 0.3
) -> AuditResult:
    """Audit with many runs, half of them with the record: some runs choose a threshold, the others count errors.

    Two tests, each with half of 1 - ``confidence``: `errors_epsilon`, which assumes nothing but (epsilon,
    delta)-DP, and `PrivacyCurve.epsilon`, which holds the plan's whole privacy curve against the errors. With n runs
    the first shows nothing above about log(n/10), however much is leaked.

    Args:
        attack: the data sets.
        runs: even, >= 8.
        seed: of the audit, whole number >= 0; or `Secure()`, which audits unpredictable noise and batches.
        confidence: in (0, 1).
        choosing: share of the runs that the thresholds are chosen on, in (0, 1).

    Guarantee:
        runs are independent and the thresholds do not depend on the runs they are counted on, so both rates have exact
        confidence intervals.

    >>> from decrescendo.accounting import Budget
    >>> from decrescendo.audit.attacks import batch_size
    >>> many_runs(batch_size(Budget(4.0, 1e-5), steps=1), runs=40, seed=1).counts["runs counted on"]
    28
    """
    check_budget(attack.plan.budget)  # without a promise there is nothing to refute
    each = check_integer("runs", runs, at_least=8) // 2
    share = 1 - (1 - check_real("confidence", confidence, above=0, below=1)) / _TESTS
    check_real("choosing", choosing, above=0, below=1)
    absent, present = np.empty(each), np.empty(each)
    for run in range(each):
        for column, is_present in ((absent, False), (present, True)):
            one = seed if isinstance(seed, Secure) else Streams(seed).child(2 * run + is_present).seed
            column[run] = attack.play(present=is_present, seed=one)
    first = min(max(2, round(choosing * each)), each - 2)
    budget = attack.plan.budget
    curve, delta = PrivacyCurve(attack.plan.ledger, budget.examples_per_person), budget.delta
    by_bound = choose_threshold(absent[:first], present[:first], lambda rates: errors_epsilon(rates, delta, _LIKELY))
    by_curve = choose_threshold(absent[:first], present[:first], lambda rates: curve.excess(*rates.upper(_LIKELY)))
    bound_rates = rates_at(by_bound, absent[first:], present[first:])
    curve_rates = rates_at(by_curve, absent[first:], present[first:])
    return AuditResult(
        method="many runs",
        attack=attack.name,
        certified=certified_epsilon(attack.plan),
        delta=delta,
        confidence=confidence,
        runs=2 * each,
        canaries=1,
        lower=errors_epsilon(bound_rates, delta, share),
        lower_by_curve=curve.epsilon(curve_rates, delta, share),
        counts={
            "runs counted on": 2 * (each - first),
            "false positives": bound_rates.false_positives,
            "false negatives": bound_rates.false_negatives,
            "false positives by the curve's threshold": curve_rates.false_positives,
            "false negatives by the curve's threshold": curve_rates.false_negatives,
        },
        tests=_TESTS,
        plan_sha256=attack.plan.sha256,
    )
