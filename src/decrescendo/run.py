"""What a finished training is: what was planned, what happened, what it cost, and the weights."""

import functools
import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from decrescendo import strict_json
from decrescendo.accounting import Pld
from decrescendo.budget import Budget, Guarantee, check_unit
from decrescendo.errors import (
    AccountingError,
    DecrescendoError,
    FileRefused,
    InvalidValue,
    check_array,
    check_real,
)
from decrescendo.ledger import Ledger, Release
from decrescendo.plan import Plan
from decrescendo.statement import Conduct, Declaration, Statement, state
from decrescendo.terms import Terms

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


@dataclass(frozen=True, slots=True)
class History:
    """What the clipping saw at each step. These numbers come from private data and are covered by no
    guarantee:
    they are for whoever holds the data, and are saved only on request.

    Args:
        examples: realised batch size.
        nonfinite: examples whose gradient was not finite and counted as zero.
        clipped: examples whose gradient was longer than the clip norm.
        loss_sum: sum of the losses.
    """

    examples: tuple[int, ...] = ()
    nonfinite: tuple[int, ...] = ()
    clipped: tuple[int, ...] = ()
    loss_sum: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A finished training.

    The seed is not part of it: whoever knows the seed knows the noise, so a seed is as sensitive as the data.

    Guarantee:
        `guarantee` is what `accounting.Pld` says of `ledger`, the releases that happened; of the whole plan
        if the run ended early, because when to end may have depended on the releases. It covers `weights` and
        whatever is computed from them; it does not cover `diagnostics`, nor `metrics` unless they were
        measured on public data. Of a run whose noise was decided on the way it is the filter's budget, however
        little of it was spent: `accounting.Pld` says nothing of such a ledger.

    Args:
        plan: what was decided before the start: a plan, or the `Terms` of an adaptive run.
        ledger: what was released; shorter than the plan's if training ended early.
        guarantee: what was spent at the budget's delta.
        weights: the trained state dict, on the CPU.
        metrics: named scores measured on declared public data.
        seconds: wall-clock time of the training, >= 0.
        versions: of Python and the packages that computed it.
        diagnostics: private; see `History`.
        clip_norm: C_t of the steps taken, where they were decided on the way; else empty, for the plan says them.
        stopped: why an adaptive run ended, in words.
        conduct: how it was run, as far as the library saw it.

    >>> round(judged(Ledger([Release(1.0, 2.0)]), Budget(3.0, 1e-5)).epsilon, 2)
    1.99
    """

    plan: Plan | Terms
    ledger: Ledger
    guarantee: Guarantee
    weights: Mapping[str, Tensor]
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    seconds: float = 0.0
    versions: Mapping[str, str] = field(default_factory=lambda: versions())
    diagnostics: History | None = None
    clip_norm: tuple[float, ...] = ()
    stopped: str = ""
    conduct: Conduct | None = None

    def __post_init__(self) -> None:
        if isinstance(self.plan, Terms) and len(self.clip_norm) != self.ledger.steps:
            raise InvalidValue(
                f"clip_norm must have one value for each of the {self.ledger.steps} steps of an adaptive run, "
                f"got {len(self.clip_norm)}"
            )
        object.__setattr__(self, "seconds", check_real("seconds", self.seconds, at_least=0))
        for name, value in self.metrics.items():
            check_real(f"metrics[{name!r}]", value)

    @property
    def steps(self) -> int:
        """Steps taken."""
        return self.ledger.steps

    @property
    def covered(self) -> Ledger:
        """What the guarantee is about: the releases, or the whole plan's if the run ended early.

        Of an adaptive run the releases: its guarantee covers whatever its filter would have granted.
        """
        if isinstance(self.plan, Terms) or self.steps == self.plan.steps:
            return self.ledger
        return self.plan.ledger

    def with_metrics(self, metrics: Mapping[str, float]) -> "Run":
        """The same run with more ``metrics`` (they must come from public data); a new value replaces an old
        one."""
        return replace(self, metrics={**self.metrics, **metrics})

    def describe(self) -> str:
        """A few lines: what was promised, what happened, the scores."""
        if isinstance(self.plan, Terms):
            early = f" of at most {self.plan.steps}, decided on the way by {self.plan.policy}"
        elif self.steps == self.plan.steps:
            early = ""
        else:
            early = f" of {self.plan.steps} planned, which the guarantee covers"
        lines = [
            str(self.guarantee),
            f"promised: epsilon {self.plan.budget.epsilon:g} at delta {self.plan.budget.delta:g}",
            f"steps: {self.steps}{early}",
            *([f"stopped: {self.stopped}"] if self.stopped else []),
            *(f"{name}: {value:.4g}" for name, value in self.metrics.items()),
            f"time: {self.seconds:.1f} s",
        ]
        return "\n".join(lines)

    def __str__(self) -> str:
        scores = "".join(f" · {name} {value:.4g}" for name, value in self.metrics.items())
        return f"{self.guarantee} · {self.steps} of {self.plan.steps} steps{scores}"

    def statement(
        self,
        declaration: Declaration | None = None,
        *,
        audit: Mapping[str, Any] | None = None,
        spent: int = 0,
    ) -> Statement:
        """What may be said of this training's privacy, for a program and for people.

        Args:
            declaration: what only the owner of the data can say.
            audit: the facts of an empirical lower bound (`audit`).
            spent: at how many points the budget's way is shown; each costs up to a second; 0: none.
        """
        return state(
            self.plan, self.ledger, self.guarantee, conduct=self.conduct, clip_norm=self.clip_norm,
            stopped=self.stopped, metrics=self.metrics, versions=self.versions,
            declaration=declaration, audit=audit, spent=spent,
        )  # fmt: skip

    def save(self, folder: str | os.PathLike[str], *, include_diagnostics: bool = False) -> None:
        """Write ``run.json``, ``plan.json`` (an adaptive run: ``terms.json``), ``weights.safetensors`` and the
        privacy statement (``statement.md``, ``statement.json``) into a new ``folder``, all or nothing.

        Args:
            folder: must not exist yet, or be empty; its parents are made.
            include_diagnostics: also write ``diagnostics-private.json``, which no guarantee covers.

        Raises:
            InvalidValue: the folder has something in it; a run is never overwritten.
        """
        target = Path(folder)
        check_free(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        # Everything goes into a hidden sibling that takes the folder's name at the end: a crash leaves no
        # half run.
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            if isinstance(self.plan, Terms):
                (staging / TERMS).write_text(self.plan.to_json(), encoding="utf-8")
            else:
                self.plan.save(staging / PLAN)
            (staging / WEIGHTS).write_bytes(save_tensors(_separate(self.weights)))
            if include_diagnostics and self.diagnostics is not None:
                (staging / DIAGNOSTICS).write_text(json.dumps(asdict(self.diagnostics)), encoding="utf-8")
            self.statement().save(staging)
            (staging / RUN).write_text(self._to_json(staging), encoding="utf-8")
            staging.chmod(0o755)
            os.replace(staging, target)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise

    def _to_json(self, staging: Path) -> str:
        adaptive = isinstance(self.plan, Terms)
        content: dict[str, Any] = {
            "format": FORMAT,
            "version": ADAPTIVE_VERSION if adaptive else VERSION,
            "plan_sha256": _sha256((staging / (TERMS if adaptive else PLAN)).read_bytes()),
            "weights_sha256": _sha256((staging / WEIGHTS).read_bytes()),
            "ledger": {
                "sample_rate": self.ledger.sample_rate.tolist(),
                "noise_multiplier": self.ledger.noise_multiplier.tolist(),
                "count": self.ledger.count.tolist(),
            },
            "guarantee": {**asdict(self.guarantee), "unit": str(self.guarantee.unit)},
            "metrics": {name: float(value) for name, value in self.metrics.items()},
            "seconds": self.seconds,
            "versions": dict(self.versions),
        }
        if self.conduct is not None:
            content[CONDUCT] = asdict(self.conduct)
        if adaptive:
            content |= {"clip_norm": list(self.clip_norm), "stopped": self.stopped}
        return json.dumps({**content, "sha256": _sha256(_canonical(content))}, indent=1)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "Run":
        """The run that was saved into ``folder``.

        Raises:
            FileRefused: a file is missing, damaged, foreign, newer, or has an entry this version does not
                know.
        """
        source = Path(folder)
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
            run = cls(
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
                conduct=Conduct(**content[CONDUCT] | {"resumed": tuple(content[CONDUCT]["resumed"])})
                if CONDUCT in content
                else None,
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
            raise FileRefused(
                f"the ledger in {source / RUN} must be the beginning of its plan's, got another"
            )
        return run


@functools.lru_cache(maxsize=64)
def judged(ledger: Ledger, budget: Budget) -> Guarantee:
    """What `accounting.Pld` says of ``ledger`` at the budget's delta: its upper end, and the lower end
    beside it. Kept for as many ledgers as a table has cells: an audit trains a thousand times by one plan."""
    accountant = Pld()
    lower, upper = accountant.bracket(ledger, budget.delta)
    return Guarantee(upper, budget.delta, budget.unit, accountant.name, "upper", lower)


def versions() -> dict[str, str]:
    """Of Python and the packages that decide the numbers.

    >>> sorted(versions())
    ['decrescendo', 'numpy', 'python', 'torch']
    """
    packages = ("decrescendo", "numpy", "torch")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


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


def cpu_weights(model: torch.nn.Module) -> dict[str, Tensor]:
    """A copy of the model's state dict on the CPU."""
    return {name: value.detach().to("cpu", copy=True) for name, value in model.state_dict().items()}


def _separate(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # Tied weights share memory, which the file format refuses; the names are what counts here.
    return {
        name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in weights.items()
    }


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


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


def _check_terms(terms: Terms, run: Run, path: Path) -> None:
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
    "versions",
    "sha256",
}
# In runs since it was recorded.
CONDUCT = "conduct"
ADAPTIVE_KEYS = KEYS | {"clip_norm", "stopped"}


def _checked_content(path: Path) -> dict[str, Any]:
    raw = _read(path)
    try:
        content: Any = strict_json.loads(raw)
    except ValueError as error:
        raise FileRefused(f"{path} must be JSON, got {error}. It is damaged or foreign") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FileRefused(f'{path} must say format "{FORMAT}", got a foreign file')
    known: dict[str, Any] = content
    given = known.get("version")
    if given not in (VERSION, ADAPTIVE_VERSION):
        raise FileRefused(
            f"{path} must be of version {VERSION} or {ADAPTIVE_VERSION}, got version={given!r}. "
            "A newer decrescendo reads it"
        )
    keys = ADAPTIVE_KEYS if given == ADAPTIVE_VERSION else KEYS
    if known.keys() - {CONDUCT} != keys:
        odd = ", ".join(sorted((known.keys() - {CONDUCT}) ^ keys))
        raise FileRefused(
            f"{path} must have exactly the entries of version {given}, got a difference in {odd}"
        )
    checksum = known.pop("sha256")
    if checksum != _sha256(_canonical(known)):
        raise FileRefused(f"{path} must match its own checksum, got other content. It was damaged or edited")
    return known


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
