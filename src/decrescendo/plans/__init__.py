"""Decisions before a run starts: sampling, curves, schedules, and the plan that meets a budget. Without torch.

===========================  ==========================================================================================
`calibrate`                  from a budget, a sampling and curves to a `Plan` that is certified to meet the budget
`Plan`                       the frozen outcome: schedule, guarantee, and a file of both
`PoissonSampling`            how batches are drawn; `BatchSchedule`, with an expected size of its own at every step
`RandomAllocation`           each example once an epoch, in the place of `PoissonSampling`
`CyclicPoissonSampling`      records take turns by a secret group: the sampling of correlated noise
`Workload`                   what an optimiser makes of the noise of its steps: correlated noise is chosen for it
`StratifiedPoissonSampling`  rare records more often: each stratum at a public rate of its own
`curves`                     shapes of noise and clip norms; `schedule_curves` has the papers' by name
`allocate`                   the noise that is felt least, given the influence of each step's noise (`noise_influence`)
`Agreement`                  a `Plan` (the fixed form) or an `AdaptivePlan` (the adaptive form)
`AdaptivePlan`               the agreement of a run that decides on the way: a filter's whole budget as its price
===========================  ==========================================================================================
"""

from decrescendo.plans import curves
from decrescendo.plans.adaptive_plan import AdaptivePlan
from decrescendo.plans.agreement import Agreement
from decrescendo.plans.allocation import allocate, noise_cost
from decrescendo.plans.calibration import calibrate, calibrate_selection
from decrescendo.plans.cyclic_sampling import CyclicPoissonSampling
from decrescendo.plans.named import SCHEDULES, schedule_curves
from decrescendo.plans.noise_influence import noise_influence
from decrescendo.plans.plan import Plan
from decrescendo.plans.progress import Curve, CurveOrValues
from decrescendo.plans.sampling import BatchSchedule, PoissonSampling, RandomAllocation
from decrescendo.plans.schedule import Schedule
from decrescendo.plans.stratified_sampling import StratifiedPoissonSampling
from decrescendo.plans.workload import Workload

__all__ = [
    "AdaptivePlan", "Agreement", "BatchSchedule", "Curve", "CurveOrValues", "CyclicPoissonSampling", "Plan",
    "PoissonSampling", "RandomAllocation", "SCHEDULES", "Schedule", "StratifiedPoissonSampling", "Workload",
    "allocate", "calibrate", "calibrate_selection", "curves", "noise_cost", "noise_influence", "schedule_curves",
]  # fmt: skip
