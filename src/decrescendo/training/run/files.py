"""The folder of a run: written whole or not at all, and read with every part checked against the others."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from decrescendo.accounting.budget import Guarantee, check_unit
from decrescendo.accounting.ledger import Ledger, Release
from decrescendo.base import sealed
from decrescendo.errors import AccountingError, DecrescendoError, FileRefused, InvalidValue, check_array
from decrescendo.plans.plan import Plan
from decrescendo.plans.terms import Terms
from decrescendo.training.run.history import History
from decrescendo.training.run.weights import separate
from decrescendo.training.statement import UNRECORDED, Conduct

if TYPE_CHECKING:
    from decrescendo.training.run.record import Run

FORMAT, VERSION = "decrescendo-run", 1
# A run whose noise was decided on the way has terms in place of a plan, and says more of itself.
ADAPTIVE_VERSION = 2
RUN, PLAN, TERMS, WEIGHTS, DIAGNOSTICS = (
    "run.json",
    "plan.json",
    "terms.json",
    "weights.safetensors",
    "diagnostics-private.json",
)


def write(run: "Run", target: Path, *, include_diagnostics: bool = False) -> None:
    """See `Run.save`."""
    check_free(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Everything goes into a hidden sibling that takes the folder's name at the end: a crash leaves no
    # half run.
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        if isinstance(run.plan, Terms):
            (staging / TERMS).write_text(run.plan.to_json(), encoding="utf-8")
        else:
            run.plan.save(staging / PLAN)
        (staging / WEIGHTS).write_bytes(save_tensors(separate(run.weights)))
        if include_diagnostics and run.diagnostics is not None:
            (staging / DIAGNOSTICS).write_text(json.dumps(asdict(run.diagnostics)), encoding="utf-8")
        run.statement().save(staging)
        (staging / RUN).write_text(_to_json(run, staging), encoding="utf-8")
        staging.chmod(0o755)
        os.replace(staging, target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _to_json(run: "Run", staging: Path) -> str:
    adaptive = isinstance(run.plan, Terms)
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": ADAPTIVE_VERSION if adaptive else VERSION,
        "plan_sha256": _sha256((staging / (TERMS if adaptive else PLAN)).read_bytes()),
        "weights_sha256": _sha256((staging / WEIGHTS).read_bytes()),
        "ledger": {
            "sample_rate": run.ledger.sample_rate.tolist(),
            "noise_multiplier": run.ledger.noise_multiplier.tolist(),
            "count": run.ledger.count.tolist(),
        },
        "guarantee": {**asdict(run.guarantee), "unit": str(run.guarantee.unit)},
        "metrics": {name: float(value) for name, value in run.metrics.items()},
        "seconds": run.seconds,
        "versions": dict(run.versions),
    }
    if run.conduct is not None:
        content[CONDUCT] = asdict(run.conduct)
    if adaptive:
        content |= {"clip_norm": list(run.clip_norm), "stopped": run.stopped}
    return sealed.seal(content, indent=1, finite=False)


def read(source: Path, make: "Callable[..., Run]") -> "Run":
    """See `Run.load`; ``make`` is the class."""
    content = _checked_content(source / RUN)
    agreed = TERMS if content["version"] == ADAPTIVE_VERSION else PLAN
    for name, key in ((agreed, "plan_sha256"), (WEIGHTS, "weights_sha256")):
        if _sha256(_read(source / name)) != content[key]:
            raise FileRefused(
                f"{source / name} must be the file that {RUN} was written with, got other bytes"
            )
    try:
        ledger = _ledger(content["ledger"])
        facts: dict[str, Any] = dict(content["guarantee"])
        facts["unit"] = check_unit(facts["unit"])
        run = make(
            plan=_agreed(source / agreed),
            ledger=ledger,
            guarantee=Guarantee(**facts),
            weights=load_tensors(_read(source / WEIGHTS)),
            metrics=content["metrics"],
            seconds=content["seconds"],
            versions=_texts(content["versions"]),
            diagnostics=_history(source / DIAGNOSTICS),
            clip_norm=tuple(check_array("clip_norm", content.get("clip_norm", ()), above=0).tolist()),
            stopped=_texts({"stopped": content.get("stopped", "")})["stopped"],
            conduct=_conduct(content[CONDUCT]) if CONDUCT in content else None,
        )
    except FileRefused:
        raise
    except (
        KeyError, TypeError, AttributeError, ValueError, RuntimeError, SafetensorError, DecrescendoError,
    ) as error:  # fmt: skip
        raise FileRefused(
            f"{source} must hold a run, got one that does not fit together ({error})"
        ) from error
    if isinstance(run.plan, Terms):
        _check_terms(run.plan, run, source / RUN)
    elif len(ledger) > run.plan.steps or ledger != run.plan.ledger.first(len(ledger)):
        raise FileRefused(f"the ledger in {source / RUN} must be the beginning of its plan's, got another")
    return run


def check_free(folder: Path) -> None:
    """``folder`` can be written as a new one, or an error; asked before a training too, so that none is
    lost."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InvalidValue(
            f"folder must be new or empty, got folder={str(folder)!r}. A run is never overwritten"
        )
    parent = next(path for path in folder.absolute().parents if path.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
        raise InvalidValue(f"folder must be in a place that can be written, got folder={str(folder)!r}")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileRefused(
            f"{path} must be a readable file, got {error.strerror or type(error).__name__}"
        ) from None


def _agreed(path: Path) -> Plan | Terms:
    if path.name == PLAN:
        return Plan.load(path)
    return Terms.from_json(_read(path).decode("utf-8", errors="replace"), source=str(path))


def _check_terms(terms: Terms, run: "Run", path: Path) -> None:
    """The filter, asked again for everything that was released, must have granted it."""
    if run.guarantee != terms.guarantee:
        raise FileRefused(f"the guarantee in {path} must be its filter's budget, got {run.guarantee}")
    if run.steps > terms.steps or bool((run.ledger.sample_rate != terms.sampling.sample_rate).any()):
        raise FileRefused(f"the ledger in {path} must keep to its terms, got {run.ledger} under {terms}")
    try:
        terms.replay(run.ledger)
    except AccountingError as error:
        raise FileRefused(f"the ledger in {path} must be within its budget: {error}") from None


KEYS = {"format", "version", "plan_sha256", "weights_sha256", "ledger", "guarantee", "metrics", "seconds"} | {
    "versions"
}
# In runs since it was recorded.
CONDUCT = "conduct"
ADAPTIVE_KEYS = KEYS | {"clip_norm", "stopped"}


def _checked_content(path: Path) -> dict[str, Any]:
    keys = {VERSION: KEYS, ADAPTIVE_VERSION: ADAPTIVE_KEYS}
    return sealed.opened(_read(path), path, FORMAT, VERSION, ADAPTIVE_VERSION, keys=keys, free={CONDUCT})


def _ledger(columns: Mapping[str, Any]) -> Ledger:
    if set(columns) != {"sample_rate", "noise_multiplier", "count"}:
        raise FileRefused(f"a ledger must have three columns, got {', '.join(sorted(columns))}")
    rates, counts = columns["sample_rate"], columns["count"]
    noise = check_array("noise_multiplier", columns["noise_multiplier"], at_least=0)
    if noise.size and set(counts) == {1} and len(set(rates)) == 1 and len(rates) == len(counts) == noise.size:
        return Ledger.of(noise, rates[0])
    rows = zip(rates, noise.tolist(), counts, strict=True)
    return Ledger(Release(rate, multiplier, count) for rate, multiplier, count in rows)


def _column(name: str, values: Any) -> tuple[Any, ...]:
    kinds = (int, float) if name == "loss_sum" else (int,)
    if not isinstance(values, list) or not all(type(value) in kinds for value in cast("list[Any]", values)):
        raise TypeError(f"something else than a list of numbers under {name!r}")
    return tuple(cast("list[Any]", values))


def _conduct(facts: Mapping[str, Any]) -> Conduct:
    """As it was recorded; by versions before `Conduct.assumptions`, without them: then nothing is proven."""
    assumed: Any = facts.get("assumptions", [UNRECORDED])
    if not isinstance(assumed, list):
        raise TypeError("something else than a list of assumptions")
    lists: dict[str, Any] = {
        "resumed": tuple(facts["resumed"]),
        "assumptions": tuple(cast("list[Any]", assumed)),
    }
    return Conduct(**dict(facts) | lists)


def _texts(values: Any) -> dict[str, str]:
    if not isinstance(values, dict) or not all(
        isinstance(text, str) for text in cast("dict[str, Any]", values).values()
    ):
        raise TypeError("something else than texts where texts must be")
    return cast("dict[str, str]", values)


def _history(path: Path) -> History | None:
    if not path.exists():
        return None
    try:
        columns: Any = json.loads(_read(path))  # losses may be infinite
        history = History(**{name: _column(name, column) for name, column in columns.items()})
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise FileRefused(f"{path} must hold diagnostics, got {error}") from None
    if len({len(column) for column in asdict(history).values()}) > 1:
        raise FileRefused(f"{path} must have columns of one length, got different lengths")
    return history
