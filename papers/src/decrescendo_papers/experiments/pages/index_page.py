"""The page that leads to all others."""

from collections.abc import Sequence

from decrescendo_papers.experiments.pages.archive import Sources
from decrescendo_papers.experiments.pages.claims import Claim
from decrescendo_papers.experiments.pages.claims_page import RULE, what_holds
from decrescendo_papers.experiments.pages.figures_page import SECTIONS, is_drawn
from decrescendo_papers.experiments.pages.filled import Filled
from decrescendo_papers.experiments.pages.recipes_page import recipes_in_brief
from decrescendo_papers.experiments.pages.registered_page import registered_in_brief
from decrescendo_papers.experiments.pages.verdict import in_brief
from decrescendo_papers.experiments.registered import read_registered
from decrescendo_papers.experiments.reproduce import FIGURES
from decrescendo_papers.experiments.strong import read_recipes


def index_page(tables: Sequence[Filled], sources: Sources, claims: Sequence[Claim]) -> str:
    """The whole page."""
    drawn = [key for key in SECTIONS if is_drawn(FIGURES[key], sources)]
    parts = [
        "# What the paper reports, and what comes out here",
        "Tables and figures of Du et al. 2022, *Dynamic Differential-Privacy Preserving SGD*, trained again and "
        "counted twice: as the paper counts, and with a certified epsilon. Everything in this folder is written by "
        "`papers report` from what lies in `results`; no number is typed by hand.",
        "## What holds, and what does not",
        f"{RULE} Each claim with its cell, seeds and command: [claims.md](claims.md).",
        what_holds(tables, claims),
        *(f"## [{filled.table.title}]({filled.table.key}.md)\n\n{in_brief(filled)}" for filled in tables),
        "## [Recipes by registration](registered.md)",
        registered_in_brief(read_registered(sources.registered), sources.archive),
        "## [Recipes chosen after looking](recipes.md)",
        "The same models at the same certified epsilon, with settings searched on public data. "
        + recipes_in_brief(read_recipes(sources.recipes), sources.archive),
        "## [Figures 1 to 5](figures.md)",
        f"{len(drawn)} of {len(SECTIONS)} have something to show.",
        "## [Section 5 of Hong et al.](hong.md)",
        "Uniform against exponential noise in private gradient descent on few images, chosen on made-up data.",
        "## Again",
        "```sh\npapers reproduce table1 --seeds 5   # runs what is missing; a finished run is a line in results/runs\n"
        "papers report                       # writes these pages and figures\n```",
    ]
    return "\n\n".join(parts) + "\n"
