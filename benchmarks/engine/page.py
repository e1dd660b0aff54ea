"""docs/reference/engine-speed.md and its figures, every number from results/engine."""

import json
import statistics
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks import words
from benchmarks.engine import read
from benchmarks.engine.checking import TOLERANCE, TOLERANCE_ON_GPU
from benchmarks.engine.contenders import CONTENDERS
from benchmarks.engine.figure import draw
from benchmarks.engine.timing import FAR, FEW_ROUNDS, LONG
from benchmarks.engine.workloads import workloads

Report = dict[str, Any]
OURS, QUIET, IN_PYTHON, LOW = (
    "decrescendo", "decrescendo-without-noise", "decrescendo-python", "decrescendo-low",
)  # fmt: skip
# Rows from before `capture="auto"` was the default, which ran captured where that could be done: by today's names.
_BEFORE = {
    "decrescendo-captured-noise": OURS, "decrescendo-captured": QUIET, "decrescendo-noise": IN_PYTHON,
}  # fmt: skip
_OF_BEFORE = (
    'Rows without a figure for `memory="low"` were measured with `capture=True`, before `capture="auto"` was the '
    "default: what is called decrescendo in them was captured. Today's default chooses in its first steps."
)
_BY_CAPTURED = (
    "By default passes are captured where that pays: their operations are replayed, without the Python that started "
    "them ([how](../how-to/speed.md)); on a GPU by CUDA graphs. Plain training, and the peers, are as people run them, "
    "one operation after another (what plain training would be with graphs of its own was not measured: less, where "
    "Python takes most of it)."
)
_OPENING = (
    "One step of ours is what a user makes: per-example gradients clipped to C, added up, secure noise, divided by the "
    "batch size, SGD. Peers make no noise, and a column shows ours without it. Plain training is forward, backward of "
    "the mean loss, SGD. All have the same model, weights, batch and clip norm (near the median of the gradient norms, "
    "so that about half of the examples are clipped). Lower is better; 1 is plain training."
)
_MARKS = (
    f"r: the model had to be rewritten for it. ≠: its clipped sum differs by more than {TOLERANCE:g} (relative, joint "
    f"norm; {TOLERANCE_ON_GPU:g} on a GPU, where torch multiplies convolutions in TF32) from one plain backward pass "
    "an example, so it computes something else; it is counted among the peers all the same. What was rewritten, "
    "refused or failed is under Remarks."
)
_METHOD = (
    "Time: all contenders of a workload in one process, each with a model of its own, one step each in turn, the "
    "order shuffled in every round; what is compared is the ratio to plain training of the same round. Three steps of "
    f"warm-up, or one of more than {LONG:g} s; the engine's self-check and XLA's compilation fall into it, and ours "
    "goes on until the engine has chosen whether to capture passes. Who takes more than "
    f"{FAR:g} times plain training's time takes part in {FEW_ROUNDS} rounds only. A pause of 5 ms before each step "
    "lets the threads of the library before it go to sleep. XLA has threads of its own, as many as torch's.",
    "Memory: each contender in a process of its own; resident memory at the highest point of a step after the same "
    "warm-up, minus the level before the first step (so model and batch do not count, gradients and what a library "
    "keeps do). The allocator is told to give blocks of 64 KiB and more back at once. On a GPU: torch's own count of "
    "allocated memory, in which XLA's is not.",
    "Data are random numbers with a fixed seed; the learning rate is 1e-3, so that the weights hardly move.",
    "Positions and class token are small modules of their own, which favours the peers: Opacus hands a module with "
    "bare parameters, with all that is in it, to torch.func.",
)
_COMMANDS = (
    "pip install -r benchmarks/engine/requirements.txt    # the peers; without them: ours, torch.func, plain training",
    "python -m benchmarks.engine run --device cpu --force",
    "python -m benchmarks.engine run --device cuda --force",
    "python -m benchmarks.engine page",
)
_AROUND = (
    "`train` does more than this step: it draws and makes the batch, compares the weights between steps, and keeps the "
    "ledger. On one thread that adds {median} % of the step in the median of the workloads, {least} % at least and "
    "{most} % at most ({where}; CPU time, {when}). Peers' loaders are not counted either."
)
_DEVICES = {"cpu": "On the processor", "cuda": "On a GPU"}


def write(results: Path, docs: Path) -> None:
    """The page and one figure a device."""
    lines = _opening()
    for device, title in _DEVICES.items():
        reports = _read(results, device)
        if not reports:
            continue
        stem = "engine-speed" if device == "cpu" else f"engine-speed-{device}"
        draw(reports, docs / f"{stem}.png")
        lines += _section(title, stem, reports, device, results)
    lines += _closing(results)
    (docs / "engine-speed.md").write_text("\n".join(lines) + "\n")


def _read(results: Path, device: str) -> dict[str, Report]:
    """Results in the order of the workloads; what is not measured yet is left out."""
    found = read(results, device)
    return {name: _renamed(found[name]) for name in workloads(torch.device(device)) if name in found}


def _renamed(report: Report) -> Report:
    """A row from before, with today's names beside its own."""
    entries: Report = report["contenders"]
    if not set(_BEFORE) & set(entries):
        return report
    kept = {name: entry for name, entry in entries.items() if name != OURS}
    return report | {"contenders": kept | {_BEFORE[n]: entry for n, entry in kept.items() if n in _BEFORE}}


def _opening() -> list[str]:
    return ["# What a private step costs", "", *_wrapped(_OPENING)]


def _section(title: str, stem: str, reports: Mapping[str, Report], device: str, results: Path) -> list[str]:
    shown = [name for name in CONTENDERS if _installed(name, reports)]
    absent = [each.title for name, each in CONTENDERS.items() if name not in shown and each.peer]
    others = [name for name in shown if name != "plain"]
    counted = {name: report for name, report in reports.items() if not report["extra"]}
    lines = ["", f"## {title}", "", *_machine(reports), "", f"![times plain training]({stem}.png)", ""]
    lines += _summary(counted)
    aside = [
        f"{_label(report)} {_cell(report, OURS, _times)}" for name, report in reports.items() if name not in counted
    ]
    if aside:
        lines.append(f"Not counted in these, as variants of others: {', '.join(aside)}.")
    if device == "cpu" and (results / "around.json").exists():
        lines += ["", *_around(json.loads((results / "around.json").read_text(encoding="utf-8")), reports)]
    lines += ["", *_wrapped(_BY_CAPTURED)]
    if any(set(_BEFORE) & set(report["contenders"]) for report in reports.values()):
        lines += ["", *_wrapped(_OF_BEFORE)]
    lines += ["", "### Times plain training", "", "Median over rounds of the ratio within a round.", ""]
    lines += _header(["workload (batch)", *[CONTENDERS[n].title for n in others], "best peer / ours"])
    for report in reports.values():
        cells = [_cell(report, name, _times) for name in others]
        lines.append(_row([_label(report), *cells, _number(_lead(report))]))
    lines += ["", *_wrapped(_MARKS), "", "### Milliseconds a step", ""]
    lines += ["Medians; in brackets the middle half of the ratios to plain training.", ""]
    lines += _header(["workload (batch)", *[CONTENDERS[n].title for n in shown]])
    for report in reports.values():
        lines.append(_row([_label(report), *[_cell(report, name, _milliseconds) for name in shown]]))
    lines += ["", "### Peak memory of a step, MiB (times plain training)", ""]
    lines += _header(["workload (batch)", *[CONTENDERS[n].title for n in shown]])
    for report in reports.values():
        cells = [_cell(report, name, lambda e, report=report: _memory(e, report)) for name in shown]
        lines.append(_row([_label(report), *cells]))
    lines += _counted(results) if device == "cpu" else _kernels(results)
    lines += ["", "### Workloads", "", *_header(["workload", "batch", "parameters", "clip norm", "sizes"])]
    for r in reports.values():
        cells = [r["title"], str(r["rows"]), f"{r['parameters']:,}", f"{r['clip norm']:g}", r["sizes"]]
        lines.append(_row(cells))
    lines += _remarks(reports, absent)
    return lines


_COUNTED = (
    "The floor, counted and not timed: multiplications and additions of all products of a step (10^6), and the MiB "
    "that its operations read and write; in brackets times plain training. An engine need not multiply more than plain "
    "training, and ours hardly does; but where plain training writes one gradient for all examples, the gradient of "
    "each, or Gram matrices, are written and read. By `python -m benchmarks.engine operations`, {when}."
)


_KERNELS = (
    "What Python does before a step's kernels can start takes as long on a GPU as on a CPU, and is most of a step "
    "there: proof and recorder take a quarter of a millisecond, about, for each operation of the pass, forward and "
    "backward, where torch takes a hundredth of one. The kernels themselves are another matter ({when}):"
)


def _kernels(results: Path) -> list[str]:
    """How much of a step a GPU computes, from `make gpu`; nothing where it was not measured."""
    path = results.parent / "gpu" / "report.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    steps = found.get("parts", {}).get("kernels", {})
    if not steps:
        return []
    lines = ["", "### What the GPU does of it", "", *_wrapped(_KERNELS.format(when=words(found))), ""]
    lines += _header(["workload", "plain training, ms a step", "ours, ms a step", "of which its kernels, ms"])
    for workload in workloads(torch.device("cuda")).values():
        if workload.name in steps:
            plain, ours = steps[workload.name]["plain"], steps[workload.name][OURS]
            cells = [f"{one:.1f}" for one in (plain["ms a step"], ours["ms a step"], ours["ms of kernels"])]
            lines.append(_row([f"{workload.title} ({workload.rows})", *cells]))
    return lines


def _counted(results: Path) -> list[str]:
    """What both do, from operations.json; nothing where it was not counted."""
    path = results / "operations.json"
    if not path.exists():
        return []
    found = json.loads(path.read_text())
    lines = ["", "### Operations and bytes of a step", "", *_wrapped(_COUNTED.format(when=words(found))), ""]
    lines += _header(["workload", "products, plain training", "ours", "MiB, plain training", "ours"])
    for workload in workloads(torch.device("cpu")).values():
        if workload.name in found["workloads"]:
            plain, ours = (found["workloads"][workload.name][name] for name in ("plain", OURS))
            cells: list[str] = []
            for key, unit in (("operations", 1e6), ("bytes", 2**20)):
                digits = ",.1f" if key == "operations" else ",.0f"
                cells += [f"{plain[key] / unit:{digits}}"]
                cells += [f"{ours[key] / unit:{digits}} ({ours[key] / plain[key]:.2f})"]
            lines.append(_row([f"{workload.title} ({workload.rows})", *cells]))
    return lines


def _machine(reports: Mapping[str, Report]) -> list[str]:
    """One line a machine and set of versions: results may come from several runs."""
    found: dict[str, list[str]] = {}
    for report in reports.values():
        machine = report["machine"]
        where = f"{machine['cpu']}, {machine['cores']} cores, {report['threads']} threads, {machine['system']}"
        if "gpu" in machine:
            where = f"{machine['gpu']} (CUDA {machine['cuda']}); {where}"
        versions = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
        found.setdefault(f"{where}; {words(report)}. {versions}.", []).append(report["title"])
    if len(found) == 1:
        return list(found)
    return [f"- {', '.join(titles)}: {where}" for where, titles in found.items()]


def _summary(reports: Mapping[str, Report]) -> list[str]:
    """A sentence for each thing that is asked of the engine, as it was measured."""
    times = {
        name: [r["contenders"][name]["times plain"] for r in reports.values() if _measured(r, name)]
        for name in (OURS, QUIET, LOW)
    }
    held = {
        name: [ratio for r in reports.values() if (ratio := _memory_ratio(r, name)) is not None] for name in (OURS, LOW)
    }
    noise, python = (
        [found for r in reports.values() if (found := _against(r, name)) is not None] for name in (QUIET, IN_PYTHON)
    )
    leads = [lead for lead in map(_lead, reports.values()) if lead is not None]
    lines: list[str] = []
    if found := times[OURS]:
        lines.append(
            f"By default, with secure noise, {len(found)} of {len(reports)} workloads: {_median(found)} times plain "
            f"training in the median, {max(found):.2f} at most."
        )
    if found := times[QUIET]:
        added = statistics.median(ours - quiet for ours, quiet in noise)
        lines.append(
            f"Without noise: {_median(found)} and {max(found):.2f}; noise adds {100 * added:.0f} % of a plain "
            "step in the median."
        )
    if python:
        ratios = [other / ours for ours, other in python]
        lines.append(
            f"With `capture=False`, the same step takes {_median(ratios)} times as long in the median, "
            f"{min(ratios):.2f} times at least."
        )
    if leads:
        lines.append(
            f"The best peer takes {_median(leads)} times as long as our default in the median, "
            f"{min(leads):.2f} times at least."
        )
    if found := held[OURS]:
        lines.append(
            f"Peak memory by default: {_median(found)} times plain training in the median, {max(found):.2f} at most."
        )
    if times[LOW] and held[LOW]:
        lines.append(
            f'With `memory="low"` and noise: {_median(held[LOW])} times plain training\'s memory in the median, '
            f"{max(held[LOW]):.2f} at most, and {_median(times[LOW])} times its time, {max(times[LOW]):.2f} at most."
        )
    return lines + _ways(reports)


def _ways(reports: Mapping[str, Report]) -> list[str]:
    """What the default chose in its first steps; nothing where it was not noted."""
    found: dict[str, list[str]] = {}
    for report in reports.values():
        if way := report["contenders"].get(OURS, {}).get("passes"):
            found.setdefault(way, []).append(report["title"])
    return [f"By default {way} ({', '.join(titles)})." for way, titles in found.items()]


def _median(values: list[float]) -> str:
    return f"{statistics.median(values):.2f}"


def _against(report: Report, name: str) -> tuple[float, float] | None:
    """Times plain training of our default and of another contender, if both were measured."""
    if not (_measured(report, OURS) and _measured(report, name)):
        return None
    return report["contenders"][OURS]["times plain"], report["contenders"][name]["times plain"]


def _lead(report: Report) -> float | None:
    """Time of the fastest peer, without noise, over that of our default with noise; generous to peers that compute
    something else."""
    if not _measured(report, OURS):
        return None
    peers = [
        report["contenders"][name]["times plain"]
        for name, contender in CONTENDERS.items()
        if contender.peer and "times plain" in report["contenders"].get(name, {})
    ]
    return min(peers) / report["contenders"][OURS]["times plain"] if peers else None


def _measured(report: Report, name: str) -> bool:
    entry = report["contenders"].get(name, {})
    return "times plain" in entry and entry.get("same work", True)


def _installed(name: str, reports: Mapping[str, Report]) -> bool:
    entries = [report["contenders"].get(name) for report in reports.values()]
    return any(entry is not None and entry["status"] != "not installed" for entry in entries)


def _cell(report: Report, name: str, show: Callable[[Report], str]) -> str:
    entry = report["contenders"].get(name)
    if entry is None or entry["status"] == "not installed":
        return "-"
    if "times plain" not in entry:
        return entry["status"]
    text = show(entry)
    if name == OURS:
        text = f"**{text}**"
    return text + " r" * ("rewritten" in entry) + " ≠" * (not entry.get("same work", True))


def _times(entry: Report) -> str:
    return f"{entry['times plain']:.2f}"


def _milliseconds(entry: Report) -> str:
    low, high = entry["times plain, quartiles"]
    return f"{entry['median, ms']:.1f} ({low:.2f} to {high:.2f})"


def _held(entry: Report) -> int | None:
    memory = entry.get("memory", {})
    return memory.get("device bytes", memory.get("host bytes"))


def _memory(entry: Report, report: Report) -> str:
    held, plain = _held(entry), _held(report["contenders"]["plain"])
    if held is None:
        return "-"
    return f"{held / 2**20:.0f} ({held / plain:.2f})" if plain else f"{held / 2**20:.0f}"


def _memory_ratio(report: Report, name: str) -> float | None:
    held, plain = _held(report["contenders"].get(name, {})), _held(report["contenders"]["plain"])
    return held / plain if held is not None and plain else None


def _label(report: Report) -> str:
    return f"{report['title']} ({report['rows']})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _around(found: Report, reports: Mapping[str, Report]) -> list[str]:
    """What `benchmarks.engine.around` found."""
    added = {name: 100 * part for name, part in found["added"].items()}
    most = max(added, key=lambda name: added[name])
    numbers = {
        "median": f"{statistics.median(added.values()):.1f}", "least": f"{min(added.values()):.1f}",
        "most": f"{added[most]:.1f}", "where": reports[most]["title"], "when": words(found),
    }  # fmt: skip
    return _wrapped(_AROUND.format(**numbers))


def _header(names: list[str]) -> list[str]:
    return [_row(names), _row(["---" if name in {names[0], "sizes"} else "---:" for name in names])]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _remarks(reports: Mapping[str, Report], absent: list[str]) -> list[str]:
    """What was rewritten, refused, failed or not installed, each said once."""
    lines: list[str] = []
    for name, contender in CONTENDERS.items():
        said: dict[str, list[str]] = {}
        for report in reports.values():
            entry = report["contenders"].get(name, {})
            if "rewritten" in entry:
                said.setdefault(f"rewritten: {entry['rewritten']}", []).append(report["title"])
            if not entry.get("same work", True):
                said.setdefault(f"≠, relative error {entry['relative error']:.1g}", []).append(report["title"])
            if entry.get("status") in {"refused", "failed", "too slow"}:
                reason = " ".join(entry["reason"].split())[:300]
                said.setdefault(f"{entry['status']}: {reason}", []).append(report["title"])
        lines += [f"- {contender.title}, {', '.join(titles)}: {text}" for text, titles in said.items()]
    if absent:
        lines.append(f"- not installed: {', '.join(absent)}")
    return ["", "### Remarks", "", *lines] if lines else []


def _closing(results: Path) -> list[str]:
    lines = ["", "## How it is measured", ""]
    for point in _METHOD:
        lines += _wrapped(f"- {point}", "  ")
    lines += ["", "To repeat it:", "", "```", *_COMMANDS, "```"]
    if not (results / "cuda.jsonl").exists():
        lines += ["", "No GPU was at hand; the command for it waits for one."]
    return lines


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, 118, subsequent_indent=indent, break_on_hyphens=False)
