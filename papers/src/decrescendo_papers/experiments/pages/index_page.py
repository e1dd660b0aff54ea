"""The page that leads to all others."""

from collections.abc import Sequence

from decrescendo_papers.experiments.pages.archive import Sources
from decrescendo_papers.experiments.pages.claims import Claim
from decrescendo_papers.experiments.pages.claims_page import RULE, in_brief, what_holds
from decrescendo_papers.experiments.pages.figures_page import SECTIONS, is_drawn
from decrescendo_papers.experiments.pages.filled import Filled
from decrescendo_papers.experiments.pages.recipes_page import recipes_in_brief
from decrescendo_papers.experiments.pages.registered_page import registered_in_brief
from decrescendo_papers.experiments.pages.tuned_page import tuned_in_brief
from decrescendo_papers.experiments.pages.verdict import in_brief as table_in_brief
from decrescendo_papers.experiments.registered import read_registered
from decrescendo_papers.experiments.reproduce import FIGURES
from decrescendo_papers.experiments.strong import read_recipes


def index_page(tables: Sequence[Filled], sources: Sources, claims: Sequence[Claim]) -> str:
    """The whole page."""
    drawn = [key for key in SECTIONS if is_drawn(FIGURES[key], sources)]
    parts = [
        "# What the papers report, and what our runs give",
        "Tables and figures of Du et al. 2022, *Dynamic Differential-Privacy Preserving SGD*, run again, with "
        "privacy accounted for in two ways: *as the paper counts*, by an estimate that under-reports epsilon, and "
        "*certified*, by an upper bound. `papers report` writes this folder from `results`.",
        "## What holds, and what does not",
        "Du et al. claim that each of their three methods is above vanilla DP-SGD in every column, dynamic DP-SGD by "
        "the largest margin. Hong et al. claim that noise which falls exponentially beats uniform noise.",
        *what_holds(tables, claims),
        RULE,
        "Each claim with its cell, effect, seeds and command: [claims.md](claims.md).",
        *(f"## [{filled.table.title}]({filled.table.key}.md)\n\n{table_in_brief(filled)}" for filled in tables),
        "## [Schedules tuned in each column](tuned.md)",
        "The tables have one pair (rho_mu, rho_c) for all columns, where the paper sweeps them in each: a claim that "
        "fails there fails for this pair. " + tuned_in_brief(sources.archive),
        "## [Recipes by registration](registered.md)",
        registered_in_brief(read_registered(sources.registered), sources.archive),
        "## [Recipes chosen after looking](recipes.md)",
        "The same models at the same certified epsilon, with settings searched on public data. "
        + recipes_in_brief(read_recipes(sources.recipes), sources.archive),
        "## [Figures 1 to 5, and how methods converge](figures.md)",
        f"{len(drawn)} of {len(SECTIONS)} have data. {in_brief(('Du et al., Figure', 'Du et al., section'), claims)}",
        "## [Section 5 of Hong et al.](hong.md)",
        "Uniform against exponential noise in private gradient descent on few images, with schedules chosen on "
        "made-up data. " + in_brief("Hong et al.", claims),
        "## Run it again",
        "```sh\npapers reproduce table1 --seeds 5   # runs what is missing; a finished run is a line in results/runs\n"
        "papers report                       # writes these pages and figures\n```",
    ]
    return "\n\n".join(parts) + "\n"
