"""Writes and reads the file of a plan; its version depends on what the plan uses."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from decrescendo.accounting.budget import Budget, Guarantee
from decrescendo.accounting.truncated import Truncated
from decrescendo.base import sealed
from decrescendo.base.whole_file import write_whole
from decrescendo.errors import DecrescendoError, FileRefused, InvalidValue, check_array
from decrescendo.plans.cyclic_sampling import CyclicPoissonSampling
from decrescendo.plans.sampling import BatchSchedule, PoissonSampling, RandomAllocation, Sampling, planned
from decrescendo.plans.sampling_refusals import check_person
from decrescendo.plans.schedule import Schedule
from decrescendo.plans.strategy import Strategy
from decrescendo.plans.stratified_sampling import StratifiedPoissonSampling

if TYPE_CHECKING:
    from decrescendo.plans.plan import Plan

FORMAT, VERSION = "decrescendo-plan", 1
# Expected batch sizes, one a step.
MOVING_VERSION = 3
# Batches truncated to a largest size, whether or not the expected one moves.
CUT_VERSION = 4
# People with several examples, whether or not the expected batch size moves.
PERSON_VERSION = 5
# Each record once an epoch, whether or not batches are truncated.
ALLOCATED_VERSION = 6
# Noise that is correlated between steps, whether or not the expected batch size moves.
BANDED_VERSION = 7
# A plan without privacy: no budget and no guarantee that a reader could take for one.
BARE_VERSION = 2
# Strata with rates of their own.
STRATIFIED_VERSION = 8
_KEYS = {"format", "version", "budget", "sampling", "schedule", "guarantee"}
_BARE_KEYS = {"format", "version", "privacy", "sampling", "clip_norm"}


def text_of(plan: "Plan") -> str:
    """The plan as text; `plan_of` gives an equal plan, bit for bit."""
    return sealed.seal(_body(plan)) + "\n"


def _body(plan: "Plan") -> dict[str, Any]:
    """What the file says, but for its checksum."""
    if not plan.private:
        return _bare_body(plan)
    guarantee, budget = plan.guarantee, plan.budget
    each = budget.examples_per_person
    several = {"examples_per_person": each} if each > 1 else {}
    body: dict[str, Any] = {
        "format": FORMAT,
        "version": PERSON_VERSION if several else _version(plan.sampling),
        "budget": {
            "epsilon": budget.epsilon, "delta": budget.delta, "unit": budget.unit.value, **several,
        },
        "sampling": _written(plan.sampling),
        "schedule": {
            "noise_multiplier": plan.noise_multiplier.tolist(),
            "clip_norm": plan.clip_norm.tolist(),
        },
        "guarantee": {
            "epsilon": guarantee.epsilon,
            "delta": guarantee.delta,
            "unit": guarantee.unit.value,
            "accountant": guarantee.accountant,
            "kind": guarantee.kind,
            "epsilon_lower": guarantee.epsilon_lower,
            **several,
        },
    }  # fmt: skip
    if plan.correlation is not None:
        body["strategy"] = plan.strategy.tolist()
    return body


def _bare_body(plan: "Plan") -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": BARE_VERSION,
        "privacy": "none",
        "sampling": _written(plan.sampling),
        "clip_norm": [clip if math.isfinite(clip) else None for clip in plan.clip_norm.tolist()],
    }


# What values of another kind than a plan's raise where they are read.
_WRONG = (DecrescendoError, TypeError, ValueError, AttributeError, ArithmeticError, LookupError)


def plan_of(form: "type[Plan]", text: str, source: str) -> "Plan":
    """A plan from the text of `text_of`; ``source`` names it in errors."""
    keys = dict.fromkeys(range(VERSION, STRATIFIED_VERSION + 1), _KEYS)
    keys |= {BARE_VERSION: _BARE_KEYS, BANDED_VERSION: _KEYS | {"strategy"}}
    body = sealed.opened(text, source, FORMAT, *keys, keys=keys)
    try:
        plan = (_bare_plan if body["version"] == BARE_VERSION else _noisy_plan)(form, body)
        own = _body(plan)
        if odd := sorted(key for key in own.keys() | body.keys() if own.get(key) != body.get(key)):
            raise InvalidValue(f"it must be as such a plan is written, got another {' and '.join(odd)}")
    except _WRONG as error:
        raise FileRefused(f"{source} holds a value that no plan has: {error}") from None
    return plan


def _noisy_plan(form: "type[Plan]", body: Mapping[str, Any]) -> "Plan":
    budget, sampling = Budget(**body["budget"]), _read(body["sampling"])
    check_person(budget.examples_per_person, sampling)
    correlation = Strategy(body["strategy"]) if body["version"] == BANDED_VERSION else None
    return form(budget, sampling, Schedule(**body["schedule"]), Guarantee(**body["guarantee"]), correlation)


def _bare_plan(form: "type[Plan]", body: Mapping[str, Any]) -> "Plan":
    free = [clip is None for clip in body["clip_norm"]]
    clips = check_array("clip_norm", [1.0 if clip is None else clip for clip in body["clip_norm"]], above=0)
    return form(*bare_parts(_read(body["sampling"]), np.where(free, math.inf, clips)))


def _written(sampling: Sampling) -> dict[str, Any]:
    cap = sampling.max_batch_size
    cut = {} if cap is None else {"max_batch_size": cap}
    if isinstance(sampling, StratifiedPoissonSampling):
        return {"strata": {name: list(one) for name, one in sampling.strata.items()}}
    if isinstance(sampling, RandomAllocation):
        return {
            "dataset_size": sampling.dataset_size, "steps_per_epoch": sampling.steps_per_epoch, **cut,
        }  # fmt: skip
    size = sampling.expected_batch_size
    sizes = size.tolist() if isinstance(size, np.ndarray) else size
    turns = {"bands": sampling.bands} if isinstance(sampling, CyclicPoissonSampling) else {}
    return {"dataset_size": sampling.dataset_size, "expected_batch_size": sizes, **turns, **cut}


def _read(section: Mapping[str, Any]) -> Sampling:
    if "strata" in section:
        return StratifiedPoissonSampling({name: tuple(one) for name, one in section["strata"].items()})
    moving = isinstance(section.get("expected_batch_size"), list)
    form = RandomAllocation if "steps_per_epoch" in section else BatchSchedule if moving else PoissonSampling
    return CyclicPoissonSampling(**section) if "bands" in section else form(**section)


def _version(sampling: Sampling) -> int:
    if isinstance(sampling, StratifiedPoissonSampling):
        return STRATIFIED_VERSION
    if isinstance(sampling, CyclicPoissonSampling):
        return BANDED_VERSION
    if isinstance(sampling, RandomAllocation):
        return ALLOCATED_VERSION
    if sampling.max_batch_size is not None:
        return CUT_VERSION
    return MOVING_VERSION if isinstance(sampling, BatchSchedule) else VERSION


def bare_parts(
    sampling: Sampling, clip_norm: Float[np.ndarray, " steps"]
) -> tuple[Budget, Sampling, Schedule, Guarantee]:
    """The parts of a plan without noise: no limit, and no guarantee."""
    schedule = Schedule(np.zeros(len(clip_norm)), clip_norm)
    # A delta at which a record that is exposed with probability sample_rate has no finite epsilon.
    rates = sampling.rates(schedule.steps)
    budget = Budget.unlimited(min(1e-6, float(rates.max()) / 2))
    ledger = planned(sampling, schedule.noise_multiplier)
    return (budget, sampling, schedule, Truncated().certify(ledger, budget))


def write_plan(path: str | os.PathLike[str], text: str) -> None:
    """Write a plan file, all or nothing."""
    try:
        write_whole(Path(path), text)
    except (OSError, ValueError) as error:  # the latter: a name that no file can have
        raise InvalidValue(f"path must be a file that can be written, got path={str(path)!r} ({error})") from None


def text_in(path: str | os.PathLike[str]) -> str:
    """The text of a plan file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise FileRefused(f"{path} must be a plan file, got bytes that are not text") from None
    except (OSError, ValueError) as error:
        raise FileRefused(f"{path} must be a readable plan file, got: {error}") from None
