"""All pages and figures from what is there."""

from pathlib import Path

from decrescendo.base import write_whole
from decrescendo_papers.experiments.pages.archive import Sources
from decrescendo_papers.experiments.pages.claims import every_claim
from decrescendo_papers.experiments.pages.claims_page import claims_page
from decrescendo_papers.experiments.pages.figures_page import draw_figures, figures_page
from decrescendo_papers.experiments.pages.filled import Filled
from decrescendo_papers.experiments.pages.hong_figures import draw_hong
from decrescendo_papers.experiments.pages.hong_page import hong_page
from decrescendo_papers.experiments.pages.index_page import index_page
from decrescendo_papers.experiments.pages.persons_section import persons_section
from decrescendo_papers.experiments.pages.recipes_page import recipes_page
from decrescendo_papers.experiments.pages.registered_page import registered_page
from decrescendo_papers.experiments.pages.table_page import table_page
from decrescendo_papers.experiments.pages.tuned_page import tuned_page
from decrescendo_papers.experiments.registered import read_registered
from decrescendo_papers.experiments.reproduce import TABLES
from decrescendo_papers.experiments.strong import read_recipes


def pages(sources: Sources) -> dict[str, str]:
    """Every page by its file name. The same results give the same text."""
    tables = [Filled(table, sources.archive) for table in TABLES.values()]
    found = {f"{filled.table.key}.md": table_page(filled, persons_section(filled, sources.curves)) for filled in tables}
    found["recipes.md"] = recipes_page(read_recipes(sources.recipes), sources.archive)
    found["registered.md"] = registered_page(read_registered(sources.registered), sources.archive)
    found["tuned.md"] = tuned_page(sources.archive)
    found["hong.md"] = hong_page(sources)
    claims = every_claim(tables, sources)
    found["claims.md"] = claims_page(tables, claims)
    return {"README.md": index_page(tables, sources, claims), **found, "figures.md": figures_page(sources)}


def write_report(sources: Sources, folder: Path) -> list[Path]:
    """Write every page and figure into ``folder``, and return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, text in pages(sources).items():
        write_whole(folder / name, text)
        written.append(folder / name)
    return written + draw_figures(sources, folder) + draw_hong(sources, folder)
