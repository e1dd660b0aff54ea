"""Table 5 of Du et al.: VGG-11 on paediatric chest X-rays, on the official split and on a random one."""

from decrescendo_papers.experiments.methods import DYNAMIC, GROWING_MU, SENSITIVITY_DECAY, VANILLA
from decrescendo_papers.experiments.table import Column, Table

# The paper's split is not known: its numbers stand beside both.
TABLE5 = Table(
    key="table5",
    title="Table 5: VGG-11 on chest X-rays",
    columns=tuple(Column(task, epsilon) for task in ("xray", "xray-random") for epsilon in (0.5, 1, 1.5)),
    rows=(
        VANILLA.reports(*(92.24, 93.18, 93.44) * 2),
        DYNAMIC.reports(*(93.30, 94.01, 94.43) * 2),
        SENSITIVITY_DECAY.reports(*(92.89, 93.78, 94.24) * 2),
        GROWING_MU.reports(*(92.60, 93.65, 94.01) * 2),
    ),
    notes=(
        "The paper names a VGG-11 without batch normalisation and no settings. Here: 64x64 grey images, "
        "batch 128, 5 epochs, SGD at 0.05, C_0 = 1, no pre-trained weights, 10.5 million parameters.",
        "The official test half has another share of pneumonia (62.5 %) than the training half (74.2 %). "
        "The paper's split is not known; its 93 % can hardly be the official one. A random 85/15 split "
        "stands beside it.",
    ),
    plain={"xray": 97.02, "xray-random": 97.02},
)
