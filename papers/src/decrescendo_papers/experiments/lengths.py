"""Runs that record how long the gradients are, for Figures 1 and 5."""

from decrescendo_papers.experiments.methods import DYNAMIC, VANILLA
from decrescendo_papers.experiments.spec import NOT_PRIVATE, Spec
from decrescendo_papers.experiments.table import base_spec

# The budget and steps that the caption of Figure 1 states; otherwise the settings of Table 1.
EPSILON, DELTA, STEPS, POINTS = 0.4, 1e-5, 5000, 50
METHODS = {"SGD": {"method": NOT_PRIVATE}, "DP-SGD": VANILLA.settings, "dynamic DP-SGD": DYNAMIC.settings}


def length_runs(task: str) -> dict[str, Spec]:
    """SGD, DP-SGD and dynamic DP-SGD on ``task``, by name."""
    found: dict[str, Spec] = {}
    for name, settings in METHODS.items():
        private = settings["method"] != NOT_PRIVATE
        epsilon, accountant = (EPSILON, "clt") if private else (0.0, "none")
        changes = {**settings, "delta": DELTA, "steps": STEPS, "trace": POINTS}
        spec = base_spec(task, epsilon=epsilon, accountant=accountant, settings=changes)
        found[f"{task}/{epsilon:g}/{name}"] = spec
    return found
