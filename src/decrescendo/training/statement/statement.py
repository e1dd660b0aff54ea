"""`Statement`: a privacy statement about a trained model, as facts, and as a page for people."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from decrescendo.accounting.budget import Guarantee, Unit, row_of
from decrescendo.accounting.ledger import Ledger
from decrescendo.base import sealed
from decrescendo.base.assumption import assumption_facts
from decrescendo.base.whole_file import write_whole
from decrescendo.plans.agreement import Agreement
from decrescendo.training.statement.declaration import Declaration
from decrescendo.training.statement.mechanism import FOLLOWED, clipping_text, mechanism_facts
from decrescendo.training.statement.not_covered import (
    NOT_COVERED,
    SEVERAL,
    WRONG_IDS,
    audited_lines,
    check_audit,
    gap_lines,
)
from decrescendo.training.statement.promise import (
    accounting_facts,
    or_none,
    promise_facts,
    reading_facts,
    spent_facts,
)
from decrescendo.training.statement.prose import markdown
from decrescendo.training.statement.provenance import Provenance

FORMAT, VERSION = "decrescendo-statement", 1
JSON, MARKDOWN = "statement.json", "statement.md"


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
        """A page for people: the same facts, with only some of the steps."""
        return markdown(self.facts)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``statement.json`` and ``statement.md`` into an existing folder, each completely or not at
        all."""
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
    """Make the privacy statement of a training.

    Fields after Ponomareva et al. 2023, "How to DP-fy ML", section 5.3, and NIST SP 800-226, plus the schedule.

    Args:
        agreed .. versions: as the fields of a `Run`.
        declaration .. spent: as in `Run.statement`; for an adaptive run no epsilon by step is shown: its filter
        spends the whole budget at the start.

    >>> from decrescendo.plans.plan import _EXAMPLE, Plan
    >>> plan = Plan.from_json(_EXAMPLE)
    >>> statement = state(plan, plan.ledger, plan.guarantee, provenance=Provenance(random="secure"))
    >>> print(statement.to_markdown().splitlines()[2])
    **(0.99, 1e-05)-differential privacy for one example**, an upper bound by Pld.
    """
    if audit is not None:
        check_audit(audit, agreed, guarantee)
    unit, row = str(guarantee.unit), str(row_of(guarantee))  # what is protected, and what is clipped
    behind = WRONG_IDS if guarantee.unit is Unit.PERSON else SEVERAL.format(unit=unit)
    planned, clips = agreed.planned, agreed.clip_norms(clip_norm, ledger.steps)
    noise = [release.noise_multiplier for release in ledger for _ in range(release.count)]
    sizes = agreed.sampling.sizes(ledger.steps).tolist()
    clipping = clipping_text(row, provenance) + (FOLLOWED if clip_norm and planned is not None else "")
    facts: dict[str, Any] = {
        "promise": promise_facts(agreed, guarantee),
        "reading": reading_facts(ledger, planned, guarantee),
        "accounting": accounting_facts(ledger, planned, guarantee) | {"gap": agreed.gap(ledger)},
        "mechanism": mechanism_facts(agreed, ledger, row, unit, clipping),
        "schedule": {
            "sha256": agreed.sha256,
            "decided": agreed.decided,
            "steps_planned": agreed.steps,
            "steps_run": ledger.steps,
            "noise_multiplier": noise,
            "clip_norm": [or_none(clip) for clip in clips],
            "noise_std_of_mean": [
                z * c / b if z else 0.0 for z, c, b in zip(agreed.spread(noise), clips, sizes, strict=True)
            ],
        },
        "provenance": None if provenance is None else _facts(provenance),
        "ended": _ended(agreed, ledger, stopped),
        "versions": dict(versions or {}),
        "public_metrics": dict(metrics or {}),
        "spent": [] if planned is None else spent_facts(ledger, guarantee, spent),
        "audit": None if audit is None else dict(audit),
        "declared": (declaration or Declaration()).stated(),
        "not_covered": [
            *(text.format(unit=unit, behind=behind) for text in NOT_COVERED),
            *gap_lines(provenance),
            *([] if audit is None else audited_lines(audit, agreed.sha256)),
        ],
    }
    return Statement(facts)


def _facts(provenance: Provenance) -> dict[str, Any]:
    return asdict(provenance) | {
        "resumed": list(provenance.resumed),
        **assumption_facts(provenance.assumptions),
    }


def _ended(agreed: Agreement, ledger: Ledger, stopped: str) -> str:
    if stopped:
        return stopped
    if ledger.steps == agreed.steps:
        return "after all planned steps"
    return "before the plan did; the guarantee covers the whole plan, for stopping may have depended on releases"
