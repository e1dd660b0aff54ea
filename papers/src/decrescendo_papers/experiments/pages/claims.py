"""The comparisons of methods that the two papers make, as data with its outcome here.

Longer than most files: most of it is the list of comparisons.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from decrescendo.report import Paired, largest, paired
from decrescendo_papers.experiments.alike import above
from decrescendo_papers.experiments.comparisons import ENOUGH, decide, holm, p_of, pooled
from decrescendo_papers.experiments.estimate import fit_exponential
from decrescendo_papers.experiments.figure import Figure
from decrescendo_papers.experiments.hong import CASES, HONG, SEEDS, STAND_INS, STEPS, influence_of
from decrescendo_papers.experiments.pages.archive import Sources
from decrescendo_papers.experiments.pages.convergence_section import (
    early_accuracy,
    gain,
    tasks_of,
    unsteadiness,
)
from decrescendo_papers.experiments.pages.costs_section import curves
from decrescendo_papers.experiments.pages.filled import VANILLA, Filled
from decrescendo_papers.experiments.pages.grid_section import above_vanilla, mean_of
from decrescendo_papers.experiments.pages.hong_cases import (
    ACCURACY,
    DIGITS,
    LOSS,
    UNITS,
    compared,
    inside,
    refuted,
    scaled,
    sized,
    trend,
)
from decrescendo_papers.experiments.pages.lengths_section import ramps
from decrescendo_papers.experiments.reproduce import FIGURES
from decrescendo_papers.experiments.table import BLOCKS, CLAIMED, Column, Row

TOGETHER = "columns together"
NO_PAIRS = Paired(())
FLAT = "rho_mu = 1"  # the curve of Figure 2 that is vanilla DP-SGD
Outcome = Literal["holds", "fails", "undecided", "depends", "too few seeds", "no run"]

# Which row the paper puts above which; see its section 4.2. Every table has all of these that it has rows for.
ORDERS = (
    ("dynamic", VANILLA), ("sensitivity-decay", VANILLA), ("growing-mu", VANILLA),
    ("dynamic", "sensitivity-decay"), ("dynamic", "growing-mu"), ("sensitivity-decay", "growing-mu"),
    ("dynamic", "tcdp"), ("dynamic", "zcdp"),
)  # fmt: skip
# Baselines whose loose accountants make them "perform significantly worse in the high privacy guarantee region"
# (section 4.2): at a task's smallest epsilon, as the paper counts.
LOOSE = ((VANILLA, "tcdp"), (VANILLA, "zcdp"))
# "A performance loss of only 2.49 % when compared to the non-DP version" on MNIST, and 1.72 % in federated learning.
LOSSES = {("table1", "mnist", 1.2): 2.49, ("table4", "infinite-mnist-500k", 1.0): 1.72}


@dataclass(frozen=True, slots=True)
class Claim:
    """One comparison of a paper, in the direction that the paper states.

    Args:
        family: claims whose p values are corrected together.
        words: what is claimed to be larger than what.
        cell: where.
        command: what runs it.
        paper: the difference that the paper's own numbers show.
        pair: differences here, one a seed; above zero as claimed.
        digits: behind the point.
        certain: where nothing is random, whether it holds.
        found: the effect in words, where it is no mean of differences.
        against: p value of a test that can only refute the claim, in the place of one of ``pair``.
        corrected: p value after Holm in the family.
        depends: the setting, not stated by the paper, with which the outcome changes; empty: none is known.
    """

    family: str
    words: str
    cell: str
    command: str
    paper: float | None = None
    pair: Paired = NO_PAIRS
    digits: int = 2
    certain: bool | None = None
    found: str = ""
    against: float | None = None
    corrected: float | None = None
    depends: str = ""

    @property
    def p_value(self) -> float | None:
        """Of its test, before any correction; ``None`` with fewer than `ENOUGH` seeds."""
        return p_of(self.pair) if self.against is None else self.against

    @property
    def outcome(self) -> Outcome:
        """What a page says: `own_outcome`, unless it is another with another value of an inferred setting."""
        return "depends" if self.depends else self.own_outcome

    @property
    def own_outcome(self) -> Outcome:
        """`decide` for differences over seeds; what can only be refuted never holds."""
        if self.certain is not None:
            return "holds" if self.certain else "fails"
        if self.against is not None:
            return decide(-1.0, self.corrected)
        if self.pair.seeds < ENOUGH:
            return "too few seeds" if self.pair.differences else "no run"
        return decide(self.pair.mean, self.corrected)

    @property
    def effect(self) -> str:
        """Mean difference and its standard error."""
        if self.found or not self.pair.differences:
            return self.found or "-"
        error = f" ± {self.pair.error:.{self.digits}f}" if self.pair.seeds > 1 else ""
        return f"{self.pair.mean:+.{self.digits}f}{error}"


def corrected(claims: Sequence[Claim]) -> list[Claim]:
    """The same with p values after Holm, each family by itself."""
    found = list(claims)
    for family in dict.fromkeys(claim.family for claim in found):
        tested = {i: p for i, claim in enumerate(found) if claim.family == family and (p := claim.p_value) is not None}
        for i, p in zip(tested, holm(list(tested.values())), strict=True):
            found[i] = replace(found[i], corrected=p)
    return found


def every_claim(tables: Sequence[Filled], sources: Sources) -> list[Claim]:
    """All of them, in the order of the papers."""
    of_tables = [claim for filled in tables for claim in table_claims(filled)]
    found = corrected([*of_tables, *figure_claims(sources), *_hong_claims(sources)])
    for filled in tables:
        found = _depending(filled, tables, found)
    return found


def _depending(filled: Filled, tables: Sequence[Filled], claims: list[Claim]) -> list[Claim]:
    """The same, where ``filled`` is a variant of another table: what has another outcome in the two depends on the
    setting that was inferred."""
    base = next((one for one in tables if one.table.key == filled.table.variant_of), None)
    if base is None:
        return claims
    ours, theirs = f"Du et al., {short(filled)}, ", f"Du et al., {short(base)}, "
    places: dict[tuple[str, str, str], list[int]] = {}
    for at, claim in enumerate(claims):
        for start in (ours, theirs):
            if claim.family.startswith(start):
                places.setdefault((claim.family.removeprefix(start), claim.words, claim.cell), []).append(at)
    found = list(claims)
    for pair in places.values():
        outcomes = {claims[at].own_outcome for at in pair}
        if len(outcomes) > 1 and not outcomes & {"no run", "too few seeds"}:
            for at in pair:
                found[at] = replace(claims[at], depends=filled.table.inferred)
    return found


def table_claims(filled: Filled) -> Iterator[Claim]:
    """Those of one table, not corrected."""
    for block in BLOCKS:
        for first, second in ORDERS:
            one, other = filled.row(first), filled.row(second)
            if one is None or other is None or not (one.is_papers(block) and other.is_papers(block)):
                continue
            for column in filled.table.columns:
                yield _order(filled, one, other, column, block)
            yield _together(filled, one, other, block)
        yield from _grows_with_privacy(filled, block)
        yield from _losses(filled, block)
    for first, second in LOOSE:
        if (one := filled.row(first)) is not None and (other := filled.row(second)) is not None:
            for task in _tasks(filled):
                column = min(_columns(filled, task), key=lambda of: of.epsilon)
                claim = _order(filled, one, other, column, CLAIMED)
                yield replace(claim, family=f"{claim.family}, loose accountants")


def _tasks(filled: Filled) -> list[str]:
    return list(dict.fromkeys(column.task for column in filled.table.columns))


def _columns(filled: Filled, task: str) -> list[Column]:
    return [column for column in filled.table.columns if column.task == task]


def short(filled: Filled) -> str:
    """The table's number."""
    return filled.table.title.partition(":")[0]


def family_of(filled: Filled, block: str) -> str:
    """The claims of a table that are corrected together."""
    return f"Du et al., {short(filled)}, {block}"


def _command(filled: Filled, keys: Sequence[str], block: str, seeds: int) -> str:
    cells = " ".join(f'--cells "{key}"' for key in keys)
    return f"papers reproduce {filled.table.key} {cells} --block {block} --seeds {max(seeds, 1)}"


def _order(filled: Filled, one: Row, other: Row, column: Column, block: str) -> Claim:
    pair = filled.gain(one, other.key, column, block)
    paper = _reported_gain(filled, one, other, column, block)
    keys = [f"{column.key}/{row.key}" for row in (one, other)]
    return Claim(
        family_of(filled, block), f"{one.label} above {other.label}", column.key,
        _command(filled, keys, block, pair.seeds), paper, pair,
    )  # fmt: skip


def _reported_gain(filled: Filled, one: Row, other: Row, column: Column, block: str) -> float | None:
    first, second = (filled.table.reported(row, column, block) for row in (one, other))
    return None if first is None or second is None else first - second


def _together(filled: Filled, one: Row, other: Row, block: str) -> Claim:
    """Differences averaged over the columns that have runs of both, seed by seed."""
    scores = [[filled.score(row, column, block).by_seed for row in (one, other)] for column in filled.table.columns]
    present = [pair for pair in scores if all(pair)]
    pair = pooled([pair[0] for pair in present], [pair[1] for pair in present])
    keys = [f"*/*/{row.key}" for row in (one, other)]
    return Claim(
        f"{family_of(filled, block)}, {TOGETHER}", f"{one.label} above {other.label}",
        f"mean of {len(present)} columns", _command(filled, keys, block, pair.seeds), pair=pair,
    )  # fmt: skip


def _grows_with_privacy(filled: Filled, block: str) -> Iterator[Claim]:
    """The gain of dynamic over vanilla is larger at a task's smallest epsilon than at its largest."""
    row, base = filled.row("dynamic"), filled.row(VANILLA)
    if row is None or base is None:
        return
    for task in _tasks(filled):
        columns = _columns(filled, task)
        ends = [min(columns, key=lambda of: of.epsilon), max(columns, key=lambda of: of.epsilon)]
        if ends[0] == ends[1]:
            continue
        scores = [[filled.score(of, end, block).by_seed for end in ends] for of in (row, base)]
        seeds = sorted(set[int].intersection(*(set(by_seed) for of in scores for by_seed in of)))
        gains = [{seed: scores[0][at][seed] - scores[1][at][seed] for seed in seeds} for at in (0, 1)]
        pair = replace(paired(*gains), size=largest(*scores[0], *scores[1]))
        low, high = (_reported_gain(filled, row, base, end, block) for end in ends)
        yield Claim(
            family_of(filled, block), "gain of dynamic over vanilla larger at the smaller epsilon",
            f"{task}/{ends[0].epsilon:g} against {ends[1].epsilon:g}",
            _command(filled, [f"{task}/*/dynamic", f"{task}/*/{VANILLA}"], block, len(seeds)),
            None if low is None or high is None else low - high, pair,
        )  # fmt: skip


def _losses(filled: Filled, block: str) -> Iterator[Claim]:
    """Dynamic is at most so many points below training without privacy."""
    row = filled.row("dynamic")
    for (key, task, epsilon), most in LOSSES.items():
        if row is None or filled.table.key != key:
            continue
        column = Column(task, epsilon)
        plain = filled.plain()[task][1].by_seed
        found = paired({seed: score + most for seed, score in filled.score(row, column, block).by_seed.items()}, plain)
        paper, reported = filled.table.plain.get(task), filled.table.reported(row, column, block)
        yield Claim(
            family_of(filled, block), f"dynamic above training without privacy less {most:g} points", column.key,
            _command(filled, [f"{column.key}/dynamic", f"{task}/0/plain"], block, found.seeds),
            None if paper is None or reported is None else round(reported + most - paper, 9), found,
        )  # fmt: skip


def figure_claims(sources: Sources) -> Iterator[Claim]:
    """Those of the figures, not corrected."""
    for key in ("figure1", "figure5"):
        yield from _ramp_claims(FIGURES[key], sources)
    yield from _convergence_claims(sources)
    yield from _consumption_claims(sources)
    grid = above_vanilla(sources.archive)
    if grid:
        better, pair = sum(above(gain.mean, 0.0, size=100.0) for gain in grid.values()), mean_of(grid)
        yield Claim(
            "Du et al., Figure 3", "dynamic above vanilla, mean over the grid of rho_mu and rho_c", "mnist/0.4",
            f"papers reproduce figure3 --seeds {max(pair.seeds, 1)}", pair=pair,
            found=f"{pair.mean:+.2f}; {better} of {len(grid)} points above vanilla of the same seeds",
        )  # fmt: skip
    yield from _cost_claims(sources)


def _convergence_claims(sources: Sources) -> Iterator[Claim]:
    """Section 4.2's words on how methods converge."""
    figure = FIGURES["convergence"]
    for words, measure, one, other in (
        ("early accuracy of DP-SGD above that of growing mu", early_accuracy, "DP-SGD", "growing mu"),
        (
            "late changes of DP-SGD larger than those of sensitivity decay",
            unsteadiness,
            "DP-SGD",
            "sensitivity decay",
        ),
    ):
        for task in tasks_of(figure):
            pair = gain(figure, sources, task, measure, one, other)
            cells = f'--cells "{task}/*/{one}" --cells "{task}/*/{other}"'
            command = f"papers reproduce convergence {cells} --seeds {max(pair.seeds, 1)}"
            yield Claim("Du et al., section 4.2, convergence", words, task, command, pair=pair)


def _consumption_claims(sources: Sources) -> Iterator[Claim]:
    """Figure 2: nothing is random."""
    found = curves(FIGURES["figure2"], sources.curves)
    base = found.get(FLAT)
    for words, ours, its in (("as the CLT counts", "clt", "clt"), ("certified", "upper", "lower")):
        for name, costs in found.items():
            if base is None or name == FLAT:
                continue
            # The last point is the whole budget for both.
            pairs = list(zip(getattr(costs, ours), getattr(base, its), strict=True))[:-1]
            true = sum(above(most, spent) for spent, most in pairs)
            yield Claim(
                "Du et al., Figure 2", f"growing mu has spent less than vanilla at every earlier step, {words}",
                f"mnist/1.2, {name}", "papers reproduce figure2", certain=true == len(pairs),
                found=f"at {true} of {len(pairs)} numbers of steps",
            )  # fmt: skip


def _ramp_claims(figure: Figure, sources: Sources) -> Iterator[Claim]:
    found = ramps(figure, sources)
    task = next(iter(figure.runs)).split("/", 1)[0]
    family, command = (
        f"Du et al., {figure.title.partition(':')[0]}",
        f"papers reproduce {figure.key} --seeds 3",
    )
    for words, one, other in (
        ("gradients of DP-SGD grow by more than those of SGD (log of the factor)", "DP-SGD", "SGD"),
        (
            "gradients of DP-SGD grow by more than those of dynamic (log of the factor)",
            "DP-SGD",
            "dynamic DP-SGD",
        ),
    ):
        yield Claim(family, words, task, command, pair=paired(found.get(one, {}), found.get(other, {})))


def _cost_claims(sources: Sources) -> Iterator[Claim]:
    """Figure 4: nothing is random."""
    found = curves(FIGURES["figure4"], sources.curves)
    for words, one, other in (("CLT below the certified lower end", "lower", "clt"),
                              ("Renyi above the certified upper end", "renyi", "upper")):  # fmt: skip
        for name, costs in found.items():
            pairs = list(zip(getattr(costs, one), getattr(costs, other), strict=True))
            true = sum(above(high, low) for high, low in pairs)
            yield Claim(
                "Du et al., Figure 4", words, f"mnist, {name}", "papers reproduce figure4",
                certain=true == len(pairs), found=f"at {true} of {len(pairs)} numbers of steps",
            )  # fmt: skip
    # The appendix: the more steps, the nearer is the CLT.
    for name, costs in found.items():
        first, last = (100 * (costs.renyi[at] / costs.clt[at] - 1) for at in (0, -1))
        yield Claim(
            "Du et al., Figure 4", "gap between CLT and Renyi smaller after more steps", f"mnist, {name}",
            "papers reproduce figure4", certain=above(first, last),
            found=f"{first:.2f} % of the CLT's after {costs.steps[0]} steps, {last:.2f} % after {costs.steps[-1]}",
        )  # fmt: skip
    gaps = {name: 100 * (costs.renyi[-1] / costs.clt[-1] - 1) for name, costs in found.items()}
    for (name, gap), (other, larger) in pairwise(gaps.items()):
        yield Claim(
            "Du et al., Figure 4", "gap between CLT and Renyi smaller at the smaller epsilon",
            f"mnist, {name}, {other}", "papers reproduce figure4", certain=above(larger, gap),
            found=f"{gap:.2f} % and {larger:.2f} % of the CLT's at the last step",
        )  # fmt: skip


def _hong_claims(sources: Sources) -> Iterator[Claim]:
    command, cases = f"papers reproduce {HONG}", compared(sources)
    for case in CASES:
        for steps in STEPS:
            influence = influence_of(case.study(steps), sources.influence, SEEDS)
            if influence is not None:
                fit = fit_exponential(influence)
                held = int(inside(influence, fit).sum())
                yield Claim(
                    "Hong et al., influence", "influence of the noise is an exponential of t",
                    f"{case.key}, T = {steps}", command, against=refuted(influence, fit),
                    found=f"fit inside the single bands at {held} of {len(influence.at)} steps, "
                    f"{influence.seeds} seeds",
                )  # fmt: skip
    for metric in UNITS:
        for one in cases:
            yield Claim(
                f"Hong et al., {UNITS[metric]}", "exponential better than uniform noise", one.case.key, command,
                pair=one.gain(metric), digits=DIGITS[metric],
            )  # fmt: skip
    groups = [("gain of the exponential grows with N", sized(cases, task)) for task in STAND_INS]
    for metric in (LOSS, ACCURACY):
        for words, of in groups:
            if len(of) > 1:
                pair = trend(of, [float(np.log2(one.case.size)) for one in of], metric)
                yield Claim(
                    "Hong et al., trends", f"{words}, {UNITS[metric]}", of[0].case.task, command,
                    pair=pair, digits=DIGITS[metric],
                )  # fmt: skip
        if len(long := scaled(cases)) > 1:
            pair = trend(long, list(range(len(long))), metric)
            yield Claim(
                "Hong et al., trends", f"gain of the exponential grows with the curvature, {UNITS[metric]}",
                long[0].case.task, command, pair=pair, digits=DIGITS[metric],
            )  # fmt: skip


def counts(claims: Sequence[Claim]) -> dict[Outcome, int]:
    """How many have which outcome.

    >>> counts([Claim("a", "b", "c", "d", certain=True), Claim("a", "b", "c", "d")])
    {'holds': 1, 'fails': 0, 'undecided': 0, 'depends': 0, 'too few seeds': 0, 'no run': 1}
    """
    found: dict[Outcome, int] = {
        "holds": 0,
        "fails": 0,
        "undecided": 0,
        "depends": 0,
        "too few seeds": 0,
        "no run": 0,
    }
    for claim in claims:
        found[claim.outcome] += 1
    return found


def same_sign(claims: Sequence[Claim]) -> tuple[int, int, int]:
    """Of the claims with a number of the paper and enough seeds here: how many differences have the paper's sign here,
    how many the other or none, and how many of the paper's own numbers are against its claim."""
    both = [claim for claim in claims if claim.paper is not None and claim.pair.seeds >= ENOUGH]
    alike = sum(bool(np.sign(round(claim.paper or 0.0, 6)) == np.sign(claim.pair.mean)) for claim in both)
    against = sum(not above(claim.paper or 0.0, 0.0, size=100.0) for claim in both)
    return alike, len(both) - alike, against
