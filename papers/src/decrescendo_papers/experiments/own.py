"""Settings of a baseline's own, by one rule for all, written down before the first search.

The paper gives tCDP-SGD and rho-zCDP-SGD no settings, and those of another method starve them: their accountants count
no subsampling and ask for so much noise that few steps are better than many. So each of them is searched for in each
column of Table 1, by its own accountant at the column's epsilon, on public pictures (Fashion-MNIST for MNIST and the
other way round), 10 trials of one seed by Optuna's TPE with seed 0, over 1, 2 or 5 epochs, the clip norm, the rate and
the noise's decay; the best trial's settings are rounded to two digits and run on the task with 3 seeds.
"""

from collections.abc import Mapping, Sequence

from decrescendo_papers.experiments.methods import TCDP, ZCDP
from decrescendo_papers.experiments.table import Column, Row

SEARCHED = (TCDP, ZCDP)
STAND_INS = {"mnist": "fashion-mnist", "fashion-mnist": "mnist"}
TRIALS = 10
VARY = ("epochs=1,2,5", "clip=0.2..4:log", "stride=0.05..1.5:log", "rho_mu=1.02..3:log")
# What was found, two digits: ``results/settings.jsonl``.
CHOSEN: dict[str, dict[str, float]] = {
    "tcdp-mnist-0.4": {"epochs": 2, "clip": 1.5, "learning_rate": 0.15, "rho_mu": 1.8},
    "zcdp-mnist-0.4": {"epochs": 1, "clip": 3.2, "learning_rate": 0.02, "rho_mu": 1.1},
    "tcdp-fashion-mnist-0.4": {"epochs": 1, "clip": 0.32, "learning_rate": 1.4, "rho_mu": 1.3},
    "zcdp-fashion-mnist-0.4": {"epochs": 1, "clip": 3.2, "learning_rate": 0.02, "rho_mu": 1.1},
    "tcdp-mnist-0.6": {"epochs": 2, "clip": 1.5, "learning_rate": 0.15, "rho_mu": 1.8},
    "zcdp-mnist-0.6": {"epochs": 2, "clip": 1.4, "learning_rate": 0.06, "rho_mu": 2.8},
    "tcdp-mnist-1.2": {"epochs": 5, "clip": 0.59, "learning_rate": 0.58, "rho_mu": 1.6},
    "zcdp-mnist-1.2": {"epochs": 2, "clip": 1.5, "learning_rate": 0.15, "rho_mu": 1.8},
    "tcdp-fashion-mnist-1.2": {"epochs": 5, "clip": 0.59, "learning_rate": 0.58, "rho_mu": 1.6},
    "zcdp-fashion-mnist-1.2": {"epochs": 1, "clip": 2.0, "learning_rate": 0.12, "rho_mu": 1.9},
    "zcdp-fashion-mnist-2": {"epochs": 1, "clip": 0.32, "learning_rate": 1.4, "rho_mu": 1.3},
}
FIX = ("batch=250", "lr_decay=none", "momentum=0.0", "averaging=0.0")


def name(row: Row, column: Column) -> str:
    """Of a recipe in ``results/settings.jsonl``."""
    return f"{row.key}-{column.task}-{column.epsilon:g}"


def words(row: Row, column: Column) -> list[str]:
    """The command that searches, behind ``papers``.

    >>> " ".join(words(TCDP, Column("mnist", 0.4)))[:64]
    'search mnist --epsilon 0.4 --on fashion-mnist --trials 10 --acco'
    """
    asked = [
        "search", column.task, "--epsilon", f"{column.epsilon:g}", "--on", STAND_INS[column.task],
        "--trials", str(TRIALS), "--accountant", row.accountant,
    ]  # fmt: skip
    for text in VARY:
        asked += ["--vary", text]
    for text in (f"method={row.settings['method']}", *FIX):
        asked += ["--fix", text]
    return asked


def rows(columns: Sequence[Column]) -> tuple[Row, ...]:
    """A row for each search that is done, run in its column only."""
    return tuple(
        row.changed(
            f"{row.key}-own-{column.task}-{column.epsilon:g}",
            f"{row.label}, own settings: {_said(found)}",
            found,
            (column.key,),
        )
        for column in columns
        for row in SEARCHED
        if (found := CHOSEN.get(name(row, column)))
    )


def _said(found: Mapping[str, float]) -> str:
    epochs = f"{found['epochs']:g} epoch" + "s" * (found["epochs"] > 1)
    return f"{epochs}, C_0 {found['clip']:g}, rate {found['learning_rate']:g}, decay {found['rho_mu']:g}"
