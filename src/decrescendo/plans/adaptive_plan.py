"""`AdaptivePlan`: what is fixed before a run whose noise is decided during the run, frozen, as one small file."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from decrescendo.accounting.budget import Budget, Guarantee, check_budget, check_one_example, check_unit
from decrescendo.accounting.filters import Filter, GdpFilter, RenyiFilter, ZcdpFilter
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.pld import Pld
from decrescendo.accounting.protocol import Accountant
from decrescendo.accounting.release import Release
from decrescendo.base import sealed
from decrescendo.errors import (
    AccountingError,
    DecrescendoError,
    FileRefused,
    InvalidValue,
    check_instance,
    check_integer,
)
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.plans.sampling_refusals import uncut

FORMAT, VERSION = "decrescendo-adaptive-plan", 1
_KEYS = {"format", "version", "budget", "sampling", "filter", "steps", "policy"}


@final
@dataclass(frozen=True, slots=True)
class AdaptivePlan:
    """The decisions before an adaptive run: all public, none changed by the run. The adaptive form of an
    `Agreement`.

    Args:
        budget: what the run may spend.
        sampling: how batches are drawn.
        filter: name of the filter that guards the budget.
        steps: the most steps the run may take, >= 1.
        policy: in words, what decided noise and clipping.

    >>> from decrescendo.accounting.budget import Budget
    >>> budget, sampling = Budget(1.0, 1e-5), PoissonSampling(100, 10)
    >>> plan = AdaptivePlan(budget, sampling, "RenyiFilter(order=16)", 50, "halve at a plateau")
    >>> print(plan.guarantee)
    (1, 1e-05)-DP per example, RenyiFilter(order=16) upper bound
    >>> AdaptivePlan.from_json(plan.to_json()) == plan
    True
    """

    budget: Budget
    sampling: PoissonSampling
    filter: str
    steps: int
    policy: str

    def __post_init__(self) -> None:
        check_budget(self.budget)
        check_one_example(self.budget, "an adaptive plan")
        for name, kind in (("sampling", PoissonSampling), ("filter", str), ("policy", str)):
            check_instance(name, getattr(self, name), kind)
        uncut(self.sampling, "an adaptive plan")
        object.__setattr__(self, "steps", check_integer("steps", self.steps, at_least=1))
        if not self.filter:
            raise InvalidValue("filter must be a filter's name, got filter=''")

    @property
    def guarantee(self) -> Guarantee:
        """The budget, whatever the run spends of it."""
        return Guarantee(self.budget.epsilon, self.budget.delta, self.budget.unit, self.filter, "upper")

    @property
    def kind(self) -> Literal["adaptive_plan"]:
        """The adaptive form of an `Agreement`."""
        return "adaptive_plan"

    @property
    def planned(self) -> None:
        """Nothing: the releases are decided during the run."""
        return None

    @property
    def decided(self) -> str:
        """When noise and clipping were decided, and by what."""
        return f"during the run, by {self.policy}"

    def price(self, judge: Accountant) -> Guarantee:
        """The filter's whole budget; no accountant can say less."""
        del judge
        return self.guarantee

    def covered(self, ledger: Ledger) -> Ledger:
        """The releases that the guarantee covers: ``ledger``; it covers any that the filter grants."""
        return ledger

    def allows(self, position: int, release: Release) -> bool:
        """Whether ``release`` may be the step at ``position``: within the steps and of this sampling. The filter grants
        its noise."""
        return position < self.steps and release == self.sampling.release(release.noise_multiplier)

    def begins(self, ledger: Ledger) -> bool:
        """Whether ``ledger`` keeps to these steps and this sampling."""
        return ledger.steps <= self.steps and not bool((ledger.sample_rate != self.sampling.sample_rate).any())

    def check(self, ledger: Ledger, guarantee: Guarantee) -> None:
        """Ask a fresh filter for all releases of ``ledger``, and raise if it refuses one."""
        self._check_budget(guarantee)
        if not self.begins(ledger):
            raise AccountingError(f"the ledger must keep to its plan, got {ledger} under {self}")
        try:
            self.replay(ledger)
        except AccountingError as error:
            raise AccountingError(f"the ledger must be within its budget: {error}") from None

    def _check_budget(self, guarantee: Guarantee) -> None:
        if guarantee != self.guarantee:
            raise AccountingError(f"the guarantee must be its filter's budget, got {guarantee}")

    def clip_norms(self, decided: Sequence[float], steps: int) -> list[float]:
        """C_t of the first ``steps`` steps, as ``decided`` during the run."""
        if len(decided) != steps:
            raise InvalidValue(
                f"clip_norm must have one value for each of the {steps} steps of an adaptive run, got {len(decided)}"
            )
        return list(decided)

    def spread(self, noise_multiplier: Sequence[float]) -> list[float]:
        """The standard deviations of the noise for sensitivity 1: z_t, since all steps' noise is independent."""
        return list(noise_multiplier)

    def taken(self, steps: int) -> str:
        """The end of a sentence about ``steps`` steps: the most allowed, and the policy that decided."""
        del steps
        return f" of at most {self.steps}, decided during the run by {self.policy}"

    def confirm(self, ledger: Ledger, guarantee: Guarantee | None = None) -> Iterator[str]:
        """Ask the filter again for every release of ``ledger``."""
        self._check_budget(guarantee or self.guarantee)
        guard = self.replay(ledger)
        if guard is None:
            raise AccountingError(
                f"a filter must be one of this package to be asked again, got {self.filter}. Ask where it came from"
            )
        share = guard.spent / guard.limit
        yield f"{self.filter} again: {ledger.steps} releases granted, {share:.4%} of the budget spent"
        if gap := self.gap(ledger):
            yield gap

    def held_up(self, certified: Guarantee, guarantee: Guarantee | None = None) -> list[str]:
        """No lines: nothing was certified in advance."""
        del certified, guarantee
        return []

    def gap(self, ledger: Ledger) -> str:
        """The filter's budget beside what `Pld` certifies of the same releases, had they been fixed in advance.

        >>> plan = AdaptivePlan(Budget(1.0, 1e-5), PoissonSampling(100, 10), "RenyiFilter(order=16)", 50, "fixed")
        >>> plan.gap(Ledger.of([4.0] * 50, sample_rate=0.1))
        'noise fixed in advance would have cost epsilon 0.6843 by Pld, 68.4 % of the budget; for noise decided ...'
        """
        if not len(ledger):
            return ""
        try:
            fixed = Pld().epsilon(ledger, self.budget.delta)
        except AccountingError:
            return ""
        return (
            f"noise fixed in advance would have cost epsilon {fixed.shown(4)} by Pld, "
            f"{100 * fixed.value / self.budget.epsilon:.3g} % of the budget; for noise decided during the run "
            "this is no guarantee"
        )

    def __str__(self) -> str:
        return f"{self.guarantee} · noise decided during the run · at most {self.steps} steps"

    def replay(self, ledger: Ledger) -> Filter | None:
        """A fresh filter that was asked for every release of ``ledger`` and granted it.

        Returns:
            The filter; ``None`` where this plan names a filter that this package does not have.

        Raises:
            AccountingError: a release is refused: this ledger cannot have come from this plan.

        >>> plan = AdaptivePlan(Budget(4.0, 1e-8), PoissonSampling(100, 100), "ZcdpFilter", 50, "fixed")
        >>> plan.replay(Ledger.of([4.0] * 3, sample_rate=1.0))
        <ZcdpFilter, spent 0.09375 of 0.196352>
        """
        guard = _filter_named(self.filter, self.budget)
        if guard is None:
            return None
        for release in ledger.distinct():  # their order does not matter
            answer = guard.request(release)
            if not answer:
                raise AccountingError(f"{self.filter} must grant every release of its run, got {answer}")
        return guard

    @property
    def sha256(self) -> str:
        """SHA-256 of the plan's file, as ``sha256sum`` prints it."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """The plan as text; `from_json` gives an equal one."""
        body: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "budget": {
                "epsilon": self.budget.epsilon,
                "delta": self.budget.delta,
                "unit": self.budget.unit.value,
            },
            "sampling": {
                "dataset_size": self.sampling.dataset_size,
                "expected_batch_size": self.sampling.expected_batch_size,
            },
            "filter": self.filter,
            "steps": self.steps,
            "policy": self.policy,
        }
        return sealed.seal(body) + "\n"

    @classmethod
    def from_json(cls, text: str, *, source: str = "the text") -> "AdaptivePlan":
        """The plan of `to_json`'s text; ``source`` names it in errors.

        Raises:
            FileRefused: damaged, foreign, newer, or with a key or value that does not belong.
        """
        body = sealed.opened(text, source, FORMAT, VERSION, keys=_KEYS)
        try:
            budget: dict[str, Any] = dict(body["budget"])
            budget["unit"] = check_unit(budget["unit"])
            return cls(
                Budget(**budget),
                PoissonSampling(**body["sampling"]),
                body["filter"],
                body["steps"],
                body["policy"],
            )
        except (DecrescendoError, TypeError, KeyError, ValueError) as error:
            raise FileRefused(f"{source} holds a value that no adaptive plan has: {error}") from None


def _filter_named(name: str, budget: Budget) -> Filter | None:
    if name == "ZcdpFilter":
        return ZcdpFilter(budget)
    if name == "GdpFilter":
        return GdpFilter(budget)
    renyi = re.fullmatch(r"RenyiFilter\(order=([1-9][0-9]{0,8})\)", name)
    if renyi is not None:
        return RenyiFilter(budget, int(renyi[1]))
    return None
