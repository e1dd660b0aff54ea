"""Figure 1 of Du et al.: how long gradients are as training goes, on MNIST."""

from decrescendo_papers.experiments.figure import Figure
from decrescendo_papers.experiments.lengths import length_runs

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
