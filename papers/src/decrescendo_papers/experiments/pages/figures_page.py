"""The page of all figures."""

from collections.abc import Callable
from pathlib import Path

from decrescendo_papers.experiments.figure import Figure
from decrescendo_papers.experiments.pages.archive import Sources
from decrescendo_papers.experiments.pages.convergence_section import convergence_words, draw_convergence
from decrescendo_papers.experiments.pages.costs_section import (
    costs_words,
    curves,
    draw_accountants,
    draw_consumption,
)
from decrescendo_papers.experiments.pages.grid_section import draw_grid, grid_words
from decrescendo_papers.experiments.pages.lengths_section import draw_lengths, lengths_words
from decrescendo_papers.experiments.pages.settings import machines_table, settings_table
from decrescendo_papers.experiments.reproduce import FIGURES
from decrescendo_papers.experiments.spec import Spec

Draw = Callable[[Figure, Sources, Path], Path | None]
Words = Callable[[Figure, Sources], str]

# In the paper's order: how each is drawn, and what is said of it.
SECTIONS: dict[str, tuple[Draw, Words]] = {
    "figure1": (draw_lengths, lengths_words),
    "figure2": (draw_consumption, costs_words),
    "figure3": (draw_grid, grid_words),
    "figure4": (draw_accountants, costs_words),
    "figure5": (draw_lengths, lengths_words),
    "convergence": (draw_convergence, convergence_words),
}


def draw_figures(sources: Sources, folder: Path) -> list[Path]:
    """Draw every figure that has something to show into ``folder``."""
    drawn = [draw(FIGURES[key], sources, folder / f"{key}.png") for key, (draw, _) in SECTIONS.items()]
    return [path for path in drawn if path is not None]


def figures_page(sources: Sources) -> str:
    """The whole page; a figure without results is said to be unfinished."""
    parts = [
        "# Figures 1 to 5",
        "Figures of Du et al. 2022, drawn by `papers report` from the finished runs in `results/runs` and the "
        "cost curves in `results/figures`; typed by hand are the lines that begin a section. Bands go from the lowest "
        "to the highest seed; where thin lines are the seeds, the thick one is their median, and what is below the "
        "axis has left the picture: the first steps, and seeds that lost what they had learned. Cost curves are "
        "computed at the dots, and the lines only join them.",
    ]
    for key, (_, words) in SECTIONS.items():
        figure = FIGURES[key]
        parts += [f"## {figure.title}", "\n".join(f"- {note}" for note in figure.notes)]
        if is_drawn(figure, sources):
            parts += [f"![{figure.title}]({key}.png)", words(figure, sources), *_settings(figure, sources)]
        else:
            parts.append("**Unfinished**: nothing has been computed for it yet.")
        seeds = f" --seeds {_seeds(figure, sources)}" if figure.runs else ""
        parts.append(f"```sh\npapers reproduce {key}{seeds}\npapers report\n```")
    return "\n\n".join(part for part in parts if part) + "\n"


def is_drawn(figure: Figure, sources: Sources) -> bool:
    """Whether there is anything to draw."""
    runs = any(sources.archive.of(spec) for spec in all_runs(figure))
    return runs or bool(curves(figure, sources.curves))


def all_runs(figure: Figure) -> list[Spec]:
    """The figure's runs, and those of its larger grid where it has one."""
    return list(FIGURES.get(f"{figure.key}-whole", figure).runs.values())


def _seeds(figure: Figure, sources: Sources) -> int:
    """The largest number of seeds that a run of it has, at least one."""
    return max((len(sources.archive.of(spec)) for spec in all_runs(figure)), default=1) or 1


def _settings(figure: Figure, sources: Sources) -> list[str]:
    if not figure.runs:
        spec = next(iter(figure.curves.values()))
        return [f"Settings: {spec.steps} steps, batches of {spec.batch:g} expected, delta {spec.delta:.4g}."]
    spec = next(spec for spec in figure.runs.values() if spec.private)
    results = [result for spec in all_runs(figure) for result in sources.archive.of(spec).values()]
    return [settings_table({spec.task: spec}), machines_table(results)]
