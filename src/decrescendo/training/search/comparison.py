"""The result of comparing plans: scores, paired differences, a table and a figure."""

import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from decrescendo.accounting import Budget
from decrescendo.base import markdown
from decrescendo.report import LEVEL, POWER, Paired, Scores, draw_scores, holm, p_in_words, paired

_PUBLIC = "Scores are from rows declared public; no privacy budget was spent or accounted for any other rows."


@dataclass(frozen=True, slots=True)
class Comparison:
    """Scores of several plans on public data.

    Args:
        scores: scores per plan, one per seed; the same seeds for all plans.
        learning_rates: the learning rate used for each plan's scores; empty if unknown.
        tried: the learning rates that every plan was trained at; given several, its scores are those at the
            rate with the highest mean. Empty if the plans were trained at different rates.
        curves: per plan, the score over the steps, one row per seed.
        budgets: per plan; `table` says so where they differ. Empty if unknown.
        trained: how, in a sentence that `table` repeats. Empty if unknown.
    """

    scores: Mapping[str, tuple[float, ...]]
    learning_rates: Mapping[str, float] = field(default_factory=dict[str, float])
    tried: tuple[float, ...] = ()
    curves: Mapping[str, Scores] = field(default_factory=dict[str, Scores])
    budgets: Mapping[str, Budget] = field(default_factory=dict[str, Budget])
    trained: str = ""

    @property
    def best(self) -> str:
        """The plan with the highest mean score; `table` shows whether the difference is significant."""
        return max(self.scores, key=lambda name: statistics.fmean(self.scores[name]))

    @property
    def differences(self) -> dict[str, Paired]:
        """For every plan but the first: its scores minus the first plan's, seed by seed.

        >>> found = Comparison({"constant": (0.5, 0.6), "moving": (0.6, 0.8)}).differences["moving"]
        >>> found.differences, round(found.p_value, 3), found.seeds_to_decide
        ((0.1, 0.2), 0.205, 5)
        """
        first, *others = (dict(enumerate(found)) for found in self.scores.values())
        names = list(self.scores)[1:]
        return {name: paired(other, first) for name, other in zip(names, others, strict=True)}

    @property
    def p_values(self) -> dict[str, float]:
        """Holm-adjusted p-values of the paired t-tests; only plans for which a test is defined. All plans that are
        compared with the first count in the correction: how many do must not depend on the scores."""
        found = {name: pair.p_value for name, pair in self.differences.items()}
        corrected = zip(found, holm([1.0 if value is None else value for value in found.values()]), strict=True)
        return {name: p for name, p in corrected if found[name] is not None}

    def describe(self) -> str:
        """One line per plan: mean and standard deviation over seeds, and the mean paired difference to the
        first plan with its standard error.

        >>> print(Comparison({"constant": (0.5, 0.6), "moving": (0.6, 0.8)}).describe())
        constant  0.5500 (sd 0.0707)
        moving    0.7000 (sd 0.1414)  +0.1500 (se 0.0500) from constant, 2 seeds
        Scores are from rows declared public; no privacy budget was spent or accounted for any other rows.
        """
        first, *_ = self.scores
        wide, lines = max(map(len, self.scores)), list[str]()
        for name, found in self.scores.items():
            line = f"{name:{wide}}  {statistics.fmean(found):.4f}"
            if len(found) > 1:
                line += f" (sd {statistics.stdev(found):.4f})"
            if name != first:
                apart = self.differences[name]
                error = f" (se {apart.error:.4f})" if len(found) > 1 else ""
                line += f"  {apart.mean:+.4f}{error} from {first}, {len(found)} seeds"
            lines.append(line)
        return "\n".join([*lines, _PUBLIC])

    def table(self) -> str:
        """One row per plan, in Markdown: mean and standard deviation over seeds; the paired difference to the
        first plan: standard error, p-value (also Holm-adjusted), verdict, and number of seeds needed.

        >>> found = Comparison({"constant": (0.50, 0.60, 0.55), "moving": (0.61, 0.69, 0.66)})
        >>> print(found.table())  # doctest: +ELLIPSIS
        | plan     |   mean |     sd | minus constant |     se |      p | p after Holm | verdict | seeds to decide |
        | -------- | -----: | -----: | -------------: | -----: | -----: | -----------: | ------- | --------------: |
        | constant | 0.5500 | 0.0500 |                |        |        |              |         |                 |
        | moving   | 0.6533 | 0.0404 |        +0.1033 | 0.0067 | 0.0041 |       0.0041 | better  |               3 |
        <BLANKLINE>
        3 seeds. Differences are paired by seed...
        """
        first, *_ = self.scores
        rates = bool(self.learning_rates)
        header = [
            "plan", *["learning rate"] * rates, "mean", "sd", f"minus {first}", "se", "p", "p after Holm",
        ]  # fmt: skip
        rows: list[list[str]] = []
        for name, found in self.scores.items():
            spread = f"{statistics.stdev(found):.4f}" if len(found) > 1 else "-"
            rate = [f"{self.learning_rates[name]:g}"] if rates else []
            against = [""] * 6 if name == first else self._against_first(name)
            rows.append([name, *rate, f"{statistics.fmean(found):.4f}", spread, *against])
        align = "l" + "r" * (len(header) - 1) + "lr"
        lines = markdown.table([*header, "verdict", "seeds to decide"], rows, align)
        return f"{lines}\n\n{self._notes()}"

    def _against_first(self, name: str) -> list[str]:
        pair, p = self.differences[name], self.p_values.get(name)
        verdict = "-" if p is None else "undecided" if p >= LEVEL else "better" if pair.mean > 0 else "worse"
        error = f"{pair.error:.4f}" if pair.seeds > 1 else "-"
        needed = pair.seeds_to_decide
        return [
            f"{pair.mean:+.4f}", error, p_in_words(pair.p_value), p_in_words(p), verdict,
            "-" if needed is None else str(needed),
        ]  # fmt: skip

    def _notes(self) -> str:
        count = len(next(iter(self.scores.values())))
        compared = f"{len(self.scores) - 1} comparison{'s' * (len(self.scores) != 2)}"
        notes = [
            f"{count} seed{'s' * (count != 1)}. Differences are paired by seed. P values are those of two-sided "
            f"t-tests, corrected after Holm for {compared}; below {LEVEL:g} a plan is called "
            f"better or worse. The last column: how many seeds a test would need to find such a difference with "
            f"probability {POWER:g}, if the true difference and its spread are those observed."
        ]
        if self.trained:
            notes.append(self.trained)
        if len(self.tried) > 1:
            rates = ", ".join(f"{rate:g}" for rate in self.tried)
            notes.append(
                f"Each plan is at its own best learning rate of {rates}: the one with the highest mean over the same "
                "seeds, so means are a little too high, for every plan. Confirm a verdict at these rates, on other "
                "rows."
            )
        if len(set(self.budgets.values())) > 1:
            budgets = ", ".join(
                f"{name} ({budget.epsilon:g}, {budget.delta:g})-DP per {budget.unit.value}"
                for name, budget in self.budgets.items()
            )
            notes.append(f"Budgets differ, so that differences are not due to the schedules alone: {budgets}.")
        return "\n\n".join([*notes, _PUBLIC])

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Draw the scores over the steps; their differences to the first plan if all plans have the same steps.

        Raises:
            InvalidValue: no curves.
            MissingExtra: matplotlib is not installed.
        """
        steps = {tuple(curve.steps) for curve in self.curves.values()}
        compared = tuple(self.curves) if len(steps) == 1 and len(self.curves) > 1 else ()
        draw_scores(self.curves, path, title="Plans on public rows", compared=compared, score="score")
