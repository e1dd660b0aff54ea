"""`Plan`: everything that is decided before a run starts, frozen, with its guarantee, as one small file.

Longer than most files: the value, its words, its file and its answers as an `Agreement` change together.
"""

import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Float

from decrescendo.accounting.budget import Budget, Guarantee, Unit, check_unit, rounded
from decrescendo.accounting.ledger import Ledger, Release
from decrescendo.accounting.pld import Pld
from decrescendo.accounting.protocol import Accountant
from decrescendo.accounting.table import accountant_named
from decrescendo.accounting.truncated import Truncated, least_epsilon, spent_on_the_cap
from decrescendo.accounting.verify import Verification, check_word, verify_epsilon
from decrescendo.base import sealed
from decrescendo.base.whole_file import write_whole
from decrescendo.errors import (
    AccountingError,
    DecrescendoError,
    FileRefused,
    InvalidValue,
    check_array,
    check_instance,
    check_integer,
    uninherited,
)
from decrescendo.plans.curves import CurveOrValues, evaluate
from decrescendo.plans.passes import steps_of
from decrescendo.plans.sampling import (
    BatchSchedule,
    PoissonSampling,
    RandomAllocation,
    Sampling,
    check_person,
    check_sampling,
    planned,
)
from decrescendo.plans.schedule import Schedule

FORMAT, VERSION = "decrescendo-plan", 1
# Expected batch sizes, one a step.
MOVING_VERSION = 3
# Batches that are cut to a largest size, whether or not the expected one moves.
CUT_VERSION = 4
# People with several examples, whether or not the expected batch size moves.
PERSON_VERSION = 5
# Each record once an epoch, whether or not batches are cut.
ALLOCATED_VERSION = 6
# A plan without privacy: no budget and no guarantee that a reader could take for one.
BARE_VERSION = 2
_BARE_KEYS = {"format", "version", "privacy", "sampling", "clip_norm"}
_KEYS = {
    "": {"format", "version", "budget", "sampling", "schedule", "guarantee"},
    "budget": {"epsilon", "delta", "unit"},
    "sampling": {"dataset_size", "expected_batch_size"},
    "schedule": {"noise_multiplier", "clip_norm"},
    "guarantee": {"epsilon", "delta", "unit", "accountant", "kind", "epsilon_lower"},
}
_OF_PEOPLE = {"examples_per_person"}  # in a budget and a guarantee, besides


@final
@uninherited("Its columns are what is accounted and what is done: `calibrate` or `allocate` makes another")
@dataclass(frozen=True, slots=True)
class Plan:
    """Budget, sampling, schedule and guarantee of one run. Every value in it is a public fact.

    Made by `calibrate`; taken by `train`, which runs exactly this schedule. The fixed form of an `Agreement`.

    Raises:
        InvalidValue: the guarantee exceeds the budget, or speaks of another delta or unit; noise and clip norms that do
            not go together with a budget without limit.

    >>> from decrescendo.accounting.budget import Unit
    >>> plan = Plan(
    ...     Budget(1.0, 1e-5),
    ...     PoissonSampling(1_000, 10),
    ...     Schedule([2.0, 1.0], [1.0, 0.5]),
    ...     Guarantee(0.99, 1e-5, Unit.EXAMPLE, "Pld", "upper"),
    ... )
    >>> print(plan)
    (0.99, 1e-05)-DP an example, Pld upper bound · z 2 -> 1 · C 1 -> 0.5 · 2 steps
    """

    budget: Budget
    sampling: Sampling
    schedule: Schedule
    guarantee: Guarantee

    def __post_init__(self) -> None:
        for name, kind in (("budget", Budget), ("schedule", Schedule), ("guarantee", Guarantee)):
            check_instance(name, getattr(self, name), kind)
        check_sampling(self.sampling)
        if self.batch_size.size != self.steps:
            raise InvalidValue(
                f"a plan must have one expected batch size a step ({self.steps}), got {self.batch_size.size}"
            )
        if isinstance(self.sampling, RandomAllocation) and self.sampling.whole(self.steps) != self.steps:
            raise InvalidValue(
                f"a plan must be of whole epochs of {self.sampling.steps_per_epoch} steps, got {self.steps} steps"
            )
        if self.guarantee.epsilon > self.budget.epsilon:
            raise InvalidValue(
                f"a plan's guarantee must be within its budget, got epsilon={self.guarantee.epsilon:g} "
                f"over budget.epsilon={self.budget.epsilon:g}. Make plans with calibrate"
            )
        if self.guarantee.delta != self.budget.delta or self.guarantee.protected != self.budget.protected:
            raise InvalidValue(
                "a plan's guarantee must have the delta and unit of its budget, got "
                f"delta={self.guarantee.delta:g}, unit={self.guarantee.protected} for {self.budget}"
            )
        bare = bool((self.noise_multiplier == 0).all())
        if self.private and not np.isfinite(self.clip_norm).all():
            raise InvalidValue(
                "a plan with a budget must have finite clip norms, got clip_norm=inf. See Plan.without_privacy"
            )
        if not self.private and not (bare and math.isinf(self.guarantee.epsilon)):
            raise InvalidValue(
                "a plan without a budget must have no noise and no guarantee, got one that has. Make it with "
                "Plan.without_privacy, and one with noise with calibrate"
            )

    @classmethod
    def without_privacy(
        cls,
        sampling: Sampling,
        *,
        steps: int | None = None,
        epochs: float | None = None,
        clip: CurveOrValues = math.inf,
    ) -> "Plan":
        """Plain SGD, to compare with: no noise, no budget, **no privacy**; everything made of it says so in words.

        Args:
            sampling: how batches are drawn; sample_rate 1 for full batches.
            steps: number of steps T >= 1.
            epochs: in place of ``steps``: expected passes over the data.
            clip: C_t of every step, a number, a curve or an array; infinite: gradients are not clipped.

        Guarantee: none. Its guarantee has epsilon infinity.

        >>> print(Plan.without_privacy(PoissonSampling(1_000, 10), steps=3))
        NO PRIVACY for an example: epsilon is infinite at delta 1e-06, says Pld · z 0 · C inf · 3 steps
        """
        check_sampling(sampling)
        count = steps_of(sampling, steps, epochs)
        flat = isinstance(clip, int | float)
        return cls._bare(sampling, np.full(count, float(clip)) if flat else evaluate("clip", clip, count))

    @classmethod
    def _bare(cls, sampling: Sampling, clip_norm: Float[np.ndarray, " steps"]) -> "Plan":
        schedule = Schedule(np.zeros(len(clip_norm)), clip_norm)
        # A delta at which a record that is laid open with probability sample_rate has no finite epsilon.
        rates = sampling.rates(schedule.steps)
        budget = Budget.unlimited(min(1e-6, float(rates.max()) / 2))
        ledger = planned(sampling, schedule.noise_multiplier)
        return cls(budget, sampling, schedule, Truncated().certify(ledger, budget))

    @property
    def private(self) -> bool:
        """Whether anything is promised: false of `without_privacy` only."""
        return math.isfinite(self.budget.epsilon)

    @property
    def steps(self) -> int:
        """Number of steps T."""
        return self.schedule.steps

    @property
    def noise_multiplier(self) -> Float[np.ndarray, " steps"]:
        """z_t, one a step."""
        return self.schedule.noise_multiplier

    @property
    def clip_norm(self) -> Float[np.ndarray, " steps"]:
        """C_t, one a step."""
        return self.schedule.clip_norm

    @property
    def batch_size(self) -> Float[np.ndarray, " steps"]:
        """B_t, the expected batch size, one a step: what each noisy sum is divided by."""
        return self.sampling.sizes(self.steps)

    @property
    def ledger(self) -> Ledger:
        """What the whole run will release."""
        return planned(self.sampling, self.noise_multiplier)

    @property
    def kind(self) -> Literal["plan"]:
        """The fixed form of an `Agreement`."""
        return "plan"

    @property
    def planned(self) -> Ledger:
        """What the whole run will release, as `ledger`."""
        return self.ledger

    @property
    def decided(self) -> str:
        """When noise and clipping were decided."""
        return "before the start"

    def price(self, judge: Accountant) -> Guarantee:
        """What ``judge`` certifies of the whole run, whatever `guarantee` says."""
        return Truncated(judge).certify(self.ledger, self.budget)

    def covered(self, ledger: Ledger) -> Ledger:
        """``ledger``, or the whole plan's if the run ended early: when to end may have depended on the releases."""
        return ledger if ledger.steps == self.steps else self.ledger

    def allows(self, position: int, release: Release) -> bool:
        """Whether ``release`` is the plan's at ``position``, from 0."""
        if position >= self.steps:
            return False
        return release == self.sampling.at(position).release(float(self.noise_multiplier[position]))

    def begins(self, ledger: Ledger) -> bool:
        """Whether ``ledger`` is the beginning of the plan's."""
        return len(ledger) <= self.steps and ledger == self.ledger.first(len(ledger))

    def check(self, ledger: Ledger, guarantee: Guarantee) -> None:
        """Refuse a ledger that is not the beginning of the plan's, and a guarantee of another delta or unit, or below
        what is known of the true epsilon; `confirm` judges it again."""
        if not self.begins(ledger):
            raise AccountingError(f"the ledger must be the beginning of its plan's, got {ledger}")
        if guarantee.delta != self.budget.delta or guarantee.protected != self.budget.protected:
            raise AccountingError(
                f"the guarantee must have delta and unit of its plan's budget, got {guarantee} for {self.budget}"
            )
        if guarantee.epsilon < (self.guarantee.epsilon_lower or 0.0):
            raise AccountingError(
                f"the guarantee must not be below the true epsilon, which is at least "
                f"{self.guarantee.epsilon_lower:.6g} by the plan, got epsilon={guarantee.epsilon:.6g}"
            )

    def replay(self, ledger: Ledger) -> None:
        """No filter: the noise was fixed before."""
        del ledger

    def clip_norms(self, decided: Sequence[float], steps: int) -> list[float]:
        """C_t of the first ``steps`` steps, from the schedule; where they followed the gradients, ``decided``."""
        if decided and len(decided) != steps:
            raise InvalidValue(
                f"clip_norm must have one number a step taken, got {len(decided)} for {steps} steps"
            )
        return list(decided) if decided else self.clip_norm[:steps].tolist()

    def taken(self, steps: int) -> str:
        """Nothing to add if all steps were taken."""
        return "" if steps == self.steps else f" of {self.steps} planned, which the guarantee covers"

    def confirm(self, ledger: Ledger, guarantee: Guarantee | None = None) -> Iterator[str]:
        """The plan's numbers again, here and by an independent library; the plan's, whatever ``ledger`` has of them.
        What a run says of itself is held against them too."""
        del ledger
        again = self.price(Pld())
        lower, upper = again.epsilon_lower or 0.0, rounded(again.epsilon, "up", 6)
        cut = self.sampling.max_batch_size is not None
        yield f"{again.accountant} again: epsilon " + (
            f"at most {upper}" if cut else f"in [{rounded(lower, 'down', 6)}, {upper}]"
        )
        for whose, given in self._said(guarantee):  # before the other library, which takes its time
            _check_least(whose, given, max(lower, least_epsilon(self.ledger, given) if cut else 0.0))
        yield from self.held_up(again, guarantee)
        opinion = self.verify()
        yield str(opinion)
        for whose, given in self._said(guarantee):
            _check_least(whose, given, opinion.lower)

    def held_up(self, certified: Guarantee, guarantee: Guarantee | None = None) -> list[str]:
        """The plan's guarantee, and what a run says of itself, against ``certified``, what `price` has of the exact
        accountant, and against the word of the accountants that they name.

        Raises:
            AccountingError: an epsilon is below what is certified and is not called an estimate, or below its own
                accountant's; a lower end is above what is certified; a guarantee is called what it is not.
        """
        lines: list[str] = []
        for whose, given in self._said(guarantee):
            judge = accountant_named(given.accountant)
            if judge is None or given.kind != "estimate":
                _check_least(whose, given, certified.epsilon_lower or 0.0)
            if (given.epsilon_lower or 0.0) > certified.epsilon:
                raise AccountingError(
                    f"{whose}'s lower end must not be above the true epsilon, which is at most "
                    f"{certified.epsilon:.6g}, got epsilon_lower={given.epsilon_lower:.6g}"
                )
            if judge is None:
                lines.append(
                    f"{given.accountant} is no accountant of this package: {whose}'s guarantee was not asked of it "
                    "again"
                )
                continue
            known = given.accountant == certified.accountant
            again = certified if known else self.price(judge)
            check_word(whose, given, again)
            if not known:
                lines.append(f"{again.accountant} again: {again}")
        return lines

    def _said(self, guarantee: Guarantee | None) -> list[tuple[str, Guarantee]]:
        """Whose guarantee says what."""
        own = [("a plan", self.guarantee)]
        return own if guarantee is None or guarantee == self.guarantee else [*own, ("a run", guarantee)]

    def gap(self, ledger: Ledger) -> str:
        """Nothing was decided on the way."""
        del ledger
        return ""

    @property
    def sha256(self) -> str:
        """SHA-256 of the plan's file, as ``sha256sum`` prints it: two plans with the same are the same."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def __str__(self) -> str:
        z, c = _span(self.noise_multiplier), _span(self.clip_norm)
        b = f" · B {_span(self.batch_size)}" if isinstance(self.sampling, BatchSchedule) else ""
        cap = self.sampling.max_batch_size
        b += "" if cap is None else f" · at most {cap} a batch"
        return f"{self.guarantee.promise} · z {z} · C {c}{b} · {self.steps} steps"

    def describe(self) -> str:
        """The plan in a few lines of words, for people.

        >>> print(Plan.from_json(_EXAMPLE).describe())  # doctest: +ELLIPSIS
        Promise    (1, 1e-05)-DP for adding or removing one example
        Certified  (0.99, 1e-05)-DP an example, Pld upper bound
        Sampling   each of 1000 examples with probability 0.01 a step (10 expected a batch)
        Steps      2
        Noise      z_t 2 -> 1 (multiplier); z_t C_t 2 -> 0.5 on the sum; 0.2 -> 0.05 on the mean
        Clipping   C_t 1 -> 0.5
        """
        sampling, noise = self.sampling, self.schedule.noise_std
        epsilon, delta = (rounded(part, "up", 6) for part in (self.budget.epsilon, self.budget.delta))
        unit = row_of(self.budget)
        rows = [
            (
                "Promise",
                f"({epsilon}, {delta})-DP for adding or removing one {self.budget.protected}"
                if self.private
                else "none: there is NO PRIVACY without noise",
            ),
            *self._large_delta(),
            ("Certified", str(self.guarantee)),
            ("Sampling", f"each of {sampling.dataset_size} {unit}s {self._drawn()}"),
            *self._cut(),
            ("Steps", str(self.steps)),
            (
                "Noise",
                f"z_t {_span(self.noise_multiplier)} (multiplier); z_t C_t {_span(noise)} on the sum; "
                f"{_span(noise / self.batch_size)} on the mean",
            ),
            ("Clipping", f"C_t {_span(self.clip_norm)}"),
        ]
        return "\n".join(f"{name:<11}{text}" for name, text in rows)

    def _drawn(self) -> str:
        size = f"({_span(self.batch_size, 6)} expected a batch)"
        if isinstance(self.sampling, RandomAllocation):
            return f"once an epoch of {self.sampling.steps_per_epoch} steps, in one drawn evenly {size}"
        return f"with probability {_span(self.sampling.rates(self.steps), 6)} a step {size}"

    def _large_delta(self) -> list[tuple[str, str]]:
        """A mechanism that lays a record open with probability delta keeps the promise."""
        times = self.budget.delta * self.sampling.dataset_size
        many = f"times the {self.sampling.dataset_size} {row_of(self.budget)}s is {rounded(times, 'up', 3)}"
        told = f"{many}: some may be laid open, and it should be well below 1"
        return [("Delta", told)] if self.private and times >= 1 else []

    def _cut(self) -> list[tuple[str, str]]:
        cap = self.sampling.max_batch_size
        if cap is None:
            return []
        share = spent_on_the_cap(self.ledger, self.guarantee) / self.guarantee.delta if self.private else 0.0
        cost = (
            f"costs {rounded(share, 'up', 2)} of delta" if self.private else "no privacy to pay for it with"
        )
        return [("Cut", f"to {cap} of a batch that has more, by an even choice: {cost}")]

    def verify(self, *, values: int = 16) -> Verification:
        """Judge this plan's releases again with an independent library (dp-accounting), between two roundings; of
        records that take part once an epoch, which it does not judge, a closed form gives the lower end alone.

        Args:
            values: noise multipliers are rounded down, and up, onto this many values, because that library needs
                about half a second for each; more of them, closer ends.

        Returns:
            The two ends, and whether the guarantee is consistent with them.
        """
        return verify_epsilon(self.ledger, self.guarantee, values=values)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON, all or nothing: a crash leaves the old file or none, never half of one."""
        try:
            write_whole(Path(path), self.to_json())
        except (OSError, ValueError) as error:  # the latter: a name that no file can have
            raise InvalidValue(
                f"path must be a file that can be written, got path={str(path)!r} ({error})"
            ) from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Plan":
        """Read a plan that `save` wrote.

        Raises:
            FileRefused: damaged, foreign, newer, or with a key or value that does not belong.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise FileRefused(f"{path} must be a plan file, got bytes that are not text") from None
        except (OSError, ValueError) as error:
            raise FileRefused(f"{path} must be a readable plan file, got: {error}") from None
        return cls.from_json(text, source=str(path))

    def to_json(self) -> str:
        """The plan as text; `from_json` gives an equal plan, bit for bit."""
        if not self.private:
            return self._bare_json()
        guarantee, budget = self.guarantee, self.budget
        each = budget.examples_per_person
        several = {"examples_per_person": each} if each > 1 else {}
        body: dict[str, Any] = {
            "format": FORMAT,
            "version": PERSON_VERSION if several else _version(self.sampling),
            "budget": {
                "epsilon": budget.epsilon, "delta": budget.delta, "unit": budget.unit.value, **several,
            },
            "sampling": _written(self.sampling),
            "schedule": {
                "noise_multiplier": self.noise_multiplier.tolist(),
                "clip_norm": self.clip_norm.tolist(),
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
        return sealed.seal(body) + "\n"

    def _bare_json(self) -> str:
        clips = [clip if math.isfinite(clip) else None for clip in self.clip_norm.tolist()]
        body: dict[str, Any] = {
            "format": FORMAT,
            "version": BARE_VERSION,
            "privacy": "none",
            "sampling": _written(self.sampling),
            "clip_norm": clips,
        }
        return sealed.seal(body) + "\n"

    @classmethod
    def _from_bare(cls, body: Mapping[str, Any]) -> "Plan":
        if body["privacy"] != "none":
            raise InvalidValue(f'privacy must be "none", got {body["privacy"]!r}')
        free = [clip is None for clip in body["clip_norm"]]
        clips = check_array(
            "clip_norm", [1.0 if clip is None else clip for clip in body["clip_norm"]], above=0
        )
        return cls._bare(_read(body["sampling"]), np.where(free, math.inf, clips))

    @classmethod
    def from_json(cls, text: str, *, source: str = "the text") -> "Plan":
        """A plan from `to_json`'s text; ``source`` names it in errors."""
        versions = VERSION, MOVING_VERSION, CUT_VERSION, PERSON_VERSION, ALLOCATED_VERSION
        keys = dict.fromkeys(versions, _KEYS[""]) | {BARE_VERSION: _BARE_KEYS}
        body = sealed.opened(text, source, FORMAT, *sorted(keys), keys=keys)
        if body["version"] == BARE_VERSION:
            try:
                return cls._from_bare(body)
            except (DecrescendoError, TypeError, ValueError) as error:
                raise FileRefused(f"{source} holds a value that no plan has: {error}") from None
        for section in ("budget", "sampling", "schedule", "guarantee"):
            if not isinstance(body[section], dict):
                raise FileRefused(f'{source} must have an object under "{section}", got {body[section]!r}')
            _check_keys(body[section], section, source, body["version"])
        try:
            sampling = _read(body["sampling"])
            if body["version"] == PERSON_VERSION:
                each = check_integer("examples_per_person", body["budget"]["examples_per_person"], at_least=2)
                check_person(each, sampling)
            elif _version(sampling) != body["version"]:
                raise InvalidValue(f"the sampling must be one of version {body['version']}, got {sampling}")
            return cls(
                Budget(**_with_unit(body["budget"])),
                sampling,
                Schedule(**body["schedule"]),
                Guarantee(**_with_unit(body["guarantee"])),
            )
        except (DecrescendoError, TypeError) as error:
            raise FileRefused(f"{source} holds a value that no plan has: {error}") from None


def _with_unit(section: Mapping[str, Any]) -> dict[str, Any]:
    return {**section, "unit": check_unit(section["unit"])}


def row_of(promise: Budget | Guarantee) -> Unit:
    """What a row is, of those that are drawn and clipped: of people with several examples, an example."""
    return Unit.EXAMPLE if promise.examples_per_person > 1 else promise.unit


def _check_keys(found: Mapping[str, Any], section: str, source: str, version: int) -> None:
    where = f' under "{section}"' if section else ""
    keys = _KEYS[section]
    if version == PERSON_VERSION and section in ("budget", "guarantee"):
        keys = keys | _OF_PEOPLE
    if version == ALLOCATED_VERSION and section == "sampling":
        keys = {"dataset_size", "steps_per_epoch"}
    unknown, missing = set(found) - keys - {"max_batch_size"}, keys - set(found)
    if unknown or missing:
        what = f"unknown key {min(unknown)!r}" if unknown else f"no key {min(missing)!r}"
        raise FileRefused(f"{source} must have exactly the keys of a plan{where}, got {what}")


def _written(sampling: Sampling) -> dict[str, Any]:
    cap = sampling.max_batch_size
    cut = {} if cap is None else {"max_batch_size": cap}
    if isinstance(sampling, RandomAllocation):
        return {
            "dataset_size": sampling.dataset_size, "steps_per_epoch": sampling.steps_per_epoch, **cut,
        }  # fmt: skip
    moving = isinstance(sampling, BatchSchedule)
    sizes = sampling.expected_batch_size.tolist() if moving else sampling.expected_batch_size
    return {"dataset_size": sampling.dataset_size, "expected_batch_size": sizes, **cut}


def _read(section: Mapping[str, Any]) -> Sampling:
    moving = isinstance(section.get("expected_batch_size"), list)
    form = RandomAllocation if "steps_per_epoch" in section else BatchSchedule if moving else PoissonSampling
    sampling = form(**section)
    if _written(sampling) != section:
        raise InvalidValue(f"the sampling must be as it is written, got {section!r:.80}")
    return sampling


def _version(sampling: Sampling) -> int:
    if isinstance(sampling, RandomAllocation):
        return ALLOCATED_VERSION
    if sampling.max_batch_size is not None:
        return CUT_VERSION
    return MOVING_VERSION if isinstance(sampling, BatchSchedule) else VERSION


def _check_least(whose: str, given: Guarantee, proved: float) -> None:
    if given.epsilon < proved:
        raise AccountingError(
            f"{whose}'s guarantee must not be below the true epsilon, which is at least {proved:.6g}, got "
            f"epsilon={given.epsilon:.6g}. Calibrate again"
        )


def _span(values: Float[np.ndarray, " steps"], digits: int = 4) -> str:
    first, last, low, high = values[0], values[-1], values.min(), values.max()
    if low == high:
        return f"{first:.{digits}g}"
    monotone = {first, last} == {low, high}
    ends = f"{first:.{digits}g} -> {last:.{digits}g}"
    return ends if monotone else f"{ends} (from {low:.{digits}g} to {high:.{digits}g})"


_EXAMPLE = Plan(
    Budget(1.0, 1e-5),
    PoissonSampling(1_000, 10),
    Schedule([2.0, 1.0], [1.0, 0.5]),
    Guarantee(0.99, 1e-5, Budget(1, 0.5).unit, "Pld", "upper"),
).to_json()
