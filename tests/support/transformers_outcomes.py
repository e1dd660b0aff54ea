"""What the engine says of each class of Transformers, as a table and as a page: proven, checked, refused, left out.

``python tests/support/transformers_outcomes.py`` passes all classes and writes both (a quarter of an hour);
with names of classes or tasks, those alone; with ``--again``, what was not accepted; with ``--page``, the page from
the table.
"""

import json
import re
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers_zoo import Batch, Subject, subjects

from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.clipping.engine import WAY_OUT
from decrescendo.clipping.mixed_rows import OWN_LOSS
from decrescendo.errors import DecrescendoError

TABLE = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "coverage-transformers.md"
# Two sizes; four is also the number of heads.
ROWS = (5, 4)
# Of the sum of clipped norms; some models compute in float32 whatever their weights are.
TOLERANCE = 1e-5
# Lines that are declared for one class at most.
_LINES = 20
# Numbers of a model that this table calls small.
_MOST = 2_000_000
# What a refusal must say, one of these.
WAYS = (
    "Divide by ",
    "Give ",
    "set_experts_implementation",
    "EngineSettings(declared=",
    "Use ",
    "Keep ",
    "Let ",
    "Freeze",
    "Write it",
    "Is ",
)


# What the page says below its refusals.
ARGUED = [
    "",
    "- **Funnel** reads its relative positions by strides, and torch adds into them by `as_strided`, whose strides are",
    "  numbers made of the batch's length: on a constant such numbers would tell it. Way out, with the same attention:",
    '  `config.attention_type = "factorized"`, which is exact.',
    "- **JetMoe** sorts the tokens of the whole batch by expert and reads in Python how many each expert got",
    "  (`expert_size.tolist()`): where a token comes among the sorted ones depends on the other examples. The class",
    "  has no `batched_mm`. Way out: a mixture that has it (Mixtral, OLMoE, Qwen3-MoE, above).",
    "- **Longformer** cuts overlapping windows by `as_strided`, and torch sums their gradient over the memory of the",
    "  whole batch by an index as long as the batch, which the check does not follow where the batch lies inside other",
    "  dimensions. Way out: BigBird or LongT5 (above); or freeze Longformer's body and train the head.",
    "- **ViTMAE** draws which patches it hides in evaluation mode too: `Engine(seeds=..)`, as in `Trainer`, takes it.",
]


# What the page says of the outcomes in the table.
SHOWN = {"proven": "checked", "checked": "assumed"}


class LeftOut(Exception):
    """A class that cannot be built small, or not passed in plain PyTorch: not the engine's doing."""


def built(subject: Subject) -> tuple[nn.Module, list[Batch]]:
    """The model and its batches, in float64 where the model can, after a pass in plain PyTorch."""
    try:
        if subject.size() > _MOST:
            raise LeftOut("not small by the usual names of sizes")
        model, batches = subject.make(ROWS)
        try:
            doubled = [widened(batch) for batch in batches]
            sum(subject.loss(model.double(), batch).sum() for batch in doubled).backward()
            batches = doubled
        except (RuntimeError, TypeError, ValueError):
            sum(subject.loss(model.float(), batch).sum() for batch in batches).backward()
        losses = subject.loss(model, batches[0])
        finite = all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
    except LeftOut:
        raise
    except Exception as error:
        raise LeftOut(" ".join(f"{type(error).__name__}: {error}".split())[:160]) from error
    if losses.shape != (ROWS[0],) or not bool(losses.isfinite().all()) or not finite:
        raise LeftOut("no finite loss and gradient an example")
    model.zero_grad()
    return model, batches


def widened(batch: Batch) -> Batch:
    return {key: value.double() if value.is_floating_point() else value for key, value in batch.items()}


def error_of(model: nn.Module, subject: Subject, batches: list[Batch], engine: Engine) -> float:
    """The greatest difference of a clipped sum from the slow loop's, half of the examples clipped."""
    reference, worst = Reference(model, subject.loss), 0.0
    for batch in batches:
        norms = reference.per_example_norms(batch)
        limit = float(norms.median())
        found, expected = (each.clipped_sum(batch, limit).gradients for each in (engine, reference))
        scale = float(norms.clamp(max=limit).sum())
        worst = max([worst, *(float((found[name] - own).norm()) / scale for name, own in expected.items())])
    return worst


def measure(subject: Subject) -> dict[str, Any]:
    """The outcome of one class, by the ways out that refusals name, where there are any.

    Raises:
        AssertionError: it is accepted and is not the slow loop's.
    """
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        found: dict[str, Any] = {"task": subject.task}
        try:
            model, batches = built(subject)
        except LeftOut as reason:
            return {**found, "outcome": "left out", "why": str(reason)}
        declared: list[str] = []
        ways: list[str] = []
        while True:
            engine = Engine(model, subject.loss, EngineSettings(declared=tuple(declared)))
            try:
                error = error_of(model, subject, batches, engine)
            except DecrescendoError as refusal:
                said = str(refusal).removesuffix(f". {WAY_OUT}").removesuffix(f". {OWN_LOSS}")
            else:
                assert error <= TOLERANCE, f"{subject.name} differs from the slow loop by {error:.1e}"
                outcome = "checked" if engine.assumptions else "proven"
                return {**found, "outcome": outcome, **({"after": ways} if ways else {})}
            line = re.search(r'declared=\("([^"]+)"', said)
            if "set_experts_implementation" in said and "batched_mm" not in ways and _experts(model):
                ways, declared = ["batched_mm"], []
            elif line is not None and line[1] not in declared and len(declared) < _LINES:
                declared.append(line[1])
                if (where := _unnumbered(line[1])) not in ways:
                    ways.append(where)
            else:
                return {
                    **found,
                    "outcome": "refused",
                    **({"after": ways} if ways else {}),
                    "why": _unnumbered(said),
                }


def _experts(model: nn.Module) -> bool:
    """Whether the model is a mixture of experts that Transformers can compute in one product a row; then it does."""
    try:
        model.set_experts_implementation("batched_mm")
    except (AttributeError, ValueError):
        return False
    return any("Experts" in type(module).__name__ for module in model.modules())


def _unnumbered(text: str) -> str:
    """Without the numbers of lines, which move from version to version."""
    return re.sub(r"(\.py):\d+", r"\1", text)


def read() -> dict[str, Any]:
    """The table: the version of Transformers, and of each class its outcome."""
    return json.loads(TABLE.read_text(encoding="utf-8"))


def page(table: dict[str, Any]) -> str:
    """The table as Markdown."""
    classes: dict[str, dict[str, Any]] = table["classes"]
    counts = Counter(row["outcome"] for row in classes.values())
    lines = [
        "# What the engine covers of Transformers", "",
        "Generated by `python tests/support/transformers_outcomes.py`; a slow test compares it with what happens "
        f"(`tests/clipping/test_transformers.py`; Transformers {table['transformers']}).", "",
        "Every class that Transformers' own auto-mapping tables name for these tasks is built in a tiny random",
        "configuration, in evaluation mode, and given texts that are padded to a fixed length, images or signals.",
        "Losses are each example's own. What is accepted equals the slow loop (`clipping.Reference`) at two batch",
        "sizes to 1e-5 of what is summed.", "",
        f"**{counts['proven']} checked, {counts['checked']} assumed, {counts['refused']} refused; "
        f"{counts['left out']} left out**, as they could not be built small or passed in plain PyTorch here.", "",
        "- **checked after** `batched_mm`: the class is refused as it comes (its mixture of experts gathers rows by",
        '  their values) and exact after `model.set_experts_implementation("batched_mm")`, as the refusal says.',
        "- **assumed after** a file's name: a line of that file reads the data in Python; it was declared, as the",
        "  refusal says (`EngineSettings(declared=(..))`).",
        "- **assumed** alone: nothing is declared, but the run lists an assumption (a function of its own).", "",
        "## Accepted", "", "| task | outcome | classes |", "| --- | --- | --- |",
    ]  # fmt: skip
    groups: dict[tuple[str, str], list[str]] = {}
    for name, row in sorted(classes.items()):
        if row["outcome"] in ("proven", "checked"):
            after = " after " + ", ".join(f"`{way}`" for way in row["after"]) if "after" in row else ""
            groups.setdefault((row["task"], SHOWN[row["outcome"]] + after), []).append(name)
    lines += [
        f"| {task} | {outcome} | {len(names)}: {', '.join(names)} |"
        for (task, outcome), names in sorted(groups.items())
    ]
    for title, outcome in (("Refused", "refused"), ("Left out", "left out")):
        lines += ["", f"## {title}", "", "| class | why |", "| --- | --- |"]
        lines += [
            f"| {name} | {row['why'].replace('|', '/')} |"
            for name, row in sorted(classes.items())
            if row["outcome"] == outcome
        ]
        lines += ARGUED if outcome == "refused" else []
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> None:
    """Pass what is asked for and write the table and the page."""
    import transformers

    table = read() if TABLE.exists() else {"classes": {}}
    table["transformers"] = ".".join(transformers.__version__.split(".")[:2])
    if "--page" not in arguments:
        torch.set_num_threads(1)
        for subject in subjects():
            known = table["classes"].get(subject.name, {"outcome": "none"})["outcome"]
            if "--again" in arguments and known in ("proven", "checked"):
                continue
            if not set(arguments) - {"--again"} or {subject.name, subject.task, subject.model_type} & set(arguments):
                table["classes"][subject.name] = measure(subject)
                print(subject.name, table["classes"][subject.name], flush=True)
                TABLE.write_text(json.dumps(table, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(page(table), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
