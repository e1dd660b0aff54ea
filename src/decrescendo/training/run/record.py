"""`Run`: plan, steps, privacy cost and weights of a finished training; its folder is written completely or
not at all, and read with every part checked against the others."""

import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from decrescendo.accounting.budget import Guarantee, rounded
from decrescendo.accounting.ledger import Ledger
from decrescendo.base.assumption import Assumption, are_independent, assumption_lines
from decrescendo.base.markdown import one_line
from decrescendo.base.whole_file import read_whole
from decrescendo.errors import (
    AccountingError,
    DecrescendoError,
    FileRefused,
    check_array,
    check_instance,
    check_real,
)
from decrescendo.plans.agreement import Agreement, read_agreement
from decrescendo.plans.sampling import drawn_by
from decrescendo.training.run.certify import check_claim
from decrescendo.training.run.entries import (
    ADAPTIVE_VERSION,
    CLIP_NORM,
    DIAGNOSTICS,
    PROVENANCE,
    RUN,
    TELEMETRY,
    UNREADABLE,
    WEIGHTS,
    check_telemetry,
    checked_content,
    read_diagnostics,
    read_guarantee,
    read_ledger,
    read_provenance,
    read_telemetry,
    read_texts,
    run_facts,
    sha256_of,
)
from decrescendo.training.run.folder import check_free, free_folder, renamed
from decrescendo.training.run.history import History
from decrescendo.training.run.versions import versions
from decrescendo.training.run.weights import without_shared_memory
from decrescendo.training.statement import UNRECORDED, Declaration, Provenance, Statement, state
from decrescendo.training.statement.beside import check_beside
from decrescendo.training.steering.reading import Reading


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A finished training.

    The seed is not part of it: whoever knows the seed knows the noise, so a seed is as sensitive as the data.

    Guarantee:
        `guarantee` is certified by `accounting.Pld` for `ledger`, the releases that happened; for the whole plan
        if the run ended early, because when to end may have depended on the releases. It covers `weights` and
        whatever is computed from them; it does not cover `diagnostics`, nor `metrics` unless they were
        measured on public data. For an adaptive run it is the filter's whole budget, however little of it was spent:
        `accounting.Pld` certifies no ledger whose noise was decided during the run.
        It holds if all `assumptions` are true.

    Args:
        plan: what was decided before the start: a `Plan` or an `AdaptivePlan`.
        ledger: what was released; shorter than the plan's if training ended early.
        guarantee: what was spent at the budget's delta.
        weights: the trained parameters and the persistent buffers, by their names in the state dict, on the CPU;
            nothing else that a model may put into its state dict.
        metrics: named scores measured on declared public data.
        seconds: wall-clock time of the training, >= 0, to a tenth.
        versions: of Python and the packages that computed it.
        diagnostics: private; see `History`.
        clip_norm: C_t of the steps taken, if decided during the run; empty if the plan fixes them.
        stopped: why an adaptive run ended.
        provenance: how it was run, as far as the library saw it.
        telemetry: what was released beside the gradients, by step; public.

    >>> from decrescendo import Budget, PoissonSampling, calibrate, curves
    >>> one = curves.constant(1.0)
    >>> plan = calibrate(Budget(2.0, 1e-3), PoissonSampling(50, 10), steps=3, privacy=one, clip=one)
    >>> run = Run(plan, plan.ledger, plan.guarantee, weights={}).with_metrics({"accuracy": 0.9})
    >>> run.steps, run.metrics["accuracy"], run.rows_independent
    (3, 0.9, False)
    """

    plan: Agreement
    ledger: Ledger
    guarantee: Guarantee
    weights: Mapping[str, Tensor]
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    seconds: float = 0.0
    versions: Mapping[str, str] = field(default_factory=lambda: versions())
    diagnostics: History | None = None
    clip_norm: tuple[float, ...] = ()
    stopped: str = ""
    provenance: Provenance | None = None
    telemetry: tuple[Reading, ...] = ()

    def __post_init__(self) -> None:
        self.plan.clip_norms(self.clip_norm, self.ledger.steps)  # raises unless there is one a step
        # Rounded: microseconds would tell more about the machine and the batches than anybody needs to know.
        object.__setattr__(self, "seconds", round(check_real("seconds", self.seconds, at_least=0), 1))
        for name, value in self.metrics.items():
            check_real(f"metrics[{name!r}]", value)

    @property
    def steps(self) -> int:
        """Number of steps taken."""
        return self.ledger.steps

    @property
    def covered(self) -> Ledger:
        """The releases that the guarantee covers: those of the run, or the whole plan's if it ended early.

        For an adaptive run, those of the run: its guarantee covers whatever its filter would have granted.
        """
        return self.plan.covered(self.ledger)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions of the guarantee, sorted by code: what was not checked, or not fully, because it
        was declared, could only be compared, was done by user code, or is published unchanged.

        All codes are listed in docs/reference/assumptions.md, with when a run has them and what to do. Buffers that
        are not as constructed (running statistics, priors, code books) and frozen parameters are published with the
        weights, without noise: they are assumed to be public, by name.
        """
        return (UNRECORDED,) if self.provenance is None else self.provenance.assumptions

    @property
    def rows_independent(self) -> bool:
        """Whether every pass was shown to keep rows independent: each row's gradient depends on that row alone.

        False if the engine itself had to assume something, or another clipper was used: `assumptions` whose code
        begins with ``rows-``. Assumptions about a data set, collate_fn, callback or frozen layer of yours do not
        change it.
        """
        return are_independent(self.assumptions)

    def with_metrics(self, metrics: Mapping[str, float]) -> "Run":
        """The same run with more ``metrics`` (they must come from public data); a new value replaces an old
        one."""
        for name, value in metrics.items():
            check_instance("a name in metrics", name, str)
            check_real(f"metrics[{name!r}]", value)
        return replace(self, metrics={**self.metrics, **{name: float(value) for name, value in metrics.items()}})

    def describe(self) -> str:
        """A few lines: the guarantee, the steps taken, the scores."""
        budget = self.plan.budget
        asked = f"epsilon {rounded(budget.epsilon, 'up', 6)} at delta {rounded(budget.delta, 'up', 6)}"
        planned = self.plan.guarantee
        lines = [
            str(self.guarantee),
            f"estimated: {asked} by {planned.accountant}, which promises nothing"
            if planned.kind == "estimate"
            else f"promised: {asked if math.isfinite(budget.epsilon) else 'no privacy'}",
            f"steps: {self.steps}{self.plan.taken(self.steps)}",
            *assumption_lines(self.assumptions),
            *([f"stopped: {one_line(self.stopped)}"] if self.stopped else []),
            *([gap] if (gap := self.plan.gap(self.ledger)) else []),
            *(f"{one_line(name)}: {value:.4g}" for name, value in self.metrics.items()),
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
        """The privacy statement of this training, as data and as text.

        Args:
            declaration: the facts that only the data's owner knows.
            audit: the facts of an empirical lower bound (`audit`).
            spent: the number of steps at which the epsilon spent is shown; each takes up to a second; 0: none.
        """
        return state(
            self.plan, self.ledger, self.guarantee, provenance=self.provenance, clip_norm=self.clip_norm,
            stopped=self.stopped, metrics=self.metrics, versions=self.versions,
            declaration=declaration, audit=audit, spent=spent,
        )  # fmt: skip

    def check_statement(self, folder: str | os.PathLike[str]) -> str | None:
        """Compare the statement in ``folder`` with this run; see `training.statement.beside`.

        Returns:
            A sentence that the two agree; ``None`` if the folder has no statement.

        Raises:
            FileRefused: it says something else.
        """
        return check_beside(Path(folder), lambda declared, audit: self.statement(declared, audit=audit))

    def save(self, folder: str | os.PathLike[str], *, include_diagnostics: bool = False) -> Path:
        """Write ``run.json``, ``plan.json`` (an adaptive run: ``adaptive_plan.json``), ``weights.safetensors`` and the
        privacy statement (``statement.md``, ``statement.json``) into a new ``folder``, all or nothing.

        Args:
            folder: new or empty; its parents are made. A run is never overwritten: where the folder has something in
                it, the run goes into a new one beside it (``run-2`` for ``run``), with a warning; go on with what is
                returned.
            include_diagnostics: also write ``diagnostics-private.json``, which no guarantee covers.

        Returns:
            The folder that the run was saved in.

        Raises:
            InvalidValue: nothing can be written there.
        """
        target = free_folder(Path(folder))
        check_free(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        # Everything goes into a hidden sibling that takes the folder's name at the end: a crash leaves no half run.
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            (staging / f"{self.plan.kind}.json").write_text(self.plan.to_json(), encoding="utf-8")
            (staging / WEIGHTS).write_bytes(save_tensors(without_shared_memory(self.weights)))
            if include_diagnostics and self.diagnostics is not None:
                (staging / DIAGNOSTICS).write_text(self.diagnostics.to_json(), encoding="utf-8")
            self.statement().save(staging)
            (staging / RUN).write_text(run_facts(self, staging), encoding="utf-8")
            staging.chmod(0o755)
            target = renamed(staging, target)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        return target

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "Run":
        """Read the run saved in ``folder``.

        Raises:
            FileRefused: a file is missing, damaged, foreign, newer, or has an entry this version does not know.
        """
        source = Path(folder)
        content = checked_content(read_whole(source / RUN), source / RUN)
        kind = "adaptive_plan" if content["version"] == ADAPTIVE_VERSION else "plan"
        agreed = source / f"{kind}.json"
        for name, key in ((agreed.name, "plan_sha256"), (WEIGHTS, "weights_sha256")):
            if sha256_of(read_whole(source / name)) != content[key]:
                raise FileRefused(f"{source / name} must be the file that {RUN} was written with, got other bytes")
        try:
            text = read_whole(agreed).decode("utf-8", errors="replace")
            plan = read_agreement(kind, text, source=str(agreed))
            # Epochs and the cost of truncated batches are not in the file: they follow from the plan's sampling.
            ledger = drawn_by(plan.sampling, read_ledger(content["ledger"]))
            run = cls(
                plan=plan,
                ledger=ledger,
                guarantee=read_guarantee(content["guarantee"]),
                weights=load_tensors(read_whole(source / WEIGHTS)),
                metrics=content["metrics"],
                seconds=content["seconds"],
                versions=read_texts(content["versions"]),
                diagnostics=read_diagnostics(source / DIAGNOSTICS),
                clip_norm=tuple(check_array("clip_norm", content.get(CLIP_NORM, ()), above=0).tolist()),
                stopped=read_texts({"stopped": content.get("stopped", "")})["stopped"],
                provenance=read_provenance(content[PROVENANCE]) if PROVENANCE in content else None,
                telemetry=read_telemetry(content.get(TELEMETRY)),
            )
            check_telemetry(run)
        except FileRefused:
            raise
        except (*UNREADABLE, SafetensorError, DecrescendoError) as error:
            raise FileRefused(f"{source} must hold a run, got one that does not fit together ({error})") from error
        try:
            run.plan.check(ledger, run.guarantee)
            check_claim(run.plan, run.guarantee)
        except AccountingError as error:
            raise FileRefused(f"{source / RUN} must fit what was agreed: {error}") from None
        return run
