"""What an audit found, as one value: small enough for a privacy statement, with everything its words rest on."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from decrescendo.accounting.budget import rounded
from decrescendo.base import strict_json
from decrescendo.base.whole_file import read_whole
from decrescendo.errors import FileRefused, InvalidValue, check_instance, check_integer, check_real

Method = Literal["one run", "many runs"]
FORMAT, VERSION = "decrescendo-audit", 1


@dataclass(frozen=True, slots=True)
class AuditResult:
    """Lower bounds on epsilon by attacking a training, beside the epsilon that is certified.

    All statements hold together with ``confidence``: each of the tests made has its part of what is left to one.

    Args:
        method: "one run" with many canaries, or "many runs" with and without one record.
        attack: which canaries, or which data set.
        certified: epsilon of the plan, an upper bound by its accountant; of a plan that holds an estimate alone, what
            `accounting.Pld` says of its ledger.
        delta: at which both ends are.
        confidence: in (0, 1): a training that does what its plan says is called broken with probability at most
            1 - confidence.
        runs: trainings.
        canaries: canaries in a run.
        lower: epsilon is at least this, from nothing but (epsilon, delta)-DP (and, for many runs, that runs are
            independent).
        lower_by_curve: epsilon is at least this if the releases are those of the plan with more or less noise: see
            `audit.PrivacyCurve`. In one run it also takes the canaries for independent, which they are where noise is.
        counts: what was counted, by name: guesses and right ones, errors and trials.
        noise_p_value: of noise as large as was declared, on weights that no record touches; ``None`` if not looked at.
        tests: how many tests share 1 - confidence.
        plan_sha256: `Plan.sha256` of the plan that was audited; empty if that was not written down.
        store: the ledger that the runs were reserved in, and in which run; empty: none.

    >>> result = AuditResult(
    ...     "many runs", "one canary", 1.0, 1e-5, 0.95, 400, 1, 0.62, 0.91, {"present": 100, "absent": 100}, None, 2
    ... )
    >>> result.verdict, AuditResult.from_json(result.to_json()) == result
    ('nothing found', True)
    """

    method: Method
    attack: str
    certified: float
    delta: float
    confidence: float
    runs: int
    canaries: int
    lower: float
    lower_by_curve: float
    counts: dict[str, int]
    noise_p_value: float | None = None
    tests: int = 1
    plan_sha256: str = ""
    store: str = ""

    def __post_init__(self) -> None:
        if self.method not in ("one run", "many runs"):
            raise InvalidValue(f'method must be "one run" or "many runs", got {self.method!r}')
        for name in ("certified", "lower", "lower_by_curve"):
            check_real(name, getattr(self, name), at_least=0)
        check_real("delta", self.delta, above=0, below=1)
        check_real("confidence", self.confidence, above=0, below=1)
        for name in ("plan_sha256", "store"):
            check_instance(name, getattr(self, name), str)
        for name in ("runs", "canaries", "tests"):
            check_integer(name, getattr(self, name), at_least=1)
        if self.noise_p_value is not None:
            check_real("noise_p_value", self.noise_p_value, at_least=0, at_most=1)

    @property
    def caught_by(self) -> tuple[str, ...]:
        """Which tests contradict the plan."""
        noise = self.noise_p_value
        found = {
            "bound": self.lower > self.certified,
            "curve": self.lower_by_curve > self.certified,
            "noise": noise is not None and noise < (1 - self.confidence) / self.tests,
        }
        return tuple(name for name, caught in found.items() if caught)

    @property
    def verdict(self) -> Literal["nothing found", "broken"]:
        """ "broken" if a test contradicts the plan. The other word proves nothing: an attack may be weak."""
        return "broken" if self.caught_by else "nothing found"

    def describe(self) -> str:
        """The result in a few lines, and how to read it."""
        promised = rounded(self.certified, "up")
        lines = [
            f"Attack     {self.attack}; {self.method}: {self.runs} trained, {self.canaries} canaries each",
            f"Certified  epsilon <= {promised} at delta {rounded(self.delta, 'up')}",
            f"Attacked   epsilon >= {rounded(self.lower, 'down', 3)} from (epsilon, delta)-DP alone, "
            f"epsilon >= {rounded(self.lower_by_curve, 'down', 3)} if only the amount of noise is in doubt",
            "Counted    " + ", ".join(f"{name} {count}" for name, count in self.counts.items()),
        ]
        if self.noise_p_value is not None:
            lines.append(f"Noise      p = {self.noise_p_value:.3g} for noise of the declared size")
        if self.caught_by:
            lines.append(
                f"Verdict    BROKEN ({', '.join(self.caught_by)}), with confidence {self.confidence:g}: "
                "the training spends more than was certified, or other noise than was declared. An honest training is "
                f"called so in at most {100 * (1 - self.confidence):.2g} % of its audits: repeat it with another seed"
            )
        else:
            lines.append(
                f"Verdict    nothing found, with confidence {self.confidence:g}: the certified value stands. A low "
                "bound says that this attack is weak, not that the training is more private than certified"
            )
        return "\n".join(lines)

    def facts(self) -> dict[str, Any]:
        """As plain values, the verdict included: for a privacy statement."""
        return asdict(self) | {"verdict": self.verdict, "caught_by": list(self.caught_by)}

    def to_json(self) -> str:
        """One JSON object; `from_json` reads it."""
        return json.dumps({"format": FORMAT, "version": VERSION} | self.facts(), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> "AuditResult":
        """The result that `to_json` wrote.

        Raises:
            FileRefused: something else.
        """
        try:
            body = strict_json.loads(text)
            if not isinstance(body, dict):
                raise ValueError("no object")
            if body.pop("format") != FORMAT or body.pop("version") != VERSION:
                raise ValueError("another format or version")
            said = body.pop("verdict"), tuple(body.pop("caught_by"))
            result = cls(**body)
            if said != (result.verdict, result.caught_by):
                raise ValueError("its verdict does not follow from its numbers")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileRefused(f"the text must be an audit's result, got something else: {error}") from None
        return result

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "AuditResult":
        """The result in a file.

        Raises:
            FileRefused: it cannot be read, or is something else.
        """
        try:
            return cls.from_json(read_whole(Path(path)))
        except FileRefused as error:
            raise FileRefused(f"{os.fspath(path)}: {error}") from None
