"""Figures 2 and 4: what is spent after so many steps, by the paper's accountants and certified."""

from pathlib import Path

import numpy as np
from jaxtyping import Float

from decrescendo.accounting import rounded
from decrescendo.base.markdown import table
from decrescendo.report import Scores
from decrescendo_papers.experiments.costs import Costs, find
from decrescendo_papers.experiments.figure import Figure
from decrescendo_papers.experiments.pages.archive import Sources
from decrescendo_papers.experiments.pages.settings import setting
from decrescendo_papers.experiments.panels import Panel, draw_panels

CLT, CERTIFIED, RENYI = "CLT (estimate)", "certified bracket", "Renyi (upper bound)"


def curves(figure: Figure, folder: Path) -> dict[str, Costs]:
    """The curves that are there, by name."""
    found = {name: find(folder, spec, figure.points) for name, spec in figure.curves.items()}
    return {name: costs for name, costs in found.items() if costs is not None}


def _line(costs: Costs, *values: list[float]) -> Scores:
    return Scores([0, *costs.steps], [[0.0, *series] for series in values])


def draw_consumption(figure: Figure, sources: Sources, path: Path) -> Path | None:
    """Figure 2: a line a schedule; the CLT beside the certified upper end."""
    found = curves(figure, sources.curves)
    if not found:
        return None
    epsilon = next(iter(figure.curves.values())).epsilon
    level, delta = (epsilon, f"budget {epsilon:g}"), setting(next(iter(figure.curves.values())).delta)
    top = max(max(costs.upper) for costs in found.values())
    panels = [
        Panel({_symbol(name): _line(costs, costs.clt) for name, costs in found.items()},
              f"claimed $\\varepsilon$ spent, $\\delta$ = {delta}", "As the paper counts (CLT)", level, True, top=top),
        Panel({_symbol(name): _line(costs, costs.upper) for name, costs in found.items()},
              "certified $\\varepsilon$ spent, upper end", "Certified, the very same steps", level, True, top=top),
    ]  # fmt: skip
    return draw_panels(panels, path)


def _symbol(name: str) -> str:
    return name.replace("rho_mu", "$\\rho_\\mu$")


def draw_accountants(figure: Figure, sources: Sources, path: Path) -> Path | None:
    """Figure 4: a panel a budget; CLT, certified bracket and Renyi."""
    found = curves(figure, sources.curves)
    if not found:
        return None
    panels = [
        Panel(
            {
                CLT: _line(costs, costs.clt),
                CERTIFIED: _line(costs, costs.lower, costs.upper),
                RENYI: _line(costs, costs.renyi),
            },
            f"$\\varepsilon$ spent, $\\delta$ = {setting(figure.curves[name].delta)}" if i == 0 else "",
            f"claimed {name}",
            markers=True,
        )
        for i, (name, costs) in enumerate(found.items())
    ]
    return draw_panels(panels, path)


def costs_words(figure: Figure, sources: Sources) -> str:
    """The numbers at half of the steps and at the end, and how the accountants lie to each other."""
    found = curves(figure, sources.curves)
    rows = [
        [
            name,
            str(costs.steps[at]),
            f"{costs.clt[at]:.4f}",
            f"{rounded(costs.lower[at], 'down')} .. {rounded(costs.upper[at], 'up')}",
            f"{costs.renyi[at]:.4f}",
            f"{100 * (costs.lower[at] / costs.clt[at] - 1):+.2f} %",
            f"{100 * (costs.renyi[at] / costs.upper[at] - 1):+.2f} %",
        ]
        for name, costs in found.items()
        for at in (len(costs.steps) // 2 - 1, len(costs.steps) - 1)
    ]
    parts: list[str] = []
    if rows:
        header = [
            "schedule",
            "steps",
            "CLT",
            "certified",
            "Renyi",
            "lower end over CLT",
            "Renyi over upper end",
        ]
        parts += [table(header, rows, "lrrrrrr"), how_they_lie(found)]
    missing = [name for name in figure.curves if name not in found]
    if missing:
        parts.append(f"- **Unfinished**: not computed yet: {', '.join(missing)}.")
    return "\n\n".join(parts)


def how_they_lie(found: dict[str, Costs]) -> str:
    """Which of the accountants is above which, in two sentences."""
    clt, lower, upper, renyi = (
        np.concatenate([getattr(costs, name) for costs in found.values()])
        for name in ("clt", "lower", "upper", "renyi")
    )
    below, above = int((clt < lower).sum()), int((renyi >= upper).sum())
    return (
        f"- At {below} of {len(clt)} points the CLT's claim is below the certified lower end, so proved to be too "
        f"small; at {above} of {len(clt)} Renyi accounting is at or above the certified upper end.\n"
        f"- In the mean the CLT lies {_aside(clt / upper)} the certified upper end, Renyi accounting "
        f"{_aside(renyi / upper)} it."
    )


def _aside(ratios: Float[np.ndarray, " points"]) -> str:
    """How far, and on which side.

    >>> _aside(np.array([1.1, 1.1])), _aside(np.array([0.9]))
    ('10.00 % above', '10.00 % below')
    """
    away = 100 * float(np.mean(ratios - 1))
    return f"{abs(away):.2f} % {'above' if away >= 0 else 'below'}"
