"""The page of Hong et al.'s experiment: influence, and exponential against uniform noise, from finished results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from decrescendo.accounting import Gaussian, rho_of
from decrescendo.accounting.gaussian import mu_of
from decrescendo.budget import rounded
from decrescendo.experiments.estimate import LEVEL, Influence, fit_exponential
from decrescendo.experiments.hong import (
    CASES,
    DELTA,
    DYNAMIC,
    EPSILON,
    INFLUENCE_SEEDS,
    LOOKED_AT,
    METHODS,
    POINTS,
    SCALES,
    SEEDS,
    SHOWN,
    SIZES,
    STAND_INS,
    STEPS,
    TUNING_SEEDS,
    UNIFORM,
    Case,
    Chosen,
    chosen,
    influence_of,
    plain_spec,
)
from decrescendo.experiments.pages.archive import Sources
from decrescendo.experiments.pages.paired import Paired, holm, paired
from decrescendo.experiments.pages.settings import machines_table
from decrescendo.experiments.results import Result
from decrescendo.experiments.tasks import PAPER
from decrescendo.report.figure import Scores
from decrescendo.report.markdown import table
from decrescendo.report.panels import Panel, draw_panels

SIGNIFICANT, SMALLEST = 0.05, 0.0001
LOSS, ACCURACY = "train_loss", "test_accuracy"
UNITS = {LOSS: "training loss, nats", ACCURACY: "test accuracy, %"}
NAMES = {"mnist35-pca": "3 and 5", "mnist-pca": "10 digits"}
SCALE_NAMES = {"half-scale": "5", PAPER: "10", "double-scale": "20"}


@dataclass(frozen=True, slots=True)
class Compared:
    """One case with its finished runs.

    Args:
        case: where.
        chosen: what the made-up data said.
        results: by method and seed.
        plain: without privacy, by seed.
    """

    case: Case
    chosen: Chosen
    results: Mapping[str, Mapping[int, Result]]
    plain: Mapping[int, Result]

    def values(self, metric: str, method: str) -> dict[int, float]:
        """A metric by seed, accuracies in per cent."""
        return _values(self.results[method], metric)

    def gain(self, metric: str) -> Paired:
        """How much better the exponential is, seed by seed: points of accuracy, or nats less of loss."""
        one, other = self.values(metric, DYNAMIC), self.values(metric, UNIFORM)
        return paired(one, other) if metric == ACCURACY else paired(other, one)


def _values(found: Mapping[int, Result], metric: str) -> dict[int, float]:
    factor = 100.0 if metric == ACCURACY else 1.0
    return {seed: factor * result.metrics[metric] for seed, result in found.items()}


def compared(sources: Sources) -> list[Compared]:
    """The cases that have runs of both methods."""
    archive, found = sources.archive, list[Compared]()
    for case in CASES:
        known = chosen(case, lambda spec: archive.of(spec).get(spec.seed), sources.influence)
        if known is None:
            continue
        runs = {method: archive.of(known.spec(method)) for method in METHODS}
        if all(runs.values()):
            found.append(Compared(case, known, runs, archive.of(plain_spec(case))))
    return found


def hong_page(sources: Sources) -> str:
    """The whole page; what has no results is said to be unfinished."""
    cases = compared(sources)
    parts = [
        "# Section 5 of Hong et al.",
        "Private gradient descent with uniform noise and with noise that falls exponentially, from the experiment of "
        "Hong, Wang and Zhou 2022, *Dynamic Privacy Budget Allocation Improves Data Efficiency of Differentially "
        "Private Gradient Descent*. Written by `decrescendo report` from `results/runs` and `results/influence`; no "
        "number is typed by hand.",
        "## What holds here",
        _verdict(sources, cases),
        "## What was done",
        _setup(),
        "## Influence",
        _influence(sources),
        "## Chosen on made-up data",
        _choices(cases),
        "## Uniform against exponential",
        _comparison(cases),
        "## Privacy",
        _privacy(cases),
        *_machines(cases),
        "## Again",
        f"```sh\ndecrescendo reproduce hong --seeds {SEEDS}\ndecrescendo report\n```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _setup() -> str:
    rho = rho_of(EPSILON, DELTA)
    return "\n".join(
        [
            f"- **As in the paper**: N images of MNIST, all ten digits (`mnist-pca`) or 3 and 5 only (`mnist35-pca`); "
            f"60 principal components, centred, of unit variance, at most 10 long; a network 60-1000-k, cross-entropy, "
            f"full batches, learning rate 0.1, no momentum, clip norm 4; ({EPSILON:g}, {DELTA:g})-DP counted by zCDP, rho = "
            f"{rho:.6f}, R = {2 * rho:.6f}; the number of steps from {min(STEPS)} to {max(STEPS)} (here "
            f"{', '.join(map(str, STEPS))}) and the schedule are chosen on Gaussian data of the same size.",
            "- **Otherwise**: components, centre, variances and the scale are fitted on the last 10,000 train images, "
            "declared public and in no private set (the paper fits them on the private images and does not pay); a row "
            "that is longer than 10 is shortened by itself. Each seed draws its own N of the other train images, so "
            "that error bars cover the choice of images too. The noise is divided by the declared N.",
            "- **Not said in the paper, chosen here**: unit variance of each component (and not of all together); ReLU; "
            "the initial weights (torch's); labels of the Gaussian data (the largest of random linear scores); the "
            "score that the number of steps is chosen by (mean final training loss on the Gaussian data, "
            f"{TUNING_SEEDS} seeds); the sizes N.",
            f"- **Influence**: q_t, the coefficient of z_t^2 in the expected final training loss, as a difference "
            f"quotient between no noise at step t and twice its variance, both signs of the noise averaged, everything "
            f"else unchanged; {POINTS} steps t, {INFLUENCE_SEEDS} seeds, around uniform noise. (The paper defines "
            "d ERUB / d sigma_t and uses the coefficient of sigma_t^2; it does not say how much the noise was changed.) "
            "The exponential is fitted by least squares, its interval is the jackknife's over seeds. Lemma 4.3 then sets "
            "mu_t proportional to q_t^(1/4). It is measured for each number of steps anew.",
            f"- **Comparison**: {SEEDS} seeds; both methods of a seed share images, initial weights and the stream that "
            "noise is drawn from. Two-sided paired t-tests, Holm's correction over all cases of a metric.",
        ]
    )


def _influence(sources: Sources) -> str:
    rows: list[list[str]] = []
    for case in CASES:
        for steps in STEPS:
            rows += _influence_row(case, steps, "made-up", influence_of(case.study(steps), sources.influence))
    for case in LOOKED_AT:
        found = influence_of(case.study(made_up=False), sources.influence)
        rows += _influence_row(case, SHOWN, "the images", found)
    if not rows:
        return "**Unfinished**: nothing has been measured yet."
    header = [
        "case",
        "T",
        "data",
        "q_1 z^2 in 1e-3 nats",
        "q_T z^2",
        "growth a step",
        "rho_mu",
        "left of uniform's",
    ]
    return "\n\n".join(
        [
            f"![Influence over the steps](hong-influence.png)\n\nT = {SHOWN}; each curve over its own last value; bands "
            f"are {100 * LEVEL:g} % intervals. As a vector graphic: [hong-influence.svg](hong-influence.svg). For data "
            "of other lengths: [hong-scale.png](hong-scale.png), [hong-scale.svg](hong-scale.svg).",
            table(header, rows, "lrlrrrrr"),
            "Influences are times z^2, so that they are nats of final training loss, with standard errors. The last "
            "column is what the best noise for the *fit* leaves of sum q_t z_t^2: what could be won at most if the fit "
            "were the truth and the loss quadratic. Curves on the images themselves are private; they are looked at "
            "and not used.",
        ]
    )


def _influence_row(case: Case, steps: int, data: str, found: Influence | None) -> list[list[str]]:
    if found is None:
        return []
    fit, z_squared = fit_exponential(found), _z_squared(steps)
    mean, error = 1e3 * z_squared * found.mean, 1e3 * z_squared * found.error
    low, high = np.exp(fit.interval)
    return [
        [
            case.key,
            str(steps),
            data,
            f"{mean[0]:.3f} ± {error[0]:.3f}",
            f"{mean[-1]:.3f} ± {error[-1]:.3f}",
            f"{np.exp(fit.rate):.4f} [{low:.4f}, {high:.4f}]",
            f"{fit.rho_mu():.2f}",
            f"{100 * fit.gain():.0f} %",
        ]
    ]


def _z_squared(steps: int) -> float:
    return steps / (2 * rho_of(EPSILON, DELTA))


def _choices(cases: Sequence[Compared]) -> str:
    if not cases:
        return "**Unfinished**: nothing has been chosen yet."
    rows: list[list[str]] = []
    for one in cases:
        losses = [
            " / ".join(
                f"**{loss:.4f}**" if steps == one.chosen.steps(method) else f"{loss:.4f}"
                for steps in STEPS
                for loss in [one.chosen.losses[method, steps]]
            )
            for method in METHODS
        ]
        chosen_steps = [str(one.chosen.steps(method)) for method in METHODS]
        rows.append([one.case.key, *losses, *chosen_steps, f"{one.chosen.growth(DYNAMIC):.3f}"])
    header = ["case", "loss, uniform", "loss, exponential", "T, uniform", "T, exponential", "rho_mu"]
    return (
        f"Mean final training loss on the made-up data at {' / '.join(map(str, STEPS))} steps; the smallest is taken. "
        "Nothing of the images goes in.\n\n" + table(header, rows, "lllrrr")
    )


def _comparison(cases: Sequence[Compared]) -> str:
    if not cases:
        return "**Unfinished**: no run is finished."
    parts = [
        "![Gain of exponential over uniform noise over N](hong-gain.png)\n\nSeed by seed, with "
        f"{100 * LEVEL:g} % intervals; above zero the exponential is better. As a vector graphic: "
        "[hong-gain.svg](hong-gain.svg). The scores themselves: [3 and 5](hong-mnist35-pca.png) "
        "([svg](hong-mnist35-pca.svg)), [10 digits](hong-mnist-pca.png) ([svg](hong-mnist-pca.svg)).",
    ]
    for metric, unit in UNITS.items():
        pairs = [one.gain(metric) for one in cases]
        corrected = corrected_p(pairs)
        digits = 2 if metric == ACCURACY else 4
        rows = [
            [
                one.case.key,
                *(_spread(one.values(metric, method).values(), digits) for method in METHODS),
                _spread(_values(one.plain, metric).values(), digits),
                str(pair.seeds),
                f"{pair.mean:+.{digits}f} ± {pair.error:.{digits}f}",
                _p(pair.p_value),
                _p(p),
            ]
            for one, pair, p in zip(cases, pairs, corrected, strict=True)
        ]
        header = ["case", "uniform", "exponential", "not private", "seeds", "gain", "p", "p after Holm"]
        parts += [f"### {unit[0].upper()}{unit[1:]}", table(header, rows, "lrrrrrrr")]
    parts.append(
        "Mean and standard deviation over seeds; the gain is that of the exponential, with its standard error, positive "
        f"where it is better. *Not private*: {max(STEPS)} steps without clipping and noise. Names are task / N, and the "
        "data scale where it is not the paper's: half-scale and double-scale data are at most 5 and 20 long."
    )
    return "\n\n".join(parts)


def corrected_p(pairs: Sequence[Paired]) -> list[float | None]:
    """P values after Holm, among those that have one."""
    values = [pair.p_value for pair in pairs]
    tested = [i for i, value in enumerate(values) if value is not None]
    corrected = dict(zip(tested, holm([v for v in values if v is not None]), strict=True))
    return [corrected.get(i) for i in range(len(values))]


def _verdict(sources: Sources, cases: Sequence[Compared]) -> str:
    found = {
        (case, steps): one
        for case in CASES
        for steps in STEPS
        if (one := influence_of(case.study(steps), sources.influence)) is not None
    }
    if not found or not cases:
        return "**Unfinished**: see below."
    lines = [_shape(list(found.values())), *(_winner(cases, metric) for metric in UNITS)]
    lines += [_over_sizes(cases, task, metric) for task in STAND_INS for metric in UNITS]
    lines.append(_over_scales(sources, cases))
    return "\n".join(f"- {line}" for line in lines if line)


def _shape(found: Sequence[Influence]) -> str:
    rising = sum(fit_exponential(one).interval[0] > 0 for one in found)
    below = sum(bool(one.interval()[1][0] < 0) for one in found)
    level = sum(bool(one.slopes[:, -1].mean() > one.slopes[:, 0].mean()) for one in found)
    return (
        f"**Influence grows about exponentially**: the last step matters more than the first in {level} of "
        f"{len(found)} cases and numbers of steps, and the fitted growth is above one, with its whole interval, in "
        f"{rising}. But the first step's influence is below zero, with its whole interval, in {below}: more noise there "
        "*lowers* the final training loss, which no positive exponential can say, and no bound of the paper either."
    )


def _winner(cases: Sequence[Compared], metric: str) -> str:
    pairs = [one.gain(metric) for one in cases]
    corrected = corrected_p(pairs)
    decided = [
        (one.case.key, pair.mean > 0)
        for one, pair, p in zip(cases, pairs, corrected, strict=True)
        if p is not None and p < SIGNIFICANT
    ]
    better, worse = [key for key, up in decided if up], [key for key, up in decided if not up]
    kind = "test accuracy" if metric == ACCURACY else "training loss"
    holds = (
        "holds everywhere here"
        if len(better) == len(cases)
        else "holds in part"
        if better
        else "does not hold here"
    )
    return (
        f"**Exponential noise beats uniform noise** ({kind}): {holds}. Significantly better in {len(better)} of "
        f"{len(cases)} cases{_listed(better)}, significantly worse in {len(worse)}{_listed(worse)}, undecided in "
        f"{len(cases) - len(decided)}."
    )


def _listed(keys: Sequence[str]) -> str:
    return f" ({', '.join(keys)})" if keys else ""


def size_slopes(cases: Sequence[Compared], task: str, metric: str) -> Paired:
    """How much the gain grows when N doubles, seed by seed: least squares over the sizes at the paper's scale."""
    chosen_cases = [one for one in cases if one.case.task == task and one.case.model == PAPER]
    if len(chosen_cases) < 2:
        return Paired(())
    doublings = np.log2([one.case.size for one in chosen_cases])
    sides = [(one.values(metric, DYNAMIC), one.values(metric, UNIFORM)) for one in chosen_cases]
    seeds = sorted(set[int].intersection(*({*one} & {*other} for one, other in sides)))
    sign = 1.0 if metric == ACCURACY else -1.0
    return Paired(
        tuple(
            float(np.polyfit(doublings, [sign * (one[seed] - other[seed]) for one, other in sides], 1)[0])
            for seed in seeds
        )
    )


def _over_sizes(cases: Sequence[Compared], task: str, metric: str) -> str:
    pair = size_slopes(cases, task, metric)
    if pair.p_value is None:
        return ""
    digits, kind = (2, "points of test accuracy") if metric == ACCURACY else (4, "nats of training loss")
    if pair.p_value >= SIGNIFICANT:
        words = "does not change significantly with N"
    else:
        words = "grows with N" if pair.mean > 0 else "shrinks as N grows: it is largest for few images"
    return (
        f"**Over N, {NAMES[task]}**: the gain {words}: {pair.mean:+.{digits}f} ± {pair.error:.{digits}f} {kind} for each "
        f"doubling (p {'= ' * (pair.p_value >= SMALLEST)}{_p(pair.p_value)}). Section 5 says that exponential noise "
        "outperforms as N grows; the introduction, that it gains most where N is small."
    )


def _over_scales(sources: Sources, cases: Sequence[Compared]) -> str:
    words: list[str] = []
    for one in sorted(_scaled(cases), key=lambda one: float(SCALE_NAMES[one.case.model])):
        found = influence_of(one.case.study(), sources.influence)
        if found is None:
            continue
        fit = fit_exponential(found)
        low, high = np.exp(fit.interval)
        gains = [one.gain(metric) for metric in UNITS]
        words.append(
            f"at most {SCALE_NAMES[one.case.model]} long: growth {np.exp(fit.rate):.3f} a step [{low:.3f}, {high:.3f}], "
            f"gain {gains[0].mean:+.4f} ± {gains[0].error:.4f} nats, {gains[1].mean:+.2f} ± {gains[1].error:.2f} points"
        )
    if len(words) < 2:
        return ""
    return (
        "**More curved losses gain more** (3 and 5, longer data make the loss more curved; growth at "
        f"T = {SHOWN}): {'; '.join(words)}. The paper's claim asks for gains that rise along this list."
    )


def _scaled(cases: Sequence[Compared]) -> list[Compared]:
    return [one for one in cases if one.case.task == "mnist35-pca" and one.case.size == max(SIZES)]


def _privacy(cases: Sequence[Compared]) -> str:
    results = [result for one in cases for found in one.results.values() for result in found.values()]
    ends = [result.certified for result in results if result.certified is not None]
    if not ends:
        return "No private run is finished."
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    mu = mu_of(EPSILON, DELTA)
    share = mu**2 / (2 * rho_of(EPSILON, DELTA))
    return (
        f"Noise is calibrated by zCDP as in the paper, which promises ({EPSILON:g}, {DELTA:g})-DP and is an upper bound. "
        f"The certified epsilon of the very same runs is {rounded(low, 'down', 4)} .. {rounded(high, 'up', 4)}: "
        f"{100 * (1 - high / EPSILON):.1f} % of the budget is not used. Without subsampling the `{Gaussian().name}` "
        f"accountant is exact: at the same epsilon it allows sum 1/z_t^2 = {mu**2:.4f}, {share:.2f} times the paper's R, "
        "to any schedule alike. What the choice of steps and schedule costs is nothing: it is made on made-up data."
    )


def _machines(cases: Sequence[Compared]) -> list[str]:
    results = [result for one in cases for found in one.results.values() for result in found.values()]
    return ["## Machines", machines_table(results)] if results else []


def _spread(values: object, digits: int) -> str:
    numbers = np.array(list(values), dtype=np.float64)  # type: ignore[call-overload]
    if not numbers.size:
        return "-"
    deviation = f" ± {numbers.std(ddof=1):.{digits}f}" if numbers.size > 1 else ""
    return f"{numbers.mean():.{digits}f}{deviation}"


def _p(value: float | None) -> str:
    if value is None:
        return "-"
    return f"< {SMALLEST}" if value < SMALLEST else f"{value:.4f}"


def draw_hong(sources: Sources, folder: Path) -> list[Path]:
    """Every figure that has something to show."""
    cases = compared(sources)
    written = _draw_influences(sources, folder)
    return written + (_draw_gains(cases, folder) if cases else [])


def _relative(found: Influence) -> Scores:
    low, high = found.interval()
    last = float(found.mean[-1])
    return Scores(found.at.tolist(), [(part / last).tolist() for part in (low, found.mean, high)])


def _draw_influences(sources: Sources, folder: Path) -> list[Path]:
    def curve(case: Case, *, made_up: bool = True) -> Scores | None:
        found = influence_of(case.study(made_up=made_up), sources.influence)
        return None if found is None else _relative(found)

    panels: list[Panel] = []
    for task in STAND_INS:
        curves = {f"made-up, N = {size}": curve(Case(task, size)) for size in SIZES}
        curves[f"the images, N = {max(SIZES)} (private)"] = curve(Case(task, max(SIZES)), made_up=False)
        panels.append(_influence_panel(curves, NAMES[task]))
    scales = {
        f"at most {SCALE_NAMES[model]} long": curve(Case("mnist35-pca", max(SIZES), model))
        for model in ("half-scale", PAPER, "double-scale")
    }
    assert set(SCALES) < set(SCALE_NAMES)
    written: list[Path] = []
    if all(panel.lines for panel in panels):
        written += draw_panels(panels, folder / "hong-influence")
    if all(scales.values()):
        written += draw_panels([_influence_panel(scales, "")], folder / "hong-scale")
    return written


def _influence_panel(curves: Mapping[str, Scores | None], title: str) -> Panel:
    lines = {name: scores for name, scores in curves.items() if scores is not None}
    return Panel(lines, "influence $q_t$ over the last", title, (0.0, ""), dots=True, from_zero=False)


def _draw_gains(cases: Sequence[Compared], folder: Path) -> list[Path]:
    def sized(task: str) -> list[Compared]:
        found = [one for one in cases if one.case.task == task and one.case.model == PAPER]
        return sorted(found, key=lambda one: one.case.size)

    def line(task: str, of: Sequence[Sequence[float]]) -> Scores:
        centres = np.array([np.mean(values) for values in of])
        reach = np.array([_reach(values) for values in of])
        ends = (centres - reach, centres, centres + reach)
        return Scores([one.case.size for one in sized(task)], [part.tolist() for part in ends])

    tasks = [task for task in STAND_INS if sized(task)]
    gains = [
        Panel(
            {NAMES[task]: line(task, [one.gain(metric).differences for one in sized(task)]) for task in tasks},
            f"gain in {unit}", "", (0.0, ""), dots=True, from_zero=False, x="number of images N",
        )
        for metric, unit in UNITS.items()
    ]  # fmt: skip
    written = draw_panels(gains, folder / "hong-gain")
    for task in tasks:
        panels = [
            Panel(
                {
                    name: line(task, [list(one.values(metric, method).values()) for one in sized(task)])
                    for method, name in METHODS.items()
                },
                unit, NAMES[task], dots=True, from_zero=False, x="number of images N",
            )
            for metric, unit in UNITS.items()
        ]  # fmt: skip
        written += draw_panels(panels, folder / f"hong-{task}")
    return written


def _reach(values: Sequence[float]) -> float:
    """Half of Student's confidence interval of the mean; zero for one value."""
    if len(values) < 2:
        return 0.0
    return float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1) * stats.sem(values))
