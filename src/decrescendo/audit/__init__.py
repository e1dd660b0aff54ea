"""Attacks on our own privacy: lower bounds on epsilon from what trainings release, with confidence.

=====================  ===========================================================================================
`one_run`              one training with many canaries, each in by a coin; the coins are guessed
`many_runs`            many small trainings with and without a record, on a data set made for it (`attacks`)
`AuditResult`          what was found, beside what is certified; JSON
`one_run_epsilon`      right guesses to epsilon (Steinke, Nasr and Jagielski 2023), assuming (epsilon, delta)-DP only
`errors_epsilon`       errors over independent trials to epsilon (Clopper and Pearson)
`PrivacyCurve`         errors against the whole privacy curve of a ledger
`noise_p_value`        is the noise as large as declared? exact
=====================  ===========================================================================================

An audit can show that a training is broken, never that it is right: an upper bound is what accountants are for.
"""

from decrescendo.audit import attacks
from decrescendo.audit.attack import Attack
from decrescendo.audit.curve import PrivacyCurve
from decrescendo.audit.error_rates import ErrorRates, errors_epsilon
from decrescendo.audit.many_runs import many_runs
from decrescendo.audit.noise_check import noise_p_value
from decrescendo.audit.one_run import one_run
from decrescendo.audit.one_run_bound import one_run_epsilon, one_run_p_value
from decrescendo.audit.result import AuditResult

__all__ = [
    "attacks",
    "one_run",
    "many_runs",
    "AuditResult",
    "Attack",
    "ErrorRates",
    "PrivacyCurve",
    "one_run_epsilon",
    "one_run_p_value",
    "errors_epsilon",
    "noise_p_value",
]
