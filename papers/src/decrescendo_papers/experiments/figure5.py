"""Figure 5 of Du et al. (appendix A.1): how long gradients are as training goes, on Fashion-MNIST."""

from decrescendo_papers.experiments.figure import Figure
from decrescendo_papers.experiments.lengths import length_runs

FIGURE5 = Figure(
    key="figure5",
    title="Figure 5: length of the gradients over the steps, Fashion-MNIST",
    notes=("As Figure 1, on Fashion-MNIST. The paper states no budget here: that of Figure 1 is taken.",),
    runs=length_runs("fashion-mnist"),
)
