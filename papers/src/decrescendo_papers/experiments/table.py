"""A table of the paper as data: its columns, its rows, what the paper reports, and the runs each cell needs."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from decrescendo.errors import InvalidValue
from decrescendo_papers.experiments.spec import NOT_PRIVATE, Spec
from decrescendo_papers.experiments.tasks import find_task

# How the noise of a block is calibrated: as the paper counts (each method by its own accountant), or certified.
CLAIMED, CERTIFIED = "claimed", "certified"
BLOCKS = (CLAIMED, CERTIFIED)


@dataclass(frozen=True, slots=True)
class Column:
    """A task at an epsilon."""

    task: str
    epsilon: float

    @property
    def key(self) -> str:
        """As ``--cells`` names it."""
        return f"{self.task}/{self.epsilon:g}"


@dataclass(frozen=True, slots=True)
class Row:
    """A method.

    Args:
        key: as ``--cells`` names it.
        label: as the page shows it.
        paper: accuracy in % that the paper reports, one a column; ``None`` where it has none.
        settings: what differs from the task's own settings.
        accountant: by which the paper calibrates it.
        control: not in the paper.
        certified_label: of the row in the certified block, where another accountant than the paper's makes it another
            method; the paper's numbers are not this one's. Empty: it is the same.
        only: keys of the columns it is run in; empty: all.
        base: key of the row that it changes; empty: none.
    """

    key: str
    label: str
    paper: tuple[float | None, ...]
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    accountant: str = "clt"
    control: bool = False
    certified_label: str = ""
    only: tuple[str, ...] = ()
    base: str = ""

    def is_papers(self, block: str) -> bool:
        """Whether it is the paper's method in that block."""
        return not self.control and not (block == CERTIFIED and self.certified_label)

    def label_in(self, block: str) -> str:
        """What a page calls it there."""
        return self.certified_label if block == CERTIFIED and self.certified_label else self.label

    def reports(self, *paper: float | None) -> "Row":
        """The same with the paper's numbers, one a column."""
        return dataclasses.replace(self, paper=paper)

    def as_control(self) -> "Row":
        """The same, marked as not in the paper."""
        return dataclasses.replace(self, control=True)

    def changed(self, key: str, label: str, settings: Mapping[str, Any], only: tuple[str, ...] = ()) -> "Row":
        """Another row: this one with some settings changed, and no numbers of the paper's."""
        return dataclasses.replace(
            self,
            key=key,
            label=label,
            paper=(),
            settings={**self.settings, **settings},
            only=only,
            base=self.key,
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """One number of a table: a row, a column and a block, and its runs by seed."""

    row: Row
    column: Column
    block: str
    specs: tuple[Spec, ...]

    @property
    def key(self) -> str:
        """As ``--cells`` names it."""
        return f"{self.column.key}/{self.row.key}"


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Args:
        key: as ``reproduce`` names it.
        title: of the page.
        columns: in the paper's order.
        rows: in the order in which they are run.
        notes: lines for the page: what is implemented and what was inferred.
        tried: what was changed to come nearer to the paper where it was not reached; run as the paper counts.
        own: baselines with settings of their own; run as the paper counts.
        stopped: rows whose noise is fixed and whose runs end when the budget is spent, in both blocks.
        plain: accuracy without privacy that the paper reports, by task.
        persons: keys of the rows for which the guarantee of a person behind several clients is computed; the others
            have the noise of one of these.
        plain_settings: of the run without privacy, where they differ from the task's.
        plain_others: further runs without privacy: the name on the page, the task, what differs from its settings.
        variant_of: key of the table that this one is with a setting that the paper does not state at another value; the
            setting and both values are ``inferred``. Empty: none.
        inferred: in words, where ``variant_of`` is set.
        majority: share in % of the largest class among the test rows, by task, where a page says who scores no more.
        differs: what is known to differ from the paper in every cell.
    """

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    tried: tuple[Row, ...] = ()
    own: tuple[Row, ...] = ()
    stopped: tuple[Row, ...] = ()
    plain: Mapping[str, float] = field(default_factory=dict[str, float])
    plain_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    plain_others: Mapping[str, tuple[str, Mapping[str, Any]]] = field(
        default_factory=dict[str, tuple[str, Mapping[str, Any]]]
    )
    persons: tuple[str, ...] = ()
    variant_of: str = ""
    inferred: str = ""
    majority: Mapping[str, float] = field(default_factory=dict[str, float])
    differs: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.paper) not in (0, len(self.columns)):
                raise InvalidValue(f"row {row.key} must have a number of the paper a column, got {len(row.paper)}")

    @property
    def keys(self) -> list[str]:
        """Of the columns."""
        return [column.key for column in self.columns]

    def reported(self, row: Row, column: Column, block: str = CLAIMED) -> float | None:
        """Accuracy in % that the paper reports for the method of a cell."""
        return row.paper[self.columns.index(column)] if row.paper and row.is_papers(block) else None

    def cell(self, row: Row, column: Column, block: str, seeds: Sequence[int]) -> Cell:
        """A cell with a run a seed."""
        accountant = "pld" if block == CERTIFIED else row.accountant
        spec = base_spec(column.task, epsilon=column.epsilon, accountant=accountant, settings=row.settings)
        return Cell(row, column, block, tuple(spec.seeded(seed) for seed in seeds))

    def cells(self, seeds: Sequence[int], blocks: Sequence[str] = BLOCKS) -> Iterator[Cell]:
        """All private cells, row by row; the controls are run in the certified block only."""
        for row in self.rows:
            for block in blocks:
                if row.control and block != CERTIFIED:
                    continue
                for column in self.columns:
                    yield self.cell(row, column, block, seeds)

    def tried_cells(
        self, seeds: Sequence[int], rows: Sequence[Row] | None = None, block: str = CLAIMED
    ) -> Iterator[Cell]:
        """What was tried, or these rows, in the columns where they were."""
        for row in self.tried if rows is None else rows:
            for column in self.columns:
                if not row.only or column.key in row.only:
                    yield self.cell(row, column, block, seeds)

    def every_cell(self, seeds: Sequence[int]) -> Iterator[Cell]:
        """All private cells, those of other settings too."""
        yield from self.cells(seeds)
        yield from self.tried_cells(seeds, (*self.tried, *self.own))
        for block in BLOCKS:
            yield from self.tried_cells(seeds, self.stopped, block)

    def plain_specs(self, seeds: Sequence[int]) -> dict[str, tuple[Spec, ...]]:
        """The runs without privacy, by task, and others by name."""
        tasks = dict.fromkeys(column.task for column in self.columns)
        asked = {task: (task, self.plain_settings.get(task, {})) for task in tasks} | dict(self.plain_others)
        found: dict[str, tuple[Spec, ...]] = {}
        for name, (task, settings) in asked.items():
            changes = {"method": NOT_PRIVATE, **settings}
            spec = base_spec(task, epsilon=0.0, accountant="none", settings=changes)
            found[name] = tuple(spec.seeded(seed) for seed in seeds)
        return found

    def specs(self, seeds: Sequence[int], *, blocks: Sequence[str] = BLOCKS, only: Sequence[str] = ()) -> list[Spec]:
        """Every run of the table, one seed after the other, so that an unfinished table has few empty cells.

        Args:
            seeds: whole numbers >= 0.
            blocks: `CLAIMED`, `CERTIFIED` or both.
            only: cells ``task/epsilon/row``; parts may have ``*`` in them, and later parts may be left out.

        Raises:
            InvalidValue: a pattern that fits no cell.
        """
        cells = list(self.cells(seeds, blocks))
        if CLAIMED in blocks:
            cells += self.tried_cells(seeds, (*self.tried, *self.own))
        for block in blocks:
            cells += self.tried_cells(seeds, self.stopped, block)
        plain = self.plain_specs(seeds)
        chosen = [cell for cell in cells if not only or any(fits(cell.key, pattern) for pattern in only)]
        tasks = [task for task in plain if not only or any(fits(f"{task}/0/plain", p) for p in only)]
        for pattern in only:
            keys = [cell.key for cell in cells] + [f"{task}/0/plain" for task in plain]
            if not any(fits(key, pattern) for key in keys):
                raise InvalidValue(
                    f"cells must be like {cells[0].key} (* is anything), got {pattern!r}, which fits none of {self.key}"
                )
        found: list[Spec] = []
        for index in range(len(seeds)):
            found += [plain[task][index] for task in tasks]
            found += [cell.specs[index] for cell in chosen]
        return found


def fits(key: str, pattern: str) -> bool:
    """Whether a cell is meant by a pattern of `Table.specs`; its parts are matched as a shell matches file names.

    >>> fits("mnist/0.4/vanilla", "mnist/*/van*"), fits("mnist/0.4/vanilla", "*/1.2")
    (True, False)
    """
    wanted = pattern.split("/")
    pairs = zip(key.split("/"), wanted, strict=False)
    return len(wanted) <= 3 and all(fnmatchcase(part, want) for part, want in pairs)


def base_spec(task: str, *, epsilon: float, accountant: str, settings: Mapping[str, Any]) -> Spec:
    """The task's own settings with some changed; ``epochs`` may stand for ``steps``, and ``rate_factor`` and
    ``clip_factor`` multiply the learning rate and C_0. Where the unit is a client, epochs are passes over the clients,
    and delta is 1 / (10 clients).

    >>> base_spec("mnist", epsilon=0.4, accountant="pld", settings={"method": "constant"}).steps
    4800
    """
    known = find_task(task)
    changes = dict(settings)
    batch = float(changes.get("batch", known.batch))
    epochs = float(changes.pop("epochs", known.epochs))
    factor = float(changes.pop("rate_factor", 1.0))
    clip = float(changes.pop("clip", known.clip)) * float(changes.pop("clip_factor", 1.0))
    private = changes.get("method") != NOT_PRIVATE
    records = int(changes.pop("records", known.records)) if private else 0
    unit = max(records, 1)
    settings_of_task: dict[str, Any] = {
        "method": "constant",
        "steps": round(epochs * known.rows / (unit * batch)),
        "clip": clip,
        "learning_rate": known.learning_rate * factor,
        "optimizer": known.optimizer,
        "delta": known.delta * unit,
        "seed": 0,
        "batch": batch,
        "records": records,
    }
    return Spec(task=task, accountant=accountant, epsilon=epsilon, **{**settings_of_task, **changes})
