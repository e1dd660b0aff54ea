"""Figures 1 to 5 of Du et al. as data: the runs and the cost curves that each is drawn from."""

from collections.abc import Mapping, Sequence
from typing import Any

from decrescendo_papers.experiments.figure import Figure
from decrescendo_papers.experiments.methods import DYNAMIC, GROWING_MU, SENSITIVITY_DECAY, VANILLA
from decrescendo_papers.experiments.spec import NOT_PRIVATE, Spec
from decrescendo_papers.experiments.table import base_spec

# Figures 1 and 5 (appendix A.1): how long gradients are as training goes.
# The budget and steps that the caption of Figure 1 states; otherwise the settings of Table 1.
LENGTH_EPSILON, LENGTH_DELTA, LENGTH_STEPS, LENGTH_POINTS = 0.4, 1e-5, 5000, 50
LENGTH_METHODS = {
    "SGD": {"method": NOT_PRIVATE},
    "DP-SGD": VANILLA.settings,
    "dynamic DP-SGD": DYNAMIC.settings,
}


def length_runs(task: str, methods: Mapping[str, Mapping[str, Any]] = LENGTH_METHODS) -> dict[str, Spec]:
    """The methods on ``task``, by name: SGD, DP-SGD and dynamic DP-SGD."""
    found: dict[str, Spec] = {}
    for name, settings in methods.items():
        private = settings["method"] != NOT_PRIVATE
        epsilon, accountant = (LENGTH_EPSILON, "clt") if private else (0.0, "none")
        changes = {**settings, "delta": LENGTH_DELTA, "steps": LENGTH_STEPS, "trace": LENGTH_POINTS}
        spec = base_spec(task, epsilon=epsilon, accountant=accountant, settings=changes)
        found[f"{task}/{epsilon:g}/{name}"] = spec
    return found


FIGURE1 = Figure(
    key="figure1",
    title="Figure 1: length of the gradients over the steps, MNIST",
    notes=(
        "The paper shows the average coordinate of the stochastic gradient's norm over all records at each step, at "
        "(0.4, 1e-5) after 5,000 steps, and speaks of a ramp-up of DP-SGD that dynamic DP-SGD avoids.",
        "Here: the mean length of the gradients of 1,000 training examples, before clipping, after steps 1, 2, 4, .., "
        "64 and after every 100th of the 5,000 steps. The paper does not say which average over coordinates it takes: "
        "the axis on the right has the root mean square, which is the length over the root of their number, and has "
        "the same shape.",
    ),
    runs=length_runs("mnist"),
)

FIGURE5 = Figure(
    key="figure5",
    title="Figure 5: length of the gradients over the steps, Fashion-MNIST",
    notes=("As Figure 1, on Fashion-MNIST. The paper states no budget here: that of Figure 1 is taken.",),
    runs=length_runs("fashion-mnist"),
)

# Section 4.2: "mu_t grows at the expense of early convergence speed", "sensitivity decay ensures more stable
# convergence".
FAST_AND_STABLE = {
    "DP-SGD": VANILLA.settings,
    "growing mu": GROWING_MU.settings,
    "sensitivity decay": SENSITIVITY_DECAY.settings,
    "dynamic DP-SGD": DYNAMIC.settings,
}
CONVERGENCE = Figure(
    key="convergence",
    title="Section 4.2: how fast and how stably the methods converge",
    notes=(
        "The paper says that growing mu pays with early convergence speed and that sensitivity decay converges more "
        "stably, and names no measure of either. Ours, set before the runs of these two methods: the mean test "
        "accuracy over the first quarter of the steps, and the standard deviation of its changes from one recorded "
        "step to the next (100 steps) over the second half.",
        "DP-SGD and dynamic DP-SGD are the runs of Figures 1 and 5, by an earlier version that drew other noise from "
        "the same seeds: weights to begin with and batches are shared, noise is not.",
    ),
    runs={key: spec for task in ("mnist", "fashion-mnist") for key, spec in length_runs(task, FAST_AND_STABLE).items()},
)

# Figure 2: how much of the budget is spent after so many steps, for several rho_mu.
RHO_MU = (1.0, 1.25, 2.0, 5.0)

FIGURE2 = Figure(
    key="figure2",
    title="Figure 2: consumption of the budget over the steps, epsilon 1.2",
    notes=(
        "The paper shows the epsilon that the CLT claims for the steps so far, for growing mu at several rho_mu and "
        "epsilon 1.2; rho_mu = 1 is vanilla DP-SGD. It states neither the values of rho_mu nor delta and steps: those "
        "of MNIST in Table 1 are taken.",
    ),
    curves={
        f"rho_mu = {rho:g}": base_spec(
            "mnist", epsilon=1.2, accountant="clt", settings={"method": "growing-mu", "rho_mu": rho}
        )
        for rho in RHO_MU
    },
    points=16,
)

# Figure 3: accuracy over the grid of 1/rho_mu and 1/rho_c.
TASK, EPSILON = "mnist", 0.4
WHOLE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
COARSE = (0.2, 0.4, 0.6, 0.8)


def grid_spec(inverse_mu: float, inverse_c: float) -> Spec:
    """The run at one point of the grid."""
    settings = {"method": "dynamic", "rho_mu": 1 / inverse_mu, "rho_c": 1 / inverse_c}
    return base_spec(TASK, epsilon=EPSILON, accountant="clt", settings=settings)


def grid(values: Sequence[float]) -> dict[str, Spec]:
    """All points with both coordinates of ``values``."""
    return {f"{TASK}/{EPSILON:g}/{mu:g}x{c:g}": grid_spec(mu, c) for mu in values for c in values}


GRID_NOTES = (
    "The paper sweeps 1/rho_mu and 1/rho_c over 0.1, 0.2 .. 0.8 and calls the method robust to both. It states neither "
    "task nor epsilon: MNIST at a claimed 0.4 is taken.",
    "A coarse grid is run by default; `papers reproduce figure3-whole` runs all 64 points.",
)
FIGURE3 = Figure(
    key="figure3",
    title="Figure 3: accuracy over 1/rho_mu and 1/rho_c",
    notes=GRID_NOTES,
    runs=grid(COARSE),
)
FIGURE3_WHOLE = Figure(key="figure3-whole", title="Figure 3, all 64 points", notes=GRID_NOTES, runs=grid(WHOLE))

# Figure 4: the privacy cost of dynamic DP-SGD over the steps, by the CLT and by Renyi accounting.
FIGURE4 = Figure(
    key="figure4",
    title="Figure 4: privacy cost of dynamic DP-SGD, CLT and Renyi",
    notes=(
        "The paper draws the CLT as a lower bound and Renyi accounting as an upper bound, and concludes that the CLT "
        "is reasonable because the two are close, above all where privacy is strong. It does not state the settings: "
        "those of MNIST in Table 1 are taken, at three claimed epsilons.",
        "The certified bracket is drawn beside them: the truth lies in it. The CLT is an estimate, not a lower bound.",
        "Renyi accounting takes the best of a list of orders, and its curve has kinks where the best one changes. With "
        "orders 0.1 apart up to 12 it was 0.6, 4.5 and 0.0 % lower at 400, 2,800 and 4,800 steps of epsilon 3, and the "
        "same to four digits at the last step of the others.",
    ),
    curves={
        f"epsilon {epsilon:g}": base_spec("mnist", epsilon=epsilon, accountant="clt", settings=DYNAMIC.settings)
        for epsilon in (0.4, 1.2, 3.0)
    },
    points=12,
)
