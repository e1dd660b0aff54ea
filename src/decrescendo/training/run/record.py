"""What a finished training is: what was planned, what happened, what it cost, and the weights."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from decrescendo.accounting.budget import Guarantee
from decrescendo.accounting.ledger import Ledger
from decrescendo.errors import InvalidValue, check_real
from decrescendo.plans.plan import Plan
from decrescendo.plans.terms import Terms
from decrescendo.training.run.files import read, write
from decrescendo.training.run.history import History
from decrescendo.training.run.versions import versions
from decrescendo.training.statement import UNRECORDED, Conduct, Declaration, Statement, state


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
        It supposes that `assumptions` hold. A run is `proven` if there are none.

    Args:
        plan: what was decided before the start: a plan, or the `Terms` of an adaptive run.
        ledger: what was released; shorter than the plan's if training ended early.
        guarantee: what was spent at the budget's delta.
        weights: the trained parameters and the persistent buffers, by their names in the state dict, on the CPU;
            nothing else that a model may put into its state dict.
        metrics: named scores measured on declared public data.
        seconds: wall-clock time of the training, >= 0.
        versions: of Python and the packages that computed it.
        diagnostics: private; see `History`.
        clip_norm: C_t of the steps taken, where they were decided on the way; else empty, for the plan says them.
        stopped: why an adaptive run ended, in words.
        conduct: how it was run, as far as the library saw it.

    >>> from decrescendo import Budget, PoissonSampling, calibrate, constant
    >>> one = constant(1.0)
    >>> plan = calibrate(Budget(2.0, 1e-3), PoissonSampling(50, 10), steps=3, privacy=one, clip=one)
    >>> run = Run(plan, plan.ledger, plan.guarantee, weights={}).with_metrics({"accuracy": 0.9})
    >>> run.steps, run.metrics["accuracy"], run.proven
    (3, 0.9, False)
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

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the guarantee takes on trust because the engine could not prove it, and the user declared it: sentences,
        sorted. Empty: nothing."""
        return (UNRECORDED,) if self.conduct is None else self.conduct.assumptions

    @property
    def proven(self) -> bool:
        """Whether each example was proven apart from the others, at every step. If not, see `assumptions`."""
        return not self.assumptions

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
            *(f"not proven, but declared: {assumption}" for assumption in self.assumptions),
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
        write(self, Path(folder), include_diagnostics=include_diagnostics)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "Run":
        """The run that was saved into ``folder``.

        Raises:
            FileRefused: a file is missing, damaged, foreign, newer, or has an entry this version does not
                know.
        """
        return read(Path(folder), cls)
