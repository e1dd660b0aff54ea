"""`Statement`: what may be said of a trained model's privacy, as facts, and as a page for people.

Longer than most files: each fact stands once, beside how it is found, written and read again.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from decrescendo.accounting import GdpClt
from decrescendo.accounting.budget import Guarantee, Unit, row_of
from decrescendo.accounting.epsilon_curve import EpsilonCurve
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.membership import ALARMS, membership
from decrescendo.accounting.overflow import overflow_of
from decrescendo.accounting.truncated import spent_on_the_cap
from decrescendo.base import sealed
from decrescendo.base.assumption import assumption_facts
from decrescendo.base.whole_file import write_whole
from decrescendo.errors import AccountingError, InvalidValue, check_instance, check_real
from decrescendo.plans.agreement import Agreement
from decrescendo.plans.sampling import BatchSchedule, RandomAllocation, Sampling
from decrescendo.training.statement.declaration import Declaration
from decrescendo.training.statement.prose import markdown
from decrescendo.training.statement.provenance import FLOAT64, SECURE, Provenance

FORMAT, VERSION = "decrescendo-statement", 1
JSON, MARKDOWN = "statement.json", "statement.md"

NEIGHBOURS = "two data sets are neighbours if one has one {unit} more than the other (add or remove)"
OF_PEOPLE = (
    "two data sets are neighbours if one has all examples of one person more than the other, at most {examples} (add "
    "or remove); whose each row is was told by an id, and a person with more rows is refused before the first step"
)
FOLLOWED = (
    ". C_t followed the lengths of the gradients: a noisy count of them was released in one vector with the sum, and "
    "C_t is the sensitivity of both together"
)
SEVERAL = "people behind several {unit}s: their epsilon is larger"
WRONG_IDS = (
    "people who are behind several ids, or rows with a wrong one: whose each row is was told, not seen"
)
NOT_COVERED = (
    "whatever is computed from the private data outside of this training (see what the owner declares)",
    "diagnostics, losses and gradient lengths of private rows, wherever they are shown",
    "scores measured on private data; those in this statement are declared public",
    "running time, memory, and errors that depend on the data",
    "replacing one {unit} by another, which is two changes: at most twice epsilon, and (1 + e^epsilon) times delta",
    "{behind}",
    "what can be learned of people whether or not they took part",
    "whoever has access to the machine, the raw data, checkpoints or seeds",
)

AUDITED = (
    "the audit: a training of its own, which spent its certified epsilon again on the rows it used, if they were not "
    "made up, "
)


@dataclass(frozen=True, slots=True)
class Statement:
    """A privacy statement; `Run.statement` makes it, and `Run.save` writes it beside the run.

    Args:
        facts: plain values, for JSON.

    >>> from decrescendo.plans.plan import _EXAMPLE, Plan
    >>> plan = Plan.from_json(_EXAMPLE)
    >>> state(plan, plan.ledger, plan.guarantee, provenance=None).facts["promise"]["epsilon"]
    0.99
    """

    facts: Mapping[str, Any]

    def to_json(self) -> str:
        """The facts with a checksum over them."""
        content = {"format": FORMAT, "version": VERSION, **self.facts}
        return sealed.seal(content, indent=1, spaced=True) + "\n"

    def to_markdown(self) -> str:
        """A page for people; the same facts, with a few of the steps."""
        return markdown(self.facts)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``statement.json`` and ``statement.md`` into a folder that exists, each whole or not at all."""
        for name, text in ((JSON, self.to_json()), (MARKDOWN, self.to_markdown())):
            write_whole(Path(folder) / name, text)


def state(
    agreed: Agreement,
    ledger: Ledger,
    guarantee: Guarantee,
    *,
    provenance: Provenance | None,
    clip_norm: tuple[float, ...] = (),
    stopped: str = "",
    metrics: Mapping[str, float] | None = None,
    versions: Mapping[str, str] | None = None,
    declaration: Declaration | None = None,
    audit: Mapping[str, Any] | None = None,
    spent: int = 0,
) -> Statement:
    """What may be said of a training.

    Fields after Ponomareva et al. 2023, "How to DP-fy ML", section 5.3, and NIST SP 800-226, with what a schedule adds.

    Args:
        agreed .. versions: as the fields of a `Run`.
        declaration .. spent: as in `Run.statement`; of an adaptive run no way of the budget is shown, for its filter's
            whole budget is spent from the beginning.

    >>> from decrescendo.plans.plan import _EXAMPLE, Plan
    >>> plan = Plan.from_json(_EXAMPLE)
    >>> statement = state(plan, plan.ledger, plan.guarantee, provenance=Provenance(random="secure"))
    >>> print(statement.to_markdown().splitlines()[2])
    **(0.99, 1e-05)-differential privacy for one example**, an upper bound by Pld.
    """
    if audit is not None:
        _check_audit(audit, agreed, guarantee)
    unit, row = str(guarantee.unit), str(row_of(guarantee))
    behind = WRONG_IDS if guarantee.unit is Unit.PERSON else SEVERAL.format(unit=unit)
    planned, clips = agreed.planned, agreed.clip_norms(clip_norm, ledger.steps)
    noise = [release.noise_multiplier for release in ledger for _ in range(release.count)]
    sizes = agreed.sampling.sizes(ledger.steps).tolist()
    facts: dict[str, Any] = {
        "promise": _promise(agreed, guarantee),
        "reading": _reading(ledger, planned, guarantee),
        "accounting": _accounting(ledger, planned, guarantee) | {"gap": agreed.gap(ledger)},
        "mechanism": {
            "sampling": f"{_how(agreed.sampling, row)}; batches of any size, the empty ones too, are noised and "
            "counted; " + _cut(agreed.sampling),
            **_drawn(agreed.sampling, ledger.steps),
            "max_batch_size": agreed.sampling.max_batch_size,
            "units": agreed.sampling.dataset_size,
            **({"row": row} if row != unit else {}),
            "clipping": _clipping(row, provenance) + (FOLLOWED if clip_norm and planned is not None else ""),
            "noise": "Gaussian of standard deviation z_t C_t on each coordinate of the sum, which is divided by the "
            "expected batch size"
            if any(noise)
            else "NONE: z_t is 0, and nothing is protected; the sum is divided by the expected batch size",
        },
        "schedule": {
            "sha256": agreed.sha256,
            "decided": agreed.decided,
            "steps_planned": agreed.steps,
            "steps_run": ledger.steps,
            "noise_multiplier": noise,
            "clip_norm": [_plain(clip) for clip in clips],
            "noise_std_of_mean": [
                z * c / b if z else 0.0 for z, c, b in zip(noise, clips, sizes, strict=True)
            ],
        },
        "provenance": None if provenance is None else _facts(provenance),
        "ended": _ended(agreed, ledger, stopped),
        "versions": dict(versions or {}),
        "public_metrics": dict(metrics or {}),
        "spent": [] if planned is None else _spent(ledger, guarantee, spent),
        "audit": None if audit is None else dict(audit),
        "declared": (declaration or Declaration()).stated(),
        "not_covered": [
            *(text.format(unit=unit, behind=behind) for text in NOT_COVERED),
            *_gaps(provenance),
            *([] if audit is None else _audited(audit, agreed.sha256)),
        ],
    }
    return Statement(facts)


def _clipping(row: str, provenance: Provenance | None) -> str:
    how = f"each {row}'s gradient to C_t in the joint L2 norm of all trained parameters"
    if provenance is not None and provenance.gamma:
        how = (
            f"automatic: each {row}'s gradient g counts as C_t g / (|g| + {provenance.gamma:g}), with |g| the joint L2 "
            "norm over all trained parameters"
        )
    return f"{how}; one that is not finite counts as zero"


def _how(sampling: Sampling, row: str) -> str:
    if isinstance(sampling, RandomAllocation):
        return (
            f"random allocation: each {row} takes part once an epoch of {sampling.steps_per_epoch} steps, in one that "
            "a fair and independent draw of its own chooses, not by the place in a shuffled list"
        )
    return f"Poisson: each {row} takes part in each step by an independent coin"


def _cut(sampling: Sampling) -> str:
    cap = sampling.max_batch_size
    if cap is None:
        return "none is cut short"
    return f"of one with more than {cap} units {cap} are kept, by an even choice"


def _drawn(sampling: Sampling, steps: int) -> dict[str, Any]:
    """One rate and size where all batches are drawn alike, else one a step."""
    if isinstance(sampling, BatchSchedule):
        return {
            "sample_rate": sampling.rates(steps).tolist(),
            "expected_batch_size": sampling.sizes(steps).tolist(),
        }
    return {"sample_rate": sampling.sample_rate, "expected_batch_size": sampling.expected_batch_size}


def _facts(provenance: Provenance) -> dict[str, Any]:
    return asdict(provenance) | {
        "resumed": list(provenance.resumed),
        **assumption_facts(provenance.assumptions),
    }


def _promise(agreed: Agreement, guarantee: Guarantee) -> dict[str, Any]:
    unit, several = str(guarantee.unit), guarantee.examples_per_person
    return {
        "epsilon": _plain(guarantee.epsilon),
        "epsilon_lower": _plain(guarantee.epsilon_lower),
        "delta": guarantee.delta,
        "unit": unit,
        **({"examples_per_person": several} if several > 1 else {}),
        "neighbours": OF_PEOPLE.format(examples=several) if several > 1 else NEIGHBOURS.format(unit=unit),
        "kind": guarantee.kind,
        "accountant": guarantee.accountant,
        "asked_epsilon": _plain(agreed.budget.epsilon),
        **({"estimated_by": agreed.guarantee.accountant} if agreed.guarantee.kind == "estimate" else {}),
        "delta_times_units": guarantee.delta * agreed.sampling.dataset_size,
        "output": "all models released on the way and the last one, and whatever is computed from them",
    }


def _plain(value: float | None) -> float | None:
    """For JSON, which has no infinity: ``None`` where there is no such number."""
    return None if value is None or math.isinf(value) else value


def _reading(ledger: Ledger, planned: Ledger | None, guarantee: Guarantee) -> dict[str, Any]:
    covered = planned if planned is None or ledger.steps < planned.steps else ledger
    found = membership(covered, guarantee, ALARMS)
    return {
        "power_at_false_alarms": {
            f"{alarms:g}": power for alarms, power in zip(ALARMS, found.power.tolist(), strict=True)
        },
        "advantage": found.advantage,
        "by": found.by,
    }


def _accounting(ledger: Ledger, planned: Ledger | None, guarantee: Guarantee) -> dict[str, Any]:
    lower = guarantee.epsilon_lower
    width = (
        None
        if lower is None or not guarantee.epsilon or math.isinf(guarantee.epsilon)
        else (guarantee.epsilon - lower) / guarantee.epsilon
    )
    facts: dict[str, Any] = {
        "accountant": guarantee.accountant,
        "certified": "all releases that happened",
        "error_budget": width,
        "assumption": (
            "random allocation with independent draws"
            if ledger.is_allocated
            else "Poisson sampling with independent coins"
        )
        + " and Gaussian noise, both made by the library",
        "clt": None,
    }
    covered = ledger if planned is None or ledger.steps == planned.steps else planned
    if covered.is_cut and math.isfinite(guarantee.epsilon):
        spent = spent_on_the_cap(covered, guarantee)
        facts["cut"] = {"overflow": overflow_of(covered), "delta": spent}
    if planned is None:
        return facts | {"certified": "whatever its filter would have granted"}
    if ledger.steps < planned.steps:
        facts["certified"] = "the whole plan, for the run ended before it"
    try:
        claimed = GdpClt().epsilon(planned.cut(1, None), guarantee.delta).value
    except AccountingError:
        return facts
    if guarantee.examples_per_person > 1:  # it speaks of one example
        return facts
    return facts | {
        "clt": {"epsilon": claimed, "kind": "an estimate, not a bound"} if math.isfinite(claimed) else None
    }


def _ended(agreed: Agreement, ledger: Ledger, stopped: str) -> str:
    if stopped:
        return stopped
    if ledger.steps == agreed.steps:
        return "after all planned steps"
    return (
        "before the plan did; the guarantee covers the whole plan, for stopping may have depended on releases"
    )


def _spent(ledger: Ledger, guarantee: Guarantee, points: int) -> list[dict[str, float]]:
    if not points or not len(ledger) or math.isinf(guarantee.epsilon):
        return []
    if ledger.is_allocated:  # of epochs that were gone through
        ledger = ledger.first(len(ledger) - len(ledger) % int(ledger.steps_per_epoch[0]))
    spent = EpsilonCurve(ledger, guarantee.delta, checkpoints=points, group=guarantee.examples_per_person)
    return [{"step": int(step), "epsilon": spent.at_step(int(step))} for step in spent.steps]


def _check_audit(audit: Mapping[str, Any], agreed: Agreement, guarantee: Guarantee) -> None:
    """An audit of this very plan must be compared with the promise beside it, not with one of its own."""
    check_instance("audit", audit, Mapping)
    # What is found at a larger delta holds at a smaller one too.
    delta = check_real("an audit's delta", audit.get("delta", 0.0), at_least=0)
    same = audit.get("plan_sha256") == agreed.sha256 and delta >= guarantee.delta * (1 - 1e-9)
    if not same or audit.get("caught_by"):  # what is broken is said to be
        return
    found = [audit.get(name) or 0.0 for name in ("lower", "lower_by_curve")]
    lower = max(check_real("an audit's lower end", value, at_least=0) for value in found)
    if lower > guarantee.epsilon:
        raise InvalidValue(
            "an audit that found nothing must be below what its plan promises, got one of at least "
            f"{lower:.6g} beside epsilon={guarantee.epsilon:.6g}. It was compared with another promise: audit again"
        )


def _audited(audit: Mapping[str, Any], sha256: str) -> list[str]:
    store, of = audit.get("store"), audit.get("plan_sha256")
    lines = [AUDITED + (f"reserved in {store}" if store else "in no ledger")]
    if of and of != sha256:
        lines.append(
            "this plan, by the audit: it attacked a training of another plan, and says of this one only that the same "
            "program ran"
        )
    return lines


def _gaps(provenance: Provenance | None) -> list[str]:
    if provenance is None:
        return ["how the training was run: nobody recorded it"]
    gaps: list[str] = []
    if provenance.assumptions:
        gaps.append("what was assumed and is not true (see how it was run): then the promise may not hold")
    if any(assumption.of_published for assumption in provenance.assumptions):
        gaps.append(
            "buffers and frozen parameters, which are published as they are, without noise (see how it was run)"
        )
    if provenance.random != SECURE:
        gaps.append(
            "whoever knows or guesses the seed, which fixes the noise. For models that are published train with "
            "Secure()"
        )
    if not provenance.account:
        gaps.append("other trainings on the same data: this one is in no ledger of the data set (Store)")
    if provenance.accumulate != FLOAT64:
        gaps.append(
            "the rounding of float32 sums of clipped gradients, some 2 n 2^-24 C_t for n like ones "
            "(docs/explanation/rounding.md)"
        )
    return gaps
