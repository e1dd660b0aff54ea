"""Where Hong et al.'s claims hold here and where not, in sentences made from the numbers."""

from collections.abc import Sequence

import numpy as np

from decrescendo.report import Paired
from decrescendo_papers.experiments.alike import above
from decrescendo_papers.experiments.comparisons import LEVEL, decide, holm, p_in_words
from decrescendo_papers.experiments.estimate import Exponential, Influence, fit_exponential
from decrescendo_papers.experiments.hong import CASES, SEEDS, SHOWN, STAND_INS, STEPS, influence_of
from decrescendo_papers.experiments.pages.archive import Sources
from decrescendo_papers.experiments.pages.hong_cases import (
    ACCURACY,
    DIGITS,
    SCALE_NAMES,
    UNITS,
    Compared,
    corrected_p,
    inside,
    refuted,
    scaled,
    sized,
    trend,
)
from decrescendo_papers.experiments.pages.hong_figures import NAMES

KINDS = {metric: "test accuracy" if metric == ACCURACY else "training loss" for metric in UNITS}
WORDS = {metric: "points of test accuracy" if metric == ACCURACY else "nats of training loss" for metric in UNITS}


def verdict(sources: Sources, cases: Sequence[Compared]) -> str:
    """All sentences, as a list."""
    lines = [_shape(sources)]
    if cases:
        lines += [_winner(cases, metric) for metric in UNITS]
        lines += [_shape_alone(cases, metric) for metric in UNITS]
        lines += _trends(sources, cases)
    if len(cases) < len(CASES):
        lines.append(f"**Unfinished**: {len(cases)} of {len(CASES)} cases have runs of both methods.")
    elif (
        few := min(one.gain(metric, steps).seeds for one in cases for metric in UNITS for steps in one.steps)
    ) < SEEDS:
        lines.append(f"**Unfinished**: {few} of {SEEDS} seeds in some comparisons.")
    return "\n".join(f"- {line}" for line in lines if line)


def _shape(sources: Sources) -> str:
    studies = [case.study(steps) for case in CASES for steps in STEPS]
    found = [one for study in studies if (one := influence_of(study, sources.influence, SEEDS)) is not None]
    if not found:
        return ""
    fits = [fit_exponential(one) for one in found]
    rising = sum(map(rises, fits))
    later = sum(map(later_matters_more, found))
    below = sum(map(starts_below_zero, found))
    seeds = sorted({one.seeds for one in found})
    pairs = list(zip(found, fits, strict=True))
    held = sum(bool(inside(one, fit).all()) for one, fit in pairs)
    tested = [p for one, fit in pairs if (p := refuted(one, fit)) is not None]
    off = sum(decide(-1.0, p) == "fails" for p in holm(tested))
    negative = (
        f" But the first step's influence is below zero, with its whole interval, in {below}: more noise there "
        "*lowers* the final training loss, which no positive exponential can say, and no bound of the paper either."
        if below
        else ""
    )
    return (
        f"**Influence is about an exponential of t**: {how_far(off, len(tested))}. Some measured step is off the "
        f"fitted exponential in {off} of {len(tested)} cases and numbers of steps (p < {LEVEL} after a "
        f"correction for the steps and Holm's; {seeds[0]} seeds see large distances only). The last step matters more "
        f"than the first in {later} of {len(found)} cases and numbers of steps, and the fitted growth is above one, "
        f"with its whole interval, in {rising}. The exponential lies within the band of each measured step by itself "
        f"in {held} of {len(found)}.{negative}"
    )


def rises(fit: Exponential) -> bool:
    """Whether the fitted growth is above one with its whole interval."""
    return above(fit.interval[0] * fit.steps, 0.0, size=1.0)


def later_matters_more(found: Influence) -> bool:
    """Whether the last step's influence is above the first's."""
    return above(float(found.mean[-1]), float(found.mean[0]))


def starts_below_zero(found: Influence) -> bool:
    """Whether the first step's influence is below zero with its whole interval."""
    return above(0.0, float(found.interval()[1][0]), size=float(found.error[0]))


def how_far(off: int, cases: int) -> str:
    """In how many cases a shape is refuted, in words."""
    if not off:
        return "not refuted here"
    return "refuted everywhere here" if off == cases else "refuted in some cases"


def _winner(cases: Sequence[Compared], metric: str) -> str:
    pairs = [one.gain(metric) for one in cases]
    better, worse = decided_cases([one.case.key for one in cases], pairs)
    holds = standing(len(better), len(worse), len(cases))
    return (
        f"**Exponential noise beats uniform noise** ({KINDS[metric]}, each with the steps it chose): {holds}. "
        f"Significantly better in {len(better)} of {len(cases)} cases{_listed(better)}, significantly worse in "
        f"{len(worse)}{_listed(worse)}, undecided in {len(cases) - len(better) - len(worse)}."
    )


def standing(better: int, worse: int, cases: int) -> str:
    """What becomes of a claim for all cases."""
    if better == cases:
        return "holds everywhere here"
    if better:
        return "holds in some cases" + (" and is reversed in others" if worse else "")
    return "is reversed here" if worse else "cannot be seen here"


def _shape_alone(cases: Sequence[Compared], metric: str) -> str:
    places = [(one, steps) for one in cases for steps in one.steps]
    keys = [f"{one.case.key} at T = {steps}" for one, steps in places]
    better, worse = decided_cases(keys, [one.gain(metric, steps) for one, steps in places])
    return (
        f"**The shape alone** ({KINDS[metric]}, both with the same number of steps): significantly better in "
        f"{len(better)} of {len(places)} comparisons{_listed(better)}, significantly worse in {len(worse)}"
        f"{_listed(worse)}."
    )


def decided_cases(keys: Sequence[str], pairs: Sequence[Paired]) -> tuple[list[str], list[str]]:
    """The keys where the exponential is significantly better, and worse."""
    found = {key: decide(pair.mean, p) for key, pair, p in zip(keys, pairs, corrected_p(pairs), strict=True)}
    better, worse = ([key for key, outcome in found.items() if outcome == what] for what in ("holds", "fails"))
    return better, worse


def _listed(keys: Sequence[str]) -> str:
    return f" ({', '.join(keys)})" if keys else ""


def _trends(sources: Sources, cases: Sequence[Compared]) -> list[str]:
    """Three claims on how the gain moves, each for both metrics, corrected together."""
    groups = {
        f"**Over N, {NAMES[task]}**": (of, [float(np.log2(one.case.size)) for one in of])
        for task in STAND_INS
        if len(of := sized(cases, task)) > 1
    }
    if len(long := scaled(cases)) > 1:
        groups["**More curved losses**"] = (
            long,
            [float(np.log2(float(SCALE_NAMES[one.case.model]))) for one in long],
        )
    found = [(title, metric, trend(of, at, metric)) for title, (of, at) in groups.items() for metric in UNITS]
    corrected = corrected_p([pair for _, _, pair in found])
    lines: list[str] = []
    for title in groups:
        words = "; ".join(
            moved(metric, pair, p) for (name, metric, pair), p in zip(found, corrected, strict=True) if name == title
        )
        what = "each doubling of the data's length" if "curved" in title else "each doubling of N"
        claim = (
            "The paper's claim asks for gains that grow with curvature. " + _growths(sources, long)
            if "curved" in title
            else "Section 5 says that exponential noise outperforms as N grows; the introduction, that it gains "
            "most where N is small."
        )
        lines.append(f"{title}: for {what} the gain of the exponential {words}. {claim}")
    return lines


def moved(metric: str, pair: Paired, p: float | None) -> str:
    """How a gain moves, in words."""
    size = f"{pair.mean:+.{DIGITS[metric]}f} ± {pair.error:.{DIGITS[metric]}f} {WORDS[metric]}"
    outcome = decide(pair.mean, p)
    if outcome == "undecided":
        return f"does not move significantly in {KINDS[metric]} ({size}, p after Holm {p_in_words(p)})"
    way = "grows" if outcome == "holds" else "shrinks"
    return f"{way} in {KINDS[metric]} ({size}, p after Holm {p_in_words(p)})"


def _growths(sources: Sources, cases: Sequence[Compared]) -> str:
    words: list[str] = []
    for one in cases:
        found = influence_of(one.case.study(), sources.influence, SEEDS)
        if found is not None:
            fit = fit_exponential(found)
            low, high = np.exp(fit.interval)
            words.append(f"{np.exp(fit.rate):.3f} [{low:.3f}, {high:.3f}] at most {SCALE_NAMES[one.case.model]} long")
    return f"Growth of the influence a step (3 and 5, T = {SHOWN}): {', '.join(words)}." if words else ""
