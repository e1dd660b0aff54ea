"""The facts of a statement as Markdown for people."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from decrescendo.accounting.budget import rounded
from decrescendo.accounting.membership import percent
from decrescendo.base.assumption import Assumption, independence
from decrescendo.base.markdown import one_line, table

SHOWN = 11
LABELS = {
    "data": "Data",
    "person": "A person and the unit",
    "private_uses": "Other uses of the private data",
    "tuning": "Choice of settings",
    "public_data": "Public data",
    "released": "What is released",
    "other_releases": "Other releases from the same data",
    "groups": "Groups",
    "contact": "Contact",
}


def markdown(facts: Mapping[str, Any]) -> str:
    """The Markdown page of a statement's ``facts``."""
    facts = _on_lines(facts)
    parts = [
        "# Privacy statement",
        _headline(facts["promise"]),
        _promise(facts["promise"]),
        "## What that means",
        _reading(facts["reading"]),
        "## How it was accounted for",
        _accounting(facts["accounting"]),
        "## What was done",
        "\n".join(f"- {line}" for line in _mechanism(facts)),
        "## Schedule",
        _schedule(facts["schedule"]),
        *_spent(facts["spent"]),
        "## How it was run",
        "\n".join(f"- {line}" for line in _provenance(facts)),
        "## Audit",
        _audit(facts["audit"]),
        "## Declared by the owner of the data",
        "\n".join(f"- {LABELS[name]}: {text}" for name, text in facts["declared"].items()),
        "## Not covered",
        "\n".join(f"- {text}" for text in facts["not_covered"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _on_lines(value: Any) -> Any:
    """``value`` with each of its texts on one line: none can imitate another part of the page."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, Mapping):
        facts = cast("Mapping[Any, Any]", value)
        return {_on_lines(name): _on_lines(fact) for name, fact in facts.items()}
    if isinstance(value, (list, tuple)):
        return [_on_lines(fact) for fact in cast("Sequence[Any]", value)]
    return value


def _headline(promise: Mapping[str, Any]) -> str:
    if promise["epsilon"] is None:
        return (
            f"**NO PRIVACY for any {_whom(promise)}: epsilon is infinite.** The noise was zero, so the releases of "
            "this training may reveal everything about each of them."
        )
    words = {"upper": "an upper bound", "exact": "exact", "estimate": "AN ESTIMATE, NOT A BOUND"}[promise["kind"]]
    spent = f"({rounded(promise['epsilon'], 'up')}, {rounded(promise['delta'], 'up')})"
    return f"**{spent}-differential privacy for one {_whom(promise)}**, {words} by {promise['accountant']}."


def _whom(promise: Mapping[str, Any]) -> str:
    several = promise.get("examples_per_person")
    return promise["unit"] if several is None else f"{promise['unit']} with at most {several} examples"


def _counted(promise: Mapping[str, Any]) -> str:
    return "examples" if "examples_per_person" in promise else "units"


def _promise(promise: Mapping[str, Any]) -> str:
    lines = [
        f"Protected: {'nobody' if promise['epsilon'] is None else 'one ' + _whom(promise)}; {promise['neighbours']}.",
        f"It covers {promise['output']}.",
        _asked(promise),
        f"delta times the number of {_counted(promise)}: {promise['delta_times_units']:.3g} (should be well below 1).",
    ]
    if promise["epsilon_lower"] is not None:
        lines.insert(1, f"The true epsilon at this delta is at least {rounded(promise['epsilon_lower'], 'down')}.")
    return "\n".join(f"- {line}" for line in lines)


def _asked(promise: Mapping[str, Any]) -> str:
    epsilon = promise["asked_epsilon"]
    if epsilon is None:
        return "Promised before the start: nothing."
    by = promise.get("estimated_by")
    if by is not None:
        return f"Promised before the start: nothing. Epsilon {rounded(epsilon, 'up', 6)} was estimated, by {by}."
    return f"Promised before the start: epsilon {rounded(epsilon, 'up', 6)}."


def _reading(reading: Mapping[str, Any]) -> str:
    lines = [
        f"At a false-positive rate of {100 * float(alarms):g} %, any test of whether somebody took part "
        f"finds at most {percent(power)} % of those who did."
        for alarms, power in reading["power_at_false_alarms"].items()
    ]
    lines.append(
        "The true-positive rate of any such test exceeds its false-positive rate by at most "
        f"{percent(reading['advantage'])} percentage points."
    )
    lines.append(f"These numbers follow from {reading['by']}.")
    return "\n".join(f"- {line}" for line in lines)


def _accounting(accounting: Mapping[str, Any]) -> str:
    lines = [
        f"Accountant: {accounting['accountant']}, for {accounting['certified']}.",
        f"Assumed: {accounting['assumption']}.",
    ]
    if cut := accounting.get("cut"):
        lines.append(
            "Truncated batches: the probability that somebody is ever drawn into a batch that is full without them "
            f"is at most {rounded(cut['overflow'], 'up', 3)}, which costs {rounded(cut['delta'], 'up', 3)} of delta."
        )
    if accounting["error_budget"] is not None:
        lines.append(f"Width of the bracket: {100 * accounting['error_budget']:.2g} % of epsilon, on the safe side.")
    if accounting["gap"]:
        lines.append(f"{accounting['gap'][0].upper()}{accounting['gap'][1:]}.")
    if accounting["clt"] is not None:
        lines.append(
            f"The central limit theorem would say {accounting['clt']['epsilon']:.4g}: {accounting['clt']['kind']}."
        )
    return "\n".join(f"- {line}" for line in lines)


def _mechanism(facts: Mapping[str, Any]) -> list[str]:
    mechanism = facts["mechanism"]
    rate, size = mechanism["sample_rate"], mechanism["expected_batch_size"]
    each = "" if isinstance(rate, float) else ", one a step, which divides its sum"
    return [
        f"Sampling: {mechanism['sampling']}. Rate {_ends(rate, 6)}: "
        f"{_ends(size, 6)} of {mechanism['units']} {mechanism.get('row', facts['promise']['unit'])}s expected{each}.",
        f"Clipping: {mechanism['clipping']}.",
        f"Noise: {mechanism['noise']}.",
        *_beside(facts["provenance"]),
    ]


def _beside(provenance: Mapping[str, Any] | None) -> list[str]:
    told = provenance and provenance.get("telemetry")
    return (
        [f"Beside the gradients of each step, in one vector with them and under the same noise: {told}."]
        if told
        else []
    )


def _ends(value: float | list[float], digits: int) -> str:
    """The number; for one per step the first and the last, and the range if it is wider."""
    if not isinstance(value, list):
        return f"{value:.{digits}g}"
    if not value:
        return "that was never drawn"
    ends = f"{value[0]:.{digits}g} to {value[-1]:.{digits}g}"
    if {value[0], value[-1]} == {min(value), max(value)}:
        return ends
    return f"{ends} (between {min(value):.{digits}g} and {max(value):.{digits}g})"


def _schedule(schedule: Mapping[str, Any]) -> str:
    steps = schedule["steps_run"]
    head = (
        f"Decided {schedule['decided']}. {steps} of {schedule['steps_planned']} steps were run. "
        f"SHA-256 of what was decided: `{schedule['sha256']}`."
    )
    if not steps:
        return head
    count = min(steps, SHOWN)
    at = sorted({round(i * (steps - 1) / max(1, count - 1)) for i in range(count)})
    rows = [
        [
            str(step + 1), f"{schedule['noise_multiplier'][step]:.5g}", _clip(schedule["clip_norm"][step]),
            f"{schedule['noise_std_of_mean'][step]:.5g}",
        ]
        for step in at
    ]  # fmt: skip
    columns = ["step", "noise multiplier z_t", "clip norm C_t", "noise std of the mean"]
    return f"{head}\n\n{table(columns, rows, 'rrrr')}\n\nEvery step is in the JSON file."


def _clip(norm: float | None) -> str:
    return "none" if norm is None else f"{norm:.5g}"


def _spent(spent: list[dict[str, float]]) -> list[str]:
    if not spent:
        return []
    rows = [[str(point["step"]), rounded(point["epsilon"], "up")] for point in spent]
    return ["Epsilon of the first so many steps, upper ends:", table(["step", "epsilon"], rows, "rr")]


def _provenance(facts: Mapping[str, Any]) -> list[str]:
    lines = [f"Ended: {facts['ended']}."]
    if facts["provenance"] is None:
        lines.append("Nothing else was recorded.")
    else:
        provenance = facts["provenance"]
        random = {
            "secure": "unpredictable (a cipher keyed by the operating system), rounded to a public grid",
            "seeded": "from a SEED: anybody who knows it can repeat them",
        }
        resumed = ", ".join(str(step) for step in provenance["resumed"]) or "never"
        lines += [
            *_assumed(provenance["assumptions"], facts["mechanism"].get("row", facts["promise"]["unit"])),
            f"Random numbers: {random[provenance['random']]}.",
            f"Resumed after step: {resumed}."
            + " A repeated step has the same batch and the same noise, so it is the same release, and counts once."
            * all(assumption["code"] != "resumed-anew" for assumption in provenance["assumptions"] or ()),
            f"Trust: {provenance['trust'] or 'the person who runs the training sees the raw data.'}",
            f"Ledger of the data set: {provenance['account'] or 'none'}.",
            *(
                f"{name.capitalize()}: {provenance[name]}."
                for name in ("model", "optimizer", "device", "passes")
                if provenance.get(name)
            ),
        ]
    if facts["public_metrics"]:
        scores = ", ".join(f"{name} {value:.4g}" for name, value in facts["public_metrics"].items())
        lines.append(f"Scores on declared public data: {scores}.")
    if facts["versions"]:
        lines.append("Versions: " + ", ".join(f"{name} {v}" for name, v in facts["versions"].items()) + ".")
    return lines


def _assumed(facts: list[dict[str, str]], unit: str) -> list[str]:
    """Whether rows are independent, then one line for each assumption, with its code."""
    found = [Assumption(entry["code"], entry["sentence"]) for entry in facts]
    lines = [f"Rows independent: {independence(found)}. (A row is one {unit}.)"]
    return lines + [f"{one.sentence.rstrip('.')}. (`{one.code}`)" for one in found]


def _audit(audit: Mapping[str, Any] | None) -> str:
    if audit is None:
        return "None was run (`decrescendo audit`). An audit can only find mistakes; the bound above is the proof."
    lines = [f"- {str(name).replace('_', ' ')}: {value}" for name, value in audit.items()]
    return "\n".join(["An audit can only find mistakes; the bound above is the proof.", "", *lines])
