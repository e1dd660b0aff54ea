"""Figure 4 of Du et al.: the privacy cost of dynamic DP-SGD over the steps, by the CLT and by Renyi accounting."""

from decrescendo_papers.experiments.figure import Figure
from decrescendo_papers.experiments.methods import DYNAMIC
from decrescendo_papers.experiments.table import base_spec

FIGURE4 = Figure(
    key="figure4",
    title="Figure 4: privacy cost of dynamic DP-SGD, CLT and Renyi",
    notes=(
        "The paper draws the CLT as a lower bound and Renyi accounting as an upper bound, and concludes that the CLT "
        "is reasonable because the two are close, above all where privacy is strong. It does not state the settings: "
        "those of MNIST in Table 1 are taken, at three claimed epsilons.",
        "The certified bracket is drawn beside them: the truth lies in it. The CLT is an estimate, not a lower bound.",
    ),
    curves={
        f"epsilon {epsilon:g}": base_spec(
            "mnist", epsilon=epsilon, accountant="clt", settings=DYNAMIC.settings
        )
        for epsilon in (0.4, 1.2, 3.0)
    },
    points=12,
)
