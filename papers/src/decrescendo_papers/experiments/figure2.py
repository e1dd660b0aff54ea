"""Figure 2 of Du et al.: how much of the budget is spent after so many steps, for several rho_mu."""

from decrescendo_papers.experiments.figure import Figure
from decrescendo_papers.experiments.table import base_spec

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
