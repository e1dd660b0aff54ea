"""The page of Hong et al.'s experiment: influence, and exponential against uniform noise, from finished results."""

from collections.abc import Iterable, Sequence

import numpy as np

from decrescendo.accounting import Gaussian, mu_of, rho_of, rounded
from decrescendo.base.markdown import table
from decrescendo_papers.experiments.comparisons import p_in_words
from decrescendo_papers.experiments.estimate import LEVEL, Influence, fit_exponential
from decrescendo_papers.experiments.hong import (
    CASES,
    CHOOSING_SEEDS,
    DELTA,
    DYNAMIC,
    EPSILON,
    LOOKED_AT,
    METHODS,
    POINTS,
    SEEDS,
    SHOWN,
    STEPS,
    Case,
    influence_of,
)
from decrescendo_papers.experiments.pages.archive import Sources
from decrescendo_papers.experiments.pages.hong_cases import (
    DIGITS,
    UNITS,
    Compared,
    compared,
    corrected_p,
    inside,
    values,
)
from decrescendo_papers.experiments.pages.hong_verdict import verdict
from decrescendo_papers.experiments.pages.settings import machines_table


def hong_page(sources: Sources) -> str:
    """The whole page; what has no results is said to be unfinished."""
    cases = compared(sources)
    parts = [
        "# Section 5 of Hong et al.",
        "Private gradient descent with uniform noise and with noise that falls exponentially, from the experiment of "
        "Hong, Wang and Zhou 2022, *Dynamic Privacy Budget Allocation Improves Data Efficiency of Differentially "
        "Private Gradient Descent*. Written by `papers report` from `results/runs` and `results/influence`.",
        "## What holds here",
        verdict(sources, cases),
        "## What was done",
        _setup(),
        "## Influence",
        _influence(sources),
        "## Chosen on made-up data",
        _choices(cases),
        "## Uniform against exponential",
        _comparison(cases),
        "## With the same number of steps",
        _same_steps(cases),
        "## Privacy",
        _privacy(cases),
        "## What the error bars do not cover",
        _limits(),
        *_machines(cases),
        "## Again",
        "```sh\npapers reproduce hong\npapers report\n```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _setup() -> str:
    rho = rho_of(EPSILON, DELTA)
    return "\n".join(
        [
            f"- **As in the paper**: N images of MNIST, all ten digits (`mnist-pca`) or 3 and 5 only (`mnist35-pca`); "
            f"60 principal components, centred, of unit variance, at most 10 long; a network 60-1000-k, cross-entropy, "
            f"full batches, learning rate 0.1, no momentum, clip norm 4; ({EPSILON:g}, {DELTA:g})-DP counted by zCDP, "
            f"rho = {rho:.6f}, R = {2 * rho:.6f}; the number of steps from {min(STEPS)} to {max(STEPS)} (here "
            f"{', '.join(map(str, STEPS))}) and the schedule are chosen on Gaussian data of the same size.",
            "- **Otherwise**: components, centre, variances and the scale are fitted on the last 10,000 train images, "
            "declared public and in no private set (the paper fits them on the private images and does not pay); a row "
            "that is longer than 10 is shortened by itself. Each seed draws its own N of the other train images, so "
            "that error bars cover the choice of images too. The noise is divided by the declared N.",
            "- **Not said in the paper, chosen here**: unit variance of each component (and not of all together); "
            "ReLU; the initial weights (torch's); labels of the Gaussian data (the largest of random linear scores); "
            "the score that the number of steps is chosen by (mean final training loss on the Gaussian data, "
            f"{CHOOSING_SEEDS} seeds); the sizes N.",
            f"- **Influence**: q_t, the coefficient of z_t^2 in the expected final training loss, as a difference "
            f"quotient between no noise at step t and twice its variance, both signs of the noise averaged, everything "
            f"else unchanged; {POINTS} steps t, around uniform noise; {CHOOSING_SEEDS} seeds to choose by, {SEEDS} for "
            f"what is drawn (T = {SHOWN}). (The paper defines d ERUB / d sigma_t and uses the coefficient "
            "of sigma_t^2; it does not say how much the noise was changed.) The exponential is fitted by least "
            "squares, its interval is the jackknife's over seeds. Lemma 4.3 then sets mu_t proportional to q_t^(1/4). "
            "It is measured for each number of steps anew.",
            f"- **Comparison**: {SEEDS} seeds; both methods of a seed share images, initial weights and the stream "
            "that noise is drawn from. Two-sided paired t-tests, Holm's correction over all cases of a metric.",
        ]
    )


def _influence(sources: Sources) -> str:
    rows = [
        row
        for case in CASES
        for steps in STEPS
        for row in _influence_row(case, steps, "made-up", influence_of(case.study(steps), sources.influence, SEEDS))
    ]
    for case in LOOKED_AT:
        found = influence_of(case.study(made_up=False), sources.influence, SEEDS)
        rows += _influence_row(case, SHOWN, "the images", found)
    if not rows:
        return "**Unfinished**: nothing has been measured yet."
    header = [
        "case",
        "T",
        "data",
        "seeds",
        "q_1 z^2 in 1e-3 nats",
        "q_T z^2",
        "growth a step",
        "in band",
        "rho_mu",
    ]
    return "\n\n".join(
        [
            f"![Influence over the steps](hong-influence.png)\n\nT = {SHOWN}; each curve over its own last value; "
            f"bands are {100 * LEVEL:g} % intervals, thin lines the fitted exponentials.",
            "![Influence for data of three lengths](hong-scale.png)\n\nThe same for data of three lengths.",
            table(header, rows, "lrlrrrrrr"),
            "Influences are times z^2, so that they are nats of final training loss, with standard errors; the growth "
            f"has its {100 * LEVEL:g} % interval. *In band*: at how many of the measured steps the interval holds the "
            "fitted exponential. *rho_mu*: by what factor 1/z_t then grows over the run; schedules "
            f"are chosen by the first {CHOOSING_SEEDS} seeds. Curves on the images "
            "themselves are private; they are looked at and not used.",
        ]
    )


def _influence_row(case: Case, steps: int, data: str, found: Influence | None) -> list[list[str]]:
    if found is None:
        return []
    fit, z_squared = fit_exponential(found), steps / (2 * rho_of(EPSILON, DELTA))
    mean, error = 1e3 * z_squared * found.mean, 1e3 * z_squared * found.error
    low, high = np.exp(fit.interval)
    return [
        [
            case.key,
            str(steps),
            data,
            str(found.seeds),
            f"{mean[0]:.3f} ± {error[0]:.3f}",
            f"{mean[-1]:.3f} ± {error[-1]:.3f}",
            f"{np.exp(fit.rate):.4f} [{low:.4f}, {high:.4f}]",
            f"{int(inside(found, fit).sum())} of {len(found.at)}",
            f"{fit.rho_mu():.2f}",
        ]
    ]


def _choices(cases: Sequence[Compared]) -> str:
    if not cases:
        return "**Unfinished**: nothing has been chosen yet."
    rows: list[list[str]] = []
    for one in cases:
        for method, name in METHODS.items():
            taken = one.chosen.steps(method)
            losses = [one.chosen.losses[method, steps] for steps in STEPS]
            shown = [
                f"**{loss.mean:.4f} ± {loss.error:.4f}**" if steps == taken else f"{loss.mean:.4f} ± {loss.error:.4f}"
                for steps, loss in zip(STEPS, losses, strict=True)
            ]
            growth = [f"{one.chosen.growth(method, steps):.2f}" for steps in STEPS] if method == DYNAMIC else ["1"]
            rows.append([one.case.key, name, *shown, str(taken), " / ".join(growth)])
    header = ["case", "noise", *(f"T = {steps}" for steps in STEPS), "chosen T", "rho_mu"]
    return (
        f"Mean final training loss on the made-up data with its standard error, {CHOOSING_SEEDS} seeds; the "
        "smallest is taken. Nothing of the images goes in.\n\n" + table(header, rows, "llrrrrr")
    )


def _comparison(cases: Sequence[Compared]) -> str:
    if not cases:
        return "**Unfinished**: no run is finished."
    parts = [
        "![Gain of exponential over uniform noise over N](hong-gain.png)\n\nSeed by seed, with "
        f"{100 * LEVEL:g} % intervals; above zero the exponential is better.",
        "![Scores on 3 and 5](hong-mnist35-pca.png)\n\n3 and 5, mean over the seeds with "
        f"{100 * LEVEL:g} % intervals of each method by itself.",
        "![Scores on ten digits](hong-mnist-pca.png)\n\nTen digits, likewise.",
    ]
    for metric, unit in UNITS.items():
        pairs = [one.gain(metric) for one in cases]
        digits = DIGITS[metric]
        rows = [
            [
                one.case.key,
                *(_spread(one.values(metric, method).values(), digits) for method in METHODS),
                _spread(values(one.plain, metric).values(), digits),
                str(pair.seeds),
                f"{pair.mean:+.{digits}f} ± {pair.error:.{digits}f}",
                p_in_words(pair.p_value),
                p_in_words(p),
            ]
            for one, pair, p in zip(cases, pairs, corrected_p(pairs), strict=True)
        ]
        header = ["case", "uniform", "exponential", "not private", "seeds", "gain", "p", "p after Holm"]
        parts += [f"### {unit[0].upper()}{unit[1:]}", table(header, rows, "lrrrrrrr")]
    parts.append(
        "Each method with the number of steps it chose. Mean and standard deviation over seeds; the gain is that of "
        f"the exponential, with its standard error, positive where it is better. *Not private*: {max(STEPS)} steps, "
        "no clipping and noise. Names are task / N, and the data scale where it is not the paper's: half-scale and "
        "double-scale data are at most 5 and 20 long."
    )
    return "\n\n".join(parts)


def _same_steps(cases: Sequence[Compared]) -> str:
    places = [(one, steps) for one in cases for steps in one.steps]
    if not places:
        return "**Unfinished**: no run is finished."
    rows = [[one.case.key, str(steps)] for one, steps in places]
    for metric in UNITS:
        pairs = [one.gain(metric, steps) for one, steps in places]
        for row, pair, p in zip(rows, pairs, corrected_p(pairs), strict=True):
            row += [f"{pair.mean:+.{DIGITS[metric]}f} ± {pair.error:.{DIGITS[metric]}f}", p_in_words(p)]
    header = [
        "case",
        "T",
        "gain in training loss, nats",
        "p after Holm",
        "gain in test accuracy, points",
        "p after Holm",
    ]
    return (
        "Where the methods chose different numbers of steps, the tables above compare both the shape and the number. "
        "Here both take the same, once each number that either chose: what is left is the shape.\n\n"
        + table(header, rows, "lrrrrr")
    )


def _privacy(cases: Sequence[Compared]) -> str:
    ends = [result.certified for one in cases for result in one.everything if result.certified is not None]
    if not ends:
        return "No private run is finished."
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    mu = mu_of(EPSILON, DELTA)
    share = mu**2 / (2 * rho_of(EPSILON, DELTA))
    return (
        f"The unit is one image, added or removed; a full batch is Poisson sampling at rate 1. Noise is calibrated by "
        f"zCDP as in the paper, which promises ({EPSILON:g}, {DELTA:g})-DP and is an upper bound. The certified "
        f"epsilon of the very same runs is {rounded(low, 'down', 4)} .. {rounded(high, 'up', 4)}: "
        f"{100 * (1 - high / EPSILON):.1f} % of the budget is not used. Without subsampling the `{Gaussian().name}` "
        f"accountant is exact: at the same epsilon it allows sum 1/z_t^2 = {mu**2:.4f}, {share:.2f} times the paper's "
        "R, to any schedule alike. The choice of steps and schedule costs no privacy: it is made on made-up data. Rate "
        "and clip norm are the paper's; its authors chose the rate on private data without noise, which nothing pays "
        "for. The training losses on this page are read from private rows, twenty times over: they are shown because "
        "MNIST is published, and the guarantee is that of each run's weights alone."
    )


def _limits() -> str:
    return (
        "They are for one choice of schedule and steps in each case, made once on made-up data: another draw of the "
        "Gaussian rows could choose otherwise, for both methods. Seeds draw from the same train images (50,000, or the "
        "9,607 that are 3 or 5) and are scored on the same test images. Student's tests take differences of "
        f"{SEEDS} seeds to be roughly normal."
    )


def _machines(cases: Sequence[Compared]) -> list[str]:
    results = [result for one in cases for result in one.everything]
    return ["## Machines", machines_table(results)] if results else []


def _spread(found: Iterable[float], digits: int) -> str:
    numbers = np.array(list(found), dtype=np.float64)
    if not numbers.size:
        return "-"
    deviation = f" ± {numbers.std(ddof=1):.{digits}f}" if numbers.size > 1 else ""
    return f"{numbers.mean():.{digits}f}{deviation}"
