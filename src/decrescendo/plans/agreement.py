"""`Agreement`: the decisions before a run starts, in two forms; code that runs or checks a run treats both alike.

========  ==============  =====================================  =====================================
form      class           noise of each step                     price
========  ==============  =====================================  =====================================
fixed     `Plan`          in the plan                            what an accountant certifies of it
adaptive  `AdaptivePlan`  decided during the run, asked of a filter  the filter's whole budget, whatever is
                                                                 spent of it
========  ==============  =====================================  =====================================
"""

from decrescendo.plans.adaptive_plan import AdaptivePlan
from decrescendo.plans.plan import Plan

Agreement = Plan | AdaptivePlan


def read_agreement(kind: str, text: str, *, source: str) -> Agreement:
    """An agreement of the form ``kind`` from `to_json`'s text.

    Raises:
        FileRefused: damaged, foreign, newer, or of the other form.
    """
    return (Plan if kind == "plan" else AdaptivePlan).from_json(text, source=source)
