"""What people look at: tables and figures made from plans, ledgers, runs and scores."""

from decrescendo.report import alike
from decrescendo.report.figure import Scores, draw_schedules, draw_scores
from decrescendo.report.heat import draw_heat
from decrescendo.report.judge import verdict_table, verdicts
from decrescendo.report.ledgers import read_ledger
from decrescendo.report.paired import Paired, holm, paired, pooled
from decrescendo.report.panels import Panel, draw_panels
from decrescendo.report.sketch import sketch

__all__ = [
    "Paired", "Panel", "Scores", "alike", "draw_heat", "draw_panels", "draw_schedules", "draw_scores", "holm", "paired",
    "pooled", "read_ledger", "sketch", "verdict_table", "verdicts",
]  # fmt: skip
