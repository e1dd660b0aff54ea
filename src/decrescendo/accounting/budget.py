"""What is promised (`Budget`), what was proved (`Guarantee`), and what an accountant says (`Bound`)."""

import math
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from enum import StrEnum
from typing import Any, Literal, final

from decrescendo.errors import InvalidValue, check_instance, check_integer, check_real

Kind = Literal["upper", "lower", "exact", "estimate"]
WORDS: dict[Kind, str] = {
    "upper": "upper bound",
    "lower": "lower bound",
    "exact": "exact",
    "estimate": "estimate, not a bound",
}


class Unit(StrEnum):
    """The unit of privacy: neighbouring data sets differ by adding or removing one of these.

    >>> Unit("client") is Unit.CLIENT
    True
    """

    EXAMPLE = "example"
    CLIENT = "client"
    PERSON = "person"


# Of delta: for smaller ones the noise that is found is larger than it must be, or none is.
_SMALLEST = 1e-100


@final
@dataclass(frozen=True, slots=True)
class Budget:
    """The (epsilon, delta) promised for a whole run, for adding or removing one ``unit``.

    Args:
        epsilon: > 0, finite.
        delta: in [1e-100, 1); usually well below one over the number of units.
        unit: whose presence is hidden.
        examples_per_person: of `Unit.PERSON`, the most examples that one person has, >= 1: a person comes and goes with
            all of them. A public, declared number, which training holds its data against.

    Raises:
        InvalidValue: a number outside its range; several examples of anything but a person.

    >>> Budget(epsilon=1.2, delta=1e-6)
    Budget(epsilon=1.2, delta=1e-06, unit=<Unit.EXAMPLE: 'example'>, examples_per_person=1)
    """

    epsilon: float
    delta: float
    unit: Unit = Unit.EXAMPLE
    examples_per_person: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_real("epsilon", self.epsilon, above=0, hint=_endless(self.epsilon)))
        object.__setattr__(self, "delta", check_real("delta", self.delta, above=0, below=1))
        if self.delta < _SMALLEST:
            raise InvalidValue(
                f"delta must be >= {_SMALLEST:g}, got delta={self.delta:g}. No search for a noise ends there"
            )
        object.__setattr__(self, "unit", check_unit(self.unit))
        object.__setattr__(self, "examples_per_person", _examples(self.examples_per_person, self.unit))

    @property
    def protected(self) -> str:
        """Whose presence is hidden, in words.

        >>> Budget(1.0, 1e-5, Unit.PERSON, 3).protected
        'person with at most 3 examples'
        """
        return _protected(self.unit, self.examples_per_person)

    @classmethod
    def unlimited(cls, delta: float) -> "Budget":
        """No budget at all, epsilon infinite: of plans without privacy, and refused wherever something is promised.

        >>> Budget.unlimited(1e-6).epsilon
        inf
        """
        budget = cls(1.0, delta)
        object.__setattr__(budget, "epsilon", math.inf)
        return budget


def _endless(epsilon: object) -> str:
    endless = isinstance(epsilon, float) and epsilon == math.inf
    return "To train without privacy make a plan with Plan.without_privacy, which needs no budget" if endless else ""


def check_budget(budget: object) -> None:
    """``budget`` is a `Budget` that something can be kept within, or an error.

    >>> check_budget(Budget.unlimited(1e-6))
    Traceback (most recent call last):
    decrescendo.errors.InvalidValue: budget must have a finite epsilon, got no limit. Training without privacy needs no
    calibration: see Plan.without_privacy
    """
    if isinstance(budget, Budget) and math.isinf(budget.epsilon):
        raise InvalidValue(
            "budget must have a finite epsilon, got no limit. Training without privacy needs no calibration: "
            "see Plan.without_privacy"
        )
    check_instance("budget", budget, Budget)


def check_one_example(budget: Budget, what: str) -> None:
    """``budget`` is not for people with several examples, or a refusal by ``what``, which accounts one.

    >>> check_one_example(Budget(1.0, 1e-5, Unit.PERSON, 3), "a filter")
    Traceback (most recent call last):
    decrescendo.errors.InvalidValue: a filter must protect one example, got a person with at most 3 examples. ...
    """
    if budget.examples_per_person > 1:
        raise InvalidValue(
            f"{what} must protect one example, got a {budget.protected}. Calibrate a plan by Pld, with bands=1 and "
            "no workload, or make each row one person with all that they have"
        )


@dataclass(frozen=True, slots=True)
class Bound:
    """A number with its kind: an upper or lower bound, an exact value, or only an estimate.

    >>> Bound(1.2, "upper")
    Bound(value=1.2, kind='upper')
    >>> print(Bound(0.6, "estimate"))
    0.6 (estimate, not a bound)
    """

    value: float
    kind: Kind

    def __post_init__(self) -> None:
        if self.kind not in tuple(WORDS):
            raise InvalidValue(f"kind must be one of {', '.join(WORDS)}, got kind={self.kind!r}")

    def shown(self, digits: int = 6) -> str:
        """The value, an upper bound rounded up and a lower one down.

        >>> Bound(0.12345, "upper").shown(2), Bound(0.12345, "estimate").shown(2)
        ('0.13', '0.12')
        """
        if self.kind in ("upper", "lower"):
            return rounded(self.value, "up" if self.kind == "upper" else "down", digits)
        return f"{self.value:.{digits}g}"

    def __str__(self) -> str:
        return f"{self.shown()} ({WORDS[self.kind]})"


@final
@dataclass(frozen=True, slots=True)
class Guarantee:
    """The result of an accountant for a whole ledger: the epsilon at ``delta``, its kind, and the accountant's name.

    Args:
        epsilon: what the run spends at ``delta``; an upper bound or exact value unless ``kind`` is "estimate". Infinite
            for a ledger that protects nothing; words then say so.
        delta: in (0, 1).
        unit: whose presence is hidden.
        accountant: the accountant's name.
        kind: "upper", "exact" or "estimate".
        epsilon_lower: the certified lower end where the accountant gives one: the true epsilon lies in
            [epsilon_lower, epsilon]. ``None`` where it does not.
        examples_per_person: as the budget's.

    >>> print(Guarantee(1.199, 1e-6, Unit.EXAMPLE, "Pld", "upper", 1.1985))
    (1.199, 1e-06)-DP per example, Pld upper bound (true epsilon >= 1.198)
    >>> print(Guarantee(1.199, 1e-6, Unit.PERSON, "Pld", "upper", None, 3))
    (1.199, 1e-06)-DP per person with at most 3 examples, Pld upper bound
    >>> print(Guarantee(1.0, 1.23449e-6, Unit.EXAMPLE, "Pld", "upper"))
    (1, 1.235e-06)-DP per example, Pld upper bound
    >>> print(Guarantee(math.inf, 1e-6, Unit.EXAMPLE, "Pld", "upper"))
    NO PRIVACY for an example: epsilon is infinite at delta 1e-06, says Pld
    """

    epsilon: float
    delta: float
    unit: Unit
    accountant: str
    kind: Kind
    epsilon_lower: float | None = None
    examples_per_person: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _spent("epsilon", self.epsilon))
        object.__setattr__(self, "delta", check_real("delta", self.delta, above=0, below=1))
        object.__setattr__(self, "unit", check_unit(self.unit))
        check_instance("accountant", self.accountant, str)
        if not self.accountant or not self.accountant.isprintable():
            raise InvalidValue(f"accountant must be a name on one line, got accountant={self.accountant!r}")
        if self.kind not in ("upper", "exact", "estimate"):
            raise InvalidValue(f"kind must be upper, exact or estimate, got kind={self.kind!r}")
        if self.epsilon_lower is not None:
            lower = _spent("epsilon_lower", self.epsilon_lower, at_most=self.epsilon)
            object.__setattr__(self, "epsilon_lower", lower)
        object.__setattr__(self, "examples_per_person", _examples(self.examples_per_person, self.unit))

    @property
    def protected(self) -> str:
        """Whose presence is hidden, in words."""
        return _protected(self.unit, self.examples_per_person)

    @property
    def promise(self) -> str:
        """The guarantee in a phrase, without its lower end."""
        if math.isinf(self.epsilon):
            article = "an" if self.unit is Unit.EXAMPLE else "a"
            return (
                f"NO PRIVACY for {article} {self.protected}: epsilon is infinite at delta {self.delta:.4g}, "
                f"says {self.accountant}"
            )
        words = {"upper": "upper bound", "exact": "exact", "estimate": "estimate, NOT a bound"}[self.kind]
        spent = f"({rounded(self.epsilon, 'up')}, {rounded(self.delta, 'up')})-DP per {self.protected}"
        return f"{spent}, {self.accountant} {words}"

    def __str__(self) -> str:
        if self.epsilon_lower is None or math.isinf(self.epsilon):
            return self.promise
        return f"{self.promise} (true epsilon >= {rounded(self.epsilon_lower, 'down')})"


def rounded(value: float, direction: Literal["up", "down"], digits: int = 4) -> str:
    """Significant digits on the safe side: an upper bound is never shown too small, a lower one never too large.

    >>> rounded(1.19961, "down"), rounded(1.19961, "up"), rounded(0.40001, "up")
    ('1.199', '1.2', '0.4001')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    exact = Decimal(repr(float(value)))
    unit = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    mode = ROUND_CEILING if direction == "up" else ROUND_FLOOR
    return f"{float((exact / unit).to_integral_value(rounding=mode) * unit):.10g}"


def _spent(name: str, value: object, *, at_most: float = math.inf) -> float:
    """An epsilon from 0 to ``at_most``, infinity among them."""
    if isinstance(value, float) and value == math.inf == at_most:
        return value
    return check_real(name, value, at_least=0, at_most=None if at_most == math.inf else at_most)


def check_unit(value: object) -> Unit:
    """A `Unit` from itself or its name."""
    try:
        return Unit(value)  # type: ignore[arg-type]
    except ValueError:
        names = ", ".join(unit.value for unit in Unit)
        raise InvalidValue(f"unit must be one of {names}, got unit={value!r}") from None


def _examples(value: object, unit: Unit) -> int:
    count = check_integer("examples_per_person", value, at_least=1)
    if count > 1 and unit is not Unit.PERSON:
        raise InvalidValue(
            f"examples_per_person must be 1 unless the unit is a person, got {count} for unit={unit}. Say Unit.PERSON"
        )
    return count


def _protected(unit: Unit, examples: int) -> str:
    return f"{unit} with at most {examples} examples" if examples > 1 else str(unit)


def row_of(promise: Budget | Guarantee) -> Unit:
    """What a row is, of those that are drawn and clipped: of people with several examples, an example."""
    return Unit.EXAMPLE if promise.examples_per_person > 1 else promise.unit


def guarantee_facts(guarantee: Guarantee) -> dict[str, Any]:
    """A guarantee for JSON, which has no infinity: what protects nothing has epsilon null."""
    facts = {**asdict(guarantee), "unit": str(guarantee.unit)}
    if guarantee.examples_per_person == 1:
        del facts["examples_per_person"]
    return facts | dict.fromkeys(("epsilon", "epsilon_lower")) if math.isinf(guarantee.epsilon) else facts
