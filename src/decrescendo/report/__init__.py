"""What people look at: tables and figures made from plans, ledgers, runs and scores."""

from decrescendo.report import canvas
from decrescendo.report.figure import Scores, draw_schedules, draw_scores
from decrescendo.report.judge import verdict_table, verdicts
from decrescendo.report.ledgers import read_ledger
from decrescendo.report.paired import LEVEL, POWER, SAME, Paired, holm, largest, p_in_words, paired
from decrescendo.report.text_plot import text_plot

__all__ = [
    "LEVEL", "POWER", "SAME", "Paired", "Scores", "canvas", "draw_schedules", "draw_scores", "holm", "largest",
    "p_in_words", "paired", "read_ledger", "text_plot", "verdict_table", "verdicts",
]  # fmt: skip
