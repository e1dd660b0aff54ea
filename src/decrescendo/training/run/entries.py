"""Writes and reads the entries of `run.json`, with type checks."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from decrescendo.accounting.budget import Guarantee, check_unit, guarantee_facts
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.release import Release
from decrescendo.base import sealed
from decrescendo.base.assumptions import assumptions_in
from decrescendo.base.whole_file import read_whole
from decrescendo.errors import (
    FileRefused,
    check_array,
)
from decrescendo.training.run.history import History
from decrescendo.training.statement import Provenance
from decrescendo.training.steering.reading import Reading, as_row, read, telemetry_of

if TYPE_CHECKING:
    from decrescendo.training.run.record import Run

FORMAT, VERSION = "decrescendo-run", 1
# The version of runs with adaptive noise: an adaptive plan, and the key "stopped".
ADAPTIVE_VERSION = 2
# What reading entries of a file may raise.
UNREADABLE = (KeyError, TypeError, AttributeError, ValueError, ArithmeticError, RuntimeError)
RUN, PLAN, ADAPTIVE_PLAN, WEIGHTS, DIAGNOSTICS = (
    "run.json",
    "plan.json",
    "adaptive_plan.json",
    "weights.safetensors",
    "diagnostics-private.json",
)
KEYS = {
    "format", "version", "plan_sha256", "weights_sha256", "ledger", "guarantee", "metrics", "seconds", "versions",
}  # fmt: skip
ADAPTIVE_KEYS = KEYS | {"stopped"}
# Optional keys: absent in old files; if clip norms were adaptive; if telemetry was on.
PROVENANCE, CLIP_NORM, TELEMETRY = "provenance", "clip_norm", "telemetry"


def sha256_of(content: bytes) -> str:
    """The checksum under which `RUN` lists another file of the folder."""
    return hashlib.sha256(content).hexdigest()


def run_facts(run: "Run", staging: Path) -> str:
    """The text of the file `RUN`; plan and weights must be in ``staging`` already."""
    adaptive = run.plan.planned is None
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": ADAPTIVE_VERSION if adaptive else VERSION,
        "plan_sha256": sha256_of((staging / f"{run.plan.kind}.json").read_bytes()),
        "weights_sha256": sha256_of((staging / WEIGHTS).read_bytes()),
        "ledger": {
            "sample_rate": run.ledger.sample_rate.tolist(),
            "noise_multiplier": run.ledger.noise_multiplier.tolist(),
            "count": run.ledger.count.tolist(),
        },
        "guarantee": guarantee_facts(run.guarantee),
        "metrics": {name: float(value) for name, value in run.metrics.items()},
        "seconds": run.seconds,
        "versions": dict(run.versions),
    }
    if run.provenance is not None:
        written = [assumption.written() for assumption in run.provenance.assumptions]
        content[PROVENANCE] = asdict(run.provenance) | {"assumptions": written}
    if run.telemetry:
        rows = [as_row(reading) for reading in run.telemetry]
        content[TELEMETRY] = {"of": asdict(run.telemetry[0].telemetry), "rows": rows}
    if adaptive or run.clip_norm:
        content[CLIP_NORM] = list(run.clip_norm)
    if adaptive:
        content["stopped"] = run.stopped
    return sealed.seal(content, indent=1, finite=False)


def read_guarantee(found: Mapping[str, Any]) -> Guarantee:
    facts: dict[str, Any] = dict(found)
    if facts["epsilon"] is None:
        facts |= {"epsilon": math.inf, "epsilon_lower": math.inf}
    facts["unit"] = check_unit(facts["unit"])
    return Guarantee(**facts)


def checked_content(raw: bytes, source: object) -> dict[str, Any]:
    keys = {VERSION: KEYS, ADAPTIVE_VERSION: ADAPTIVE_KEYS}
    return sealed.opened(
        raw,
        source,
        FORMAT,
        VERSION,
        ADAPTIVE_VERSION,
        keys=keys,
        free={PROVENANCE, CLIP_NORM, TELEMETRY},
    )


def read_ledger(columns: Mapping[str, Any]) -> Ledger:
    if set(columns) != {"sample_rate", "noise_multiplier", "count"}:
        raise FileRefused(f"a ledger must have three columns, got {', '.join(sorted(columns))}")
    rates, counts = columns["sample_rate"], columns["count"]
    noise = check_array("noise_multiplier", columns["noise_multiplier"], at_least=0)
    if noise.size and set(counts) == {1} and len(set(rates)) == 1 and len(rates) == len(counts) == noise.size:
        return Ledger.of(noise, rates[0])
    rows = zip(rates, noise.tolist(), counts, strict=True)
    return Ledger(Release(rate, multiplier, count) for rate, multiplier, count in rows)


def read_provenance(facts: Mapping[str, Any]) -> Provenance:
    """The recorded provenance; files older than `Provenance.assumptions` have none, and then row independence
    is unknown."""
    lists: dict[str, Any] = {"resumed": tuple(facts["resumed"]), "assumptions": assumptions_in(facts)}
    return Provenance(**dict(facts) | lists)


def read_telemetry(found: Mapping[str, Any] | None) -> tuple[Reading, ...]:
    """The readings of a run in the order of steps; empty if it had no telemetry."""
    return () if found is None else tuple(read(telemetry_of(found["of"]), found["rows"]))


def check_telemetry(run: "Run") -> None:
    """Refuse readings of other steps than the run's, or with another C_t or z_t."""
    if not run.telemetry:
        return
    steps = run.ledger.steps
    said = [(reading.step, reading.clip_norm, reading.noise_multiplier) for reading in run.telemetry]
    clips = run.plan.clip_norms(run.clip_norm, steps)
    noise = [release.noise_multiplier for release in run.ledger for _ in range(release.count)]
    if said != [*zip(range(1, steps + 1), clips, noise, strict=True)]:
        raise FileRefused(f"{RUN} must have the telemetry of its own {steps} steps, got other steps, C_t or z_t")


def read_texts(values: Any) -> dict[str, str]:
    if not isinstance(values, dict) or not all(
        isinstance(text, str) for text in cast("dict[str, Any]", values).values()
    ):
        raise TypeError("something else than texts where texts must be")
    return cast("dict[str, str]", values)


def read_diagnostics(path: Path) -> History | None:
    return History.from_json(read_whole(path), source=str(path)) if path.exists() else None
