"""What the page shows of a plan, a run or a ledger: plain values for JSON."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decrescendo.accounting import EpsilonCurve, Guarantee, Ledger, Unit, rounded
from decrescendo.accounting.budget import WORDS, row_of
from decrescendo.accounting.membership import ALARMS, membership, percent
from decrescendo.accounting.table import KNOWN
from decrescendo.errors import InvalidValue
from decrescendo.plans import Plan, StratifiedPoissonSampling
from decrescendo.report.judge import verdicts
from decrescendo.studio.settings import Settings
from decrescendo.training.statement import state
from decrescendo.training.steering.reading import Reading, smoothed

POINTS = 300  # of a curve that is drawn
DRAWN_ALARMS = np.concatenate([[0.0], np.logspace(-4, 0, 49)])
DRAFT = """> **A draft: nothing was trained yet.** This is what may be stated once a training has run this whole plan.
> `Run.save` then writes the statement of the run itself, with what the library saw of it.

"""


@dataclass(frozen=True, slots=True)
class Subject:
    """Something that the page shows.

    Args:
        title: in a few words.
        ledger: what is or was released.
        delta: at which epsilon is computed.
        promise: what is guaranteed of it, in words; empty if nothing was said.
        plan: where there is one.
        clip_norm: C_t, where known.
        settings: the controls' that made it, if they did.
        notes: lines to show with it.
        group: of how many records one person has, at most.
        guarantee: what is promised of it, where something is.
        adaptive: whether its noise was decided during the run, so that only the guarantee holds.
        telemetry: what a run released beside the gradients, by step.
    """

    title: str
    ledger: Ledger
    delta: float
    promise: str = ""
    plan: Plan | None = None
    clip_norm: Sequence[float] = ()
    settings: Settings | None = None
    notes: tuple[str, ...] = field(default=())
    group: int = 1
    guarantee: Guarantee | None = None
    adaptive: bool = False
    telemetry: Sequence[Reading] = ()

    @classmethod
    def of(cls, title: str, plan: Plan, settings: Settings | None = None, notes: tuple[str, ...] = ()) -> "Subject":
        """A plan."""
        return cls(
            title, plan.ledger, plan.budget.delta, str(plan.guarantee), plan, plan.clip_norm.tolist(), settings, notes,
            plan.budget.examples_per_person, plan.guarantee,
        )  # fmt: skip


def outline(subject: Subject) -> dict[str, Any]:
    """What is known at once: the curves, and the figures that need no accountant."""
    ledger, plan = subject.ledger, subject.plan
    noise = np.repeat(ledger.noise_multiplier, ledger.count) if ledger.steps <= 10**7 else ledger.noise_multiplier
    clip = np.asarray(subject.clip_norm, dtype=np.float64)
    at = _shown(noise, clip)
    curves = {"z": noise[at].tolist()}
    rows = [["Steps", f"{noise.size:,}"], ["Noise multiplier z", _span(noise)]]
    if clip.size == noise.size and np.isfinite(clip).all():
        added, what = noise * clip, "z C"
        if plan is not None and plan.correlation is not None:  # its noise is larger than z C
            added, what = clip * plan.correlation.noise_std()[: clip.size], "of a step"
        curves |= {"c": clip[at].tolist(), "zc": added[at].tolist()}
        rows += [["Clip norm C", _span(clip)], [f"Noise on the sum {what}", _span(added)]]
        if plan is not None:
            over = "z C / B" if what == "z C" else what
            rows.append([f"Noise on the mean {over}", _span(added / plan.batch_size)])
    elif clip.size and np.isfinite(clip).all():  # of a run that ended early
        rows.append([f"Clip norm C of {clip.size:,} steps", _span(clip)])
    if plan is not None:
        rows += _costs(plan)
        if plan.sampling.max_batch_size is not None:
            rows.append(["Batches are truncated to", f"{plan.sampling.max_batch_size:,} {plan.budget.unit}s at most"])
        if plan.batch_size.min() < plan.batch_size.max():
            curves["b"] = plan.batch_size[at].tolist()
    told, shown = _told(subject.telemetry)
    rows += told
    return {
        "title": subject.title,
        "promise": subject.promise,
        "notes": list(subject.notes),
        "t": (at + 1).tolist(),
        "curves": curves,
        "telemetry": shown,
        "rows": rows,
        "files": _names(subject),
    }


def _told(readings: Sequence[Reading]) -> tuple[list[list[str]], dict[str, list[list[float]]]]:
    """Released numbers at the end, and curves of them: averages over 20 steps, each as (steps, values)."""
    if not readings:
        return [], {}
    ends = np.unique(np.linspace(1, len(readings), min(len(readings), POINTS)).round().astype(int)).tolist()
    rows, curves = list[list[str]](), dict[str, list[list[float]]]()
    for name in readings[-1].shown():
        found = [estimate for end in ends if (estimate := smoothed(readings[:end], name)) is not None]
        rows.append([f"Released {name.replace('_', ' ')}", str(found[-1])])
        curves[name] = [[float(readings[end - 1].step) for end in ends], [one.value for one in found]]
    return rows, curves


def assess(subject: Subject, part: str) -> dict[str, Any]:
    """What accountants say, a second or two of work a part: ``spent``, ``attack`` or ``claims``."""
    parts = {"spent": _spent, "attack": _attack, "claims": _claims}
    if part not in parts:
        raise InvalidValue(f"part must be one of {', '.join(parts)}, got {part!r}")
    return {part: parts[part](subject)}


def _spent(subject: Subject) -> list[list[float]] | None:
    if subject.adaptive:  # accountants bound noise that was fixed before: only the guarantee holds
        return None
    spent = EpsilonCurve(subject.ledger, subject.delta, group=subject.group)
    epsilon = spent.curve()
    return [[0, *spent.steps.tolist()], [0.0, *epsilon.tolist()]] if np.isfinite(epsilon).all() else None


def _attack(subject: Subject) -> dict[str, Any]:
    ledger = None if subject.adaptive else subject.ledger
    alarms = np.concatenate([DRAWN_ALARMS, ALARMS])
    found = membership(ledger, subject.guarantee, alarms, group=subject.group)
    power = found.power.tolist()
    shown = [
        [f"{100 * alarm:g} %", f"{percent(share)} %"]
        for alarm, share in zip(ALARMS, power[DRAWN_ALARMS.size :], strict=True)
    ]
    return {
        "alarms": DRAWN_ALARMS.tolist(),
        "power": power[: DRAWN_ALARMS.size],
        "shown": shown,
        "by": found.by,
    }


def _claims(subject: Subject) -> list[list[str]]:
    claims: list[list[str]] = []
    if subject.adaptive:
        return [["all", "–", "do not apply: the noise was decided during the run"]]
    for verdict in verdicts(subject.ledger, subject.delta, group=subject.group):
        name = KNOWN[verdict.accountant].shown
        if verdict.bound is None:
            claims.append([name, "–", f"does not apply: {verdict.reason}"])
            continue
        words = WORDS[verdict.bound.kind]
        if verdict.lower is not None and math.isfinite(verdict.lower):
            words += f"; true value at least {rounded(verdict.lower, 'down', 4)}"
        claims.append([name, verdict.bound.shown(4), words])
    return claims


def text_of(subject: Subject, name: str) -> str:
    """The file called ``name``, one of those that the outline names."""
    from decrescendo.training.tasks.script import script

    if name not in _names(subject) or subject.plan is None:
        raise InvalidValue(f"{name} must be a file of what is shown, got {subject.title}")
    plan = subject.plan
    if name == "plan.json":
        return plan.to_json()
    if name == "statement.md":
        return DRAFT + state(plan, plan.ledger, plan.guarantee, provenance=None).to_markdown()
    code = 'dc.Plan.load("plan.json")' if subject.settings is None else subject.settings.code()
    return script(code, rows=plan.sampling.dataset_size, run="run")


def _names(subject: Subject) -> list[str]:
    if subject.plan is None:
        return []
    trains = (
        row_of(subject.plan.budget) is Unit.EXAMPLE and subject.group == 1
    )  # over clients one trains with `decrescendo.federated`
    return ["plan.json", *(["train.py"] if trains else []), "statement.md"]


def _shown(*curves: Any) -> Any:
    """Indices of at most about ``POINTS`` steps, the highest and lowest of each curve among them."""
    size = curves[0].size
    extremes = [end for curve in curves if curve.size == size for end in (curve.argmin(), curve.argmax())]
    return np.unique(np.r_[np.linspace(0, size - 1, min(size, POINTS)).round().astype(int), extremes])


def _span(values: Any) -> str:
    first, last, low, high = values[0], values[-1], values.min(), values.max()
    if low == high:
        return f"{first:.4g}"
    return f"{first:.4g} → {last:.4g}" + ("" if {first, last} == {low, high} else f" ({low:.4g} to {high:.4g})")


def _costs(plan: Plan) -> list[list[str]]:
    """What the plan costs, in examples: computed, and hidden behind."""
    unit, examples = row_of(plan.budget), plan.sampling.dataset_size
    batch = plan.batch_size
    computed, chance = float(batch.sum()), 100 * batch / examples
    each = f": each {unit} {computed / examples:.3g} times"
    if isinstance(plan.sampling, StratifiedPoissonSampling):
        chance, each = 100 * np.array([*plan.sampling.stratum_rates.values()]), ""
    return [
        ["Chance to be in a batch", f"{_span(chance)} % a step" + ("" if each else ", by stratum")],
        [f"Cost in {unit}s", f"{computed:,.0f} gradients expected{each}"],
        [
            "Noise of a step", f"as strong, in each coordinate, as {_span(plan.noise_std / plan.clip_norm)} whole "
            f"clipped {unit}s beside {_span(batch)} expected",
        ],
    ]  # fmt: skip
