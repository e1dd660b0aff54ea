"""Schedules tuned in each column, on public data and by a rule that was written down before the first run.

The paper sweeps (rho_mu, rho_c) in each column; the tables here have one pair for all. So in each column each pair of a
grid, and each of a few constant clip norms, is run once on public data in the place of the task's own, certified at the
column's epsilon and with the table's settings. The pair and the constant clip norm that score best there, on rows that
were not trained on, are run on the task with the seeds of the tables, and compared with each other, with vanilla DP-SGD
and with the pair of all tables: paired t-tests, Holm over the columns of a table. What is constant is tuned
as well: a schedule that was chosen is no fair match for a clip norm that was not.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decrescendo.errors import InvalidValue
from decrescendo_papers.experiments.alike import first_of_most
from decrescendo_papers.experiments.methods import DYNAMIC, RHO_C
from decrescendo_papers.experiments.results import Result, find
from decrescendo_papers.experiments.spec import Spec
from decrescendo_papers.experiments.table import BLOCKS, CERTIFIED, Table, base_spec, fits
from decrescendo_papers.experiments.table1 import TABLE1
from decrescendo_papers.experiments.table2 import TABLE2, TABLE2_AT_64
from decrescendo_papers.experiments.table3 import TABLE3
from decrescendo_papers.experiments.table4 import TABLE4
from decrescendo_papers.experiments.table5 import TABLE5

FOLDER = Path("results/runs")
TRIAL_SEED = 0
SCORE = "test_accuracy"

# By task: what it is searched on. The stand-in of IMDB is half of its test reviews, so that what was chosen is tested
# on the other half, as a task of its own.
STAND_INS = {
    "mnist": "fashion-mnist", "fashion-mnist": "mnist", "names": "synthetic-names", "imdb-half": "imdb-public",
    "xray": "t-shirts", "xray-random": "t-shirts", "infinite-mnist-250k": "enlarged-digits",
    "infinite-mnist-500k": "enlarged-digits",
}  # fmt: skip
TESTED = {"imdb": "imdb-half"}

# The clip norms that the tables have rows of: C_0, and the middle and the end of the authors' schedule.
CONSTANT: tuple[dict[str, Any], ...] = tuple(
    {"method": "constant", "clip_factor": factor} for factor in (1.0, RHO_C**-0.5, 1 / RHO_C)
)
# Reciprocals 0.8 and 0.5 of rho_mu; 0.61, 0.3 and 0.15 of rho_c. (1.25, 3.3) are the authors' own values.
MOVING: tuple[dict[str, Any], ...] = tuple(
    {"method": "dynamic", "rho_mu": rho_mu, "rho_c": rho_c}
    for rho_mu, rho_c in itertools.product((1.25, 2.0), (1.65, 3.3, 6.6))
)
VANILLA, FIXED = CONSTANT[0], dict(DYNAMIC.settings)


@dataclass(frozen=True, slots=True)
class Tuned:
    """A column of a table with its candidates.

    Args:
        table: its key.
        task: that the choice is tested on.
        epsilon: certified.
        settings: in which the table differs from the task's own.
    """

    table: str
    task: str
    epsilon: float
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def key(self) -> str:
        """As ``--cells`` names it: task, epsilon and table."""
        return f"{self.task}/{self.epsilon:g}/{self.table}"

    @property
    def stand_in(self) -> str:
        """The public data that are searched on."""
        return STAND_INS[self.task]

    def spec(self, candidate: Mapping[str, Any], *, stand_in: str = "") -> Spec:
        """The run of a candidate, on the task's own data or on a stand-in.

        >>> COLUMNS[0].spec(FIXED).name
        'mnist/dynamic-pld-0.4-seed0-...'
        """
        settings = {**self.settings, **candidate, "stand_in": stand_in}
        return base_spec(self.task, epsilon=self.epsilon, accountant="pld", settings=settings)

    def trial(self, candidate: Mapping[str, Any]) -> Spec:
        """The run that a candidate is chosen by."""
        return self.spec(candidate, stand_in=self.stand_in).seeded(TRIAL_SEED)

    def trials(self) -> list[Spec]:
        """Of all candidates."""
        return [self.trial(candidate) for candidate in (*CONSTANT, *MOVING)]

    def chosen(
        self, candidates: Sequence[dict[str, Any]], result_of: Callable[[Spec], Result | None]
    ) -> dict[str, Any] | None:
        """The first of the best; ``None`` as long as a trial is missing.

        Args:
            candidates: `CONSTANT` or `MOVING`.
            result_of: finds the result of a trial. One that was refused scores nothing.
        """
        results = [result_of(self.trial(candidate)) for candidate in candidates]
        found = [result for result in results if result is not None]
        if len(found) < len(candidates):
            return None
        scores = [result.metrics.get(SCORE, 0.0) for result in found]
        return candidates[first_of_most(range(len(scores)), lambda at: scores[at])]


def _columns(table: Table) -> list[Tuned]:
    """Of a table, with what it changes in vanilla DP-SGD's settings."""
    (vanilla,) = (row for row in table.rows if row.key == "vanilla")
    settings = {name: value for name, value in vanilla.settings.items() if name != "method"}
    return [
        Tuned(table.key, TESTED.get(column.task, column.task), column.epsilon, settings) for column in table.columns
    ]


COLUMNS = tuple(
    column for table in (TABLE1, TABLE2, TABLE2_AT_64, TABLE3, TABLE4, TABLE5) for column in _columns(table)
)


@dataclass(frozen=True, slots=True)
class Trials:
    """The runs on public data, as ``reproduce tuned-trials`` runs them."""

    @property
    def key(self) -> str:
        """As ``reproduce`` names it."""
        return "tuned-trials"

    def specs(self, seeds: Sequence[int], *, blocks: Sequence[str] = BLOCKS, only: Sequence[str] = ()) -> list[Spec]:
        """Column by column; of one seed, whatever is asked for.

        Args:
            seeds: not used.
            blocks: certified only.
            only: patterns ``task/epsilon/table``.

        Raises:
            InvalidValue: a pattern that fits no column.
        """
        wanted = _wanted(only) if CERTIFIED in blocks and TRIAL_SEED in seeds else []
        return [spec for column in wanted for spec in column.trials()]


@dataclass(frozen=True, slots=True)
class Evaluations:
    """The runs on the tasks themselves, as ``reproduce tuned`` runs them: vanilla, the pair of all tables, and what was
    chosen. A column without all of its trials has none.

    Args:
        result_of: finds the result of a trial.
    """

    result_of: Callable[[Spec], Result | None]

    @property
    def key(self) -> str:
        """As ``reproduce`` names it."""
        return "tuned"

    def specs(self, seeds: Sequence[int], *, blocks: Sequence[str] = BLOCKS, only: Sequence[str] = ()) -> list[Spec]:
        """One seed after the other, over the columns whose trials are finished.

        Args:
            seeds: whole numbers >= 0.
            blocks: certified only.
            only: patterns ``task/epsilon/table``.

        Raises:
            InvalidValue: a pattern that fits no column.
        """
        wanted = _wanted(only) if CERTIFIED in blocks else []
        chosen = [(column, self.candidates(column)) for column in wanted]
        return [column.spec(one).seeded(seed) for seed in seeds for column, found in chosen for one in found.values()]

    def untried(self, only: Sequence[str] = ()) -> int:
        """How many of these columns lack a trial."""
        return sum(not self.candidates(column) for column in _wanted(only))

    def candidates(self, column: Tuned) -> dict[str, dict[str, Any]]:
        """What is compared in a column, by its role; empty as long as a trial is missing."""
        constant, moving = (column.chosen(among, self.result_of) for among in (CONSTANT, MOVING))
        if constant is None or moving is None:
            return {}
        return {"vanilla": VANILLA, "fixed": FIXED, "constant": constant, "moving": moving}


def _wanted(only: Sequence[str]) -> list[Tuned]:
    for pattern in only:
        if not any(fits(column.key, pattern) for column in COLUMNS):
            raise InvalidValue(f"cells must be of a tuned column, like {COLUMNS[0].key}, got {pattern!r}")
    return [column for column in COLUMNS if not only or any(fits(column.key, pattern) for pattern in only)]


def read_tuned(folder: Path = FOLDER) -> Evaluations:
    """What was chosen by the trials that are finished in a folder."""
    return Evaluations(lambda spec: find(folder, spec))
