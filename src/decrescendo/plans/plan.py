"""`Plan`: everything that is decided before a run starts, frozen, with its guarantee, as one small file."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from decrescendo.accounting.budget import Budget, Guarantee, check_unit
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.verify import Verification, verify_epsilon
from decrescendo.base import sealed
from decrescendo.base.whole_file import write_whole
from decrescendo.errors import DecrescendoError, FileRefused, InvalidValue, check_instance
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.plans.schedule import Schedule

FORMAT, VERSION = "decrescendo-plan", 1
_KEYS = {
    "": {"format", "version", "budget", "sampling", "schedule", "guarantee"},
    "budget": {"epsilon", "delta", "unit"},
    "sampling": {"dataset_size", "expected_batch_size"},
    "schedule": {"noise_multiplier", "clip_norm"},
    "guarantee": {"epsilon", "delta", "unit", "accountant", "kind", "epsilon_lower"},
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Budget, sampling, schedule and guarantee of one run. Every value in it is a public fact.

    Made by `calibrate`; taken by `train`, which runs exactly this schedule.

    Raises:
        InvalidValue: the guarantee exceeds the budget, or speaks of another delta or unit.

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
    sampling: PoissonSampling
    schedule: Schedule
    guarantee: Guarantee

    def __post_init__(self) -> None:
        for name, kind in (
            ("budget", Budget),
            ("sampling", PoissonSampling),
            ("schedule", Schedule),
            ("guarantee", Guarantee),
        ):
            check_instance(name, getattr(self, name), kind)
        if self.guarantee.epsilon > self.budget.epsilon:
            raise InvalidValue(
                f"a plan's guarantee must be within its budget, got epsilon={self.guarantee.epsilon:g} "
                f"over budget.epsilon={self.budget.epsilon:g}. Make plans with calibrate"
            )
        if self.guarantee.delta != self.budget.delta or self.guarantee.unit != self.budget.unit:
            raise InvalidValue(
                "a plan's guarantee must have the delta and unit of its budget, got "
                f"delta={self.guarantee.delta:g}, unit={self.guarantee.unit} for {self.budget}"
            )

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
    def ledger(self) -> Ledger:
        """What the whole run will release."""
        return Ledger.of(self.schedule.noise_multiplier, self.sampling.sample_rate)

    @property
    def sha256(self) -> str:
        """SHA-256 of the plan's file, as ``sha256sum`` prints it: two plans with the same are the same."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def __str__(self) -> str:
        z, c = _span(self.noise_multiplier), _span(self.clip_norm)
        return f"{self.guarantee.promise} · z {z} · C {c} · {self.steps} steps"

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
        unit = self.budget.unit
        rows = [
            (
                "Promise",
                f"({self.budget.epsilon:g}, {self.budget.delta:g})-DP for adding or removing one {unit}",
            ),
            ("Certified", str(self.guarantee)),
            (
                "Sampling",
                f"each of {sampling.dataset_size} {unit}s with probability {sampling.sample_rate:.6g} a step "
                f"({sampling.expected_batch_size:g} expected a batch)",
            ),
            ("Steps", str(self.steps)),
            (
                "Noise",
                f"z_t {_span(self.noise_multiplier)} (multiplier); z_t C_t {_span(noise)} on the sum; "
                f"{_span(noise / sampling.expected_batch_size)} on the mean",
            ),
            ("Clipping", f"C_t {_span(self.clip_norm)}"),
        ]
        return "\n".join(f"{name:<11}{text}" for name, text in rows)

    def verify(self, *, values: int = 24) -> Verification:
        """Judge this plan's releases again with an independent library (dp-accounting), between two roundings.

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
        guarantee, budget = self.guarantee, self.budget
        body: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "budget": {"epsilon": budget.epsilon, "delta": budget.delta, "unit": budget.unit.value},
            "sampling": {
                "dataset_size": self.sampling.dataset_size,
                "expected_batch_size": self.sampling.expected_batch_size,
            },
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
            },
        }
        return sealed.seal(body) + "\n"

    @classmethod
    def from_json(cls, text: str, *, source: str = "the text") -> "Plan":
        """A plan from `to_json`'s text; ``source`` names it in errors."""
        body = sealed.opened(text, source, FORMAT, VERSION, keys=_KEYS[""])
        for section in ("budget", "sampling", "schedule", "guarantee"):
            if not isinstance(body[section], dict):
                raise FileRefused(f'{source} must have an object under "{section}", got {body[section]!r}')
            _check_keys(body[section], section, source)
        try:
            return cls(
                Budget(**_with_unit(body["budget"])),
                PoissonSampling(**body["sampling"]),
                Schedule(**body["schedule"]),
                Guarantee(**_with_unit(body["guarantee"])),
            )
        except (DecrescendoError, TypeError) as error:
            raise FileRefused(f"{source} holds a value that no plan has: {error}") from None


def _with_unit(section: Mapping[str, Any]) -> dict[str, Any]:
    return {**section, "unit": check_unit(section["unit"])}


def _check_keys(found: Mapping[str, Any], section: str, source: str) -> None:
    where = f' under "{section}"' if section else ""
    unknown, missing = set(found) - _KEYS[section], _KEYS[section] - set(found)
    if unknown or missing:
        what = f"unknown key {min(unknown)!r}" if unknown else f"no key {min(missing)!r}"
        raise FileRefused(f"{source} must have exactly the keys of a plan{where}, got {what}")


def _span(values: Float[np.ndarray, " steps"]) -> str:
    first, last, low, high = values[0], values[-1], values.min(), values.max()
    if low == high:
        return f"{first:.4g}"
    monotone = {first, last} == {low, high}
    return f"{first:.4g} -> {last:.4g}" + ("" if monotone else f" (from {low:.4g} to {high:.4g})")


_EXAMPLE = Plan(
    Budget(1.0, 1e-5),
    PoissonSampling(1_000, 10),
    Schedule([2.0, 1.0], [1.0, 0.5]),
    Guarantee(0.99, 1e-5, Budget(1, 0.5).unit, "Pld", "upper"),
).to_json()
