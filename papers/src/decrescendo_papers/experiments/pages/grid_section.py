"""Figure 3: accuracy over the grid of 1/rho_mu and 1/rho_c."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from decrescendo.report import Paired, paired
from decrescendo_papers.experiments.alike import above, first_of_least, first_of_most
from decrescendo_papers.experiments.comparisons import seeds_in_words
from decrescendo_papers.experiments.figure import Figure
from decrescendo_papers.experiments.figures import COARSE, EPSILON, TASK, WHOLE, grid_spec
from decrescendo_papers.experiments.heat import draw_heat
from decrescendo_papers.experiments.pages.archive import Archive, Sources
from decrescendo_papers.experiments.pages.scores import Score, score_of
from decrescendo_papers.experiments.table import base_spec


def scores(archive: Archive) -> dict[tuple[float, float], Score]:
    """Finished points of the grid by (1/rho_mu, 1/rho_c)."""
    found = {(mu, c): score_of(archive.of(grid_spec(mu, c))) for mu in WHOLE for c in WHOLE}
    return {point: score for point, score in found.items() if score.seeds}


def shown(found: dict[tuple[float, float], Score]) -> Sequence[float]:
    """The coarse grid, or the whole one as soon as a run of it is there."""
    whole = any(mu not in COARSE or c not in COARSE for mu, c in found)
    return WHOLE if whole else COARSE


def matrix(found: dict[tuple[float, float], Score], values: Sequence[float]) -> Float[np.ndarray, "rows columns"]:
    """Mean accuracy in %: a row each 1/rho_c, a column each 1/rho_mu."""
    return np.array([[found[mu, c].mean if (mu, c) in found else np.nan for mu in values] for c in values])


def draw_grid(_: Figure, sources: Sources, path: Path) -> Path | None:
    """The drawing; nothing without results."""
    found = scores(sources.archive)
    if not found:
        return None
    values = shown(found)
    return draw_heat(
        matrix(found, values), values, values, path,
        row_label="$1 / \\rho_c$", column_label="$1 / \\rho_\\mu$", label="test accuracy (%)",
    )  # fmt: skip


def grid_words(_: Figure, sources: Sources) -> str:
    """What is seen."""
    found = scores(sources.archive)
    if not found:
        return ""
    values = shown(found)
    counts = sorted({score.seeds for score in found.values()})
    best, worst = (pick(found, lambda point: found[point].mean) for pick in (first_of_most, first_of_least))
    lines = [
        f"- {len(found)} of {len(values) ** 2} points are finished, with {_range(counts)} a point.",
        f"- The best {'score' if counts == [1] else 'mean'} is {found[best].shown} at {_point(best)}, the worst "
        f"{found[worst].shown} at {_point(worst)}: "
        f"{found[best].mean - found[worst].mean:.2f} points apart.",
    ]
    gains = above_vanilla(sources.archive)
    if gains:
        means = [gain.mean for gain in gains.values()]
        better = sum(above(mean, 0.0, size=100.0) for mean in means)
        lines.append(
            f"- {better} of {len(gains)} points are above vanilla DP-SGD at the same claimed epsilon, compared over "
            f"the seeds that both have ({_range(sorted({gain.seeds for gain in gains.values()}))}; nothing is tested): "
            f"by {min(means):+.2f} to {max(means):+.2f} points."
        )
    return "\n".join(lines)


def above_vanilla(archive: Archive) -> dict[tuple[float, float], Paired]:
    """Differences to vanilla DP-SGD at every point, over the seeds that both have."""
    spec = base_spec(TASK, epsilon=EPSILON, accountant="clt", settings={"method": "constant"})
    vanilla = score_of(archive.of(spec)).by_seed
    pairs = {point: paired(score.by_seed, vanilla) for point, score in scores(archive).items()}
    return {point: pair for point, pair in pairs.items() if pair.seeds}


def mean_of(gains: Mapping[tuple[float, float], Paired]) -> Paired:
    """Mean over the points, a difference a seed, where all points have the same number of seeds; else of the means."""
    if len({gain.seeds for gain in gains.values()}) > 1:
        return Paired((math.fsum(gain.mean for gain in gains.values()) / len(gains),), 100.0)
    by_seed = zip(*(gain.differences for gain in gains.values()), strict=True)
    return Paired(tuple(math.fsum(values) / len(values) for values in by_seed), 100.0)


def _point(point: tuple[float, float]) -> str:
    return f"1/rho_mu = {point[0]:g}, 1/rho_c = {point[1]:g}"


def _range(counts: Sequence[int]) -> str:
    return f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else seeds_in_words(counts[0])
