"""Table 4 of Du et al.: federated InfiniteMNIST, one image a client, and clients of ten images."""

from decrescendo_papers.experiments.methods import (
    DYNAMIC,
    END_CLIP,
    GROWING_MU,
    LINEAR,
    MEAN_CLIP,
    SENSITIVITY_DECAY,
    VANILLA,
)
from decrescendo_papers.experiments.table import Column, Row, Table

RECORDS = 10
# A tenth of the clients and the same cohort: a tenth of the rounds, so steps are longer by the root of ten. A rule, not
# a search.
LONGER = 10**0.5


def _of_ten(row: Row) -> Row:
    """The same for clients of ten images."""
    changed = row.changed(
        f"{row.key}-{RECORDS}",
        f"{row.label}, {RECORDS} images a client",
        {"records": RECORDS, "rate_factor": LONGER},
    )
    return changed.as_control()


TABLE4 = Table(
    key="table4",
    title="Table 4: federated InfiniteMNIST",
    columns=tuple(
        Column(task, epsilon) for task in ("infinite-mnist-250k", "infinite-mnist-500k") for epsilon in (0.1, 0.4, 1)
    ),
    rows=(
        VANILLA.reports(93.47, 95.71, 96.02, 94.82, 96.55, 96.89),
        DYNAMIC.reports(94.72, 96.00, 96.55, 95.88, 96.95, 97.22),
        SENSITIVITY_DECAY.reports(94.46, 95.90, 96.40, 95.75, 96.83, 97.06),
        GROWING_MU.reports(93.75, 95.93, 96.13, 95.65, 96.76, 97.05),
        LINEAR,
        END_CLIP,
        MEAN_CLIP,
        _of_ten(VANILLA),
        _of_ten(DYNAMIC),
    ),
    notes=(
        "A client is a unit of privacy: cohorts are drawn by independent coins, 250 clients expected a round, and each "
        "client's update (one gradient, the mean over its images) is clipped to C_t. The noise is the server's. "
        "The rounds are run by `federated.simulate`, whose weights equal those of the deployed path.",
        "Appendix A.9 of the paper states sampling rates of 1e-3 and 5e-4, which is a cohort of 250 expected, and the "
        "network of MNIST. It states no rounds, rate and C_0: 5,000, and MNIST's 0.15 and 1.5, are inferred.",
        "The images are made by our own generator (`data.infinite`): train images of MNIST, then their deformations. "
        "The test images are MNIST's. delta = 1/(10 clients).",
        "Clients of ten images: the same images, ten in a row a client, the same cohort, so a tenth of the rounds; the "
        "rate is longer by the root of ten, a rule and no search. Paper's clients have one image.",
    ),
    persons=("vanilla", "dynamic", f"vanilla-{RECORDS}", f"dynamic-{RECORDS}"),
    plain={"infinite-mnist-250k": 98.89, "infinite-mnist-500k": 98.96},
)
