"""What the doctor says: findings, how sure each is, and a page of them."""

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum

from decrescendo.base.markdown import table


class Certainty(StrEnum):
    """How a finding is known."""

    PROVEN = "proven by a run"
    RECOMPUTED = "recomputed"
    SUSPECTED = "suspected"


_RANK = {Certainty.PROVEN: 0, Certainty.RECOMPUTED: 1, Certainty.SUSPECTED: 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of a training.

    Args:
        check: what was checked, one of `CHECKS`.
        certainty: how it is known.
        says: what is wrong, a sentence.
        costs: what it costs, or what to do.
        file: where; empty if it is about no line.
        line: 1-based; 0 if it is about no line.
    """

    check: str
    certainty: Certainty
    says: str
    costs: str
    file: str = ""
    line: int = 0

    @property
    def where(self) -> str:
        """File and line, as editors read them.

        >>> Finding("seed", Certainty.SUSPECTED, "a", "b", "train.py", 3).where
        'train.py:3'
        """
        return f"{self.file}:{self.line}" if self.line else self.file


# Every check, and the question that it answers.
CHECKS = {
    "sampling": "Are batches drawn as the accountant assumes, and at its rate?",
    "rows": "Does each clipped gradient depend on its own record alone?",
    "sensitivity": "Is the noise as large as the noise multiplier says, for the sum that records can move?",
    "joint norm": "Is each record clipped by the norm of its whole gradient?",
    "noise": "Is there noise in every release, and enough of it to promise anything?",
    "schedule": "Was the noise that is used the noise that was calibrated?",
    "budget": "Does the epsilon that was asked for, or printed, hold for the history?",
    "delta": "Is delta below one over the number of records?",
    "denominator": "Is the noisy sum divided by a number that does not depend on the data?",
    "empty batch": "Is an empty batch a step with noise, as every other one?",
    "history": "Does the accountant see every step on the same data?",
    "bypass": "Are the weights moved by private steps alone?",
    "seed": "Can the noise be computed again by whoever knows the seed?",
    "beside": "Is something of the private data released beside the weights?",
    "selection": "Is a model or a setting chosen by scores on private data?",
    "unit": "Is what is protected (a row) what should be protected (a person)?",
}


# Of a run in which this was not checked, next to nothing was.
UNREACHED = "a step of the training: none was reached, so that most is read from the source alone"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings of the doctor for one training.

    Args:
        subject: the script, folder or checkpoint.
        findings: the surest first.
        facts: what was seen, a sentence each.
        unseen: what could not be checked, and why.
    """

    subject: str
    findings: tuple[Finding, ...]
    facts: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()

    def to_json(self) -> str:
        """All of it, as JSON."""
        return json.dumps(asdict(self), indent=1)

    def to_markdown(self) -> str:
        """A page to read.

        >>> print(Diagnosis("train.py", ()).to_markdown())
        # train.py
        <BLANKLINE>
        No fault was found. That shows no privacy: it says what the checks below did not see.
        """
        parts = [f"# {self.subject}"]
        if self.findings:
            rows = [[f.check, f.certainty.value, f.where, f.says, f.costs] for f in self.findings]
            parts.append(f"{len(self.findings)} found.")
            parts.append(table(["check", "how sure", "where", "what is wrong", "what it costs"], rows, "lllll"))
        else:
            parts.append("No fault was found. That shows no privacy: it says what the checks below did not see.")
        for title, lines in (("Observed", self.facts), ("Not checked", self.unseen)):
            if lines:
                parts.append("\n".join([f"## {title}", "", *(f"- {line}" for line in lines)]))
        return "\n\n".join(parts)

    def describe(self) -> str:
        """Lines for a terminal."""
        lines: list[str] = []
        for f in self.findings:
            lines += [
                f"{f.where or self.subject}: {f.check} ({f.certainty.value})",
                f"  {f.says}",
                f"  {f.costs}",
            ]
        lines += [f"seen: {fact}" for fact in self.facts] + [f"not checked: {reason}" for reason in self.unseen]
        found, left = len(self.findings), f", {len(self.unseen)} not checked (above)" * bool(self.unseen)
        return "\n".join([*lines, f"{found} fault{'s' * (found != 1)} found in {self.subject}{left}"])


def ordered(findings: Iterable[Finding], settled: Collection[str] = ()) -> tuple[Finding, ...]:
    """The surest first. A suspicion is left out where a run has spoken about its check: found something, or
    settled it. (Of what goes out beside the weights a run sees a part.)"""
    known = list(findings)
    spoken = {f.check for f in known if f.certainty is not Certainty.SUSPECTED} - {"beside"} | set(settled)
    kept = {
        # Two suspicions of one line about one check are one.
        (f.check, f.file, f.line) if f.certainty is Certainty.SUSPECTED else f: f
        for f in known
        if f.certainty is not Certainty.SUSPECTED or f.check not in spoken
    }.values()
    return tuple(sorted(dict.fromkeys(kept), key=lambda f: (_RANK[f.certainty], f.file, f.line, f.check)))
