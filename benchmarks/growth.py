"""How a whole private step grows beside a plain one: its time and peak memory against batch size and parameters.

    python -m benchmarks.growth                 # measures (a quarter of an hour), then the page and its picture
    python -m benchmarks.growth page            # from results/growth.json

Each size in fresh processes with one thread: one in which private and plain steps take turns, and one for the memory
of each. What would take too long or too much, by the size before it, is left out.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import measured_at, words
from benchmarks.engine.contenders import CONTENDERS, Setting, Step
from benchmarks.engine.machine import machine
from benchmarks.engine.memory import environment, memory_apart, memory_here
from benchmarks.engine.models.images import cnn_5x5
from benchmarks.engine.models.text import TextEncoder
from benchmarks.engine.timing import FEWEST_ROUNDS, in_turns, warm_up
from benchmarks.engine.workloads import Batch, Workload, images, texts
from decrescendo.base.extras import require
from decrescendo.base.markdown import table
from decrescendo.report.canvas import COLOURS, DPI, label, legend, save

ROOT = Path(__file__).resolve().parents[1]
RESULT, PAGE = ROOT / "results/growth.json", ROOT / "docs/reference/growth.md"
# What is compared: plain training, and the step that a user makes (clipped sum, noise, optimiser).
WAYS = {"plain": "plain", "private": "decrescendo"}
BATCHES, ROWS = (16, 64, 256, 1024, 4096), 16
ROUNDS, SECONDS = 41, 8.0
SLOWEST, LARGEST = 20.0, 12 * 2**30
# Slopes that differ by less count as the same.
WITHIN = 0.1
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Family:
    """Models of one kind, as wide as one likes.

    Args:
        sizes: what there is of them but the width, in words.
        build: the model of a width.
        draw: so many rows of data.
        width: of the model whose batches grow.
        widths: of models with about 10^4, .., 10^8 parameters.
    """

    sizes: str
    build: Callable[[int], torch.nn.Module]
    draw: Callable[[int], Callable[[torch.Generator], Batch]]
    width: int
    widths: tuple[int, ...]


FAMILIES = {
    "CNN": Family(
        "1x28x28 images, convolutions w 5x5 and 2w 5x5, linear 32w-16w-10",
        cnn_5x5, lambda rows: images(rows, 1, 28, 28), 32, (4, 13, 42, 133, 422),
    ),
    "transformer encoder": Family(
        "vocabulary 1,000, nn.TransformerEncoder 2 x w, 4 heads, feed-forward 4w, 32 tokens, no dropout",
        lambda width: TextEncoder(width=width, feedforward=4 * width), lambda rows: texts(rows, 32, 1_000, 4),
        128, (8, 48, 184, 624, 2020),
    ),
}  # fmt: skip
SWEEPS = {"batch": "batch size", "parameters": "parameters"}
QUANTITIES = {"seconds": "time", "bytes": "peak memory"}


def made(name: str, width: int, rows: int, way: str) -> Step:
    """A step of one way, ready to go."""
    family = FAMILIES[name]
    workload = Workload(name, name, family.sizes, lambda: family.build(width), family.draw(rows), rows, clip_norm=1.0)
    return CONTENDERS[WAYS[way]].make(Setting(workload, CPU))


def times_here(name: str, width: int, rows: int) -> dict[str, list[float]]:
    """Seconds of CPU time of every round, after a warm-up."""
    steps = {way: made(name, width, rows, way) for way in WAYS}
    for step in steps.values():
        warm_up(step, CPU)
    return in_turns(steps, CPU, rounds=ROUNDS, seconds=SECONDS, clock=time.process_time)


def too_much(before: Mapping[str, Any] | None, size: int, size_before: int) -> str:
    """Why a size is not measured, by what the one before it took; or nothing.

    >>> last = {"private": {"seconds": [6.0, 6.0, 6.0], "bytes": 2**30}}
    >>> too_much(last, 64, 16), too_much(last, 32, 16)
    ('about 24 s a step', '')
    """
    if before is None:
        return ""
    times = size / size_before
    seconds = times * statistics.median(before["private"]["seconds"])
    held = times * before["private"]["bytes"]
    if seconds > SLOWEST:
        return f"about {seconds:.0f} s a step"
    return f"about {held / 2**30:.0f} GiB" if held > LARGEST else ""


def measure() -> dict[str, Any]:
    """All sizes of all families, on one thread."""
    start, load, points = time.perf_counter(), os.getloadavg()[0], list[dict[str, Any]]()
    for name, family in FAMILIES.items():
        sweeps = {
            "batch": [(family.width, rows) for rows in BATCHES],
            "parameters": [(width, ROWS) for width in family.widths],
        }
        for sweep, sizes in sweeps.items():
            last: dict[str, Any] | None = None
            for width, rows in sizes:
                with torch.device("meta"):
                    parameters = sum(p.numel() for p in family.build(width).parameters())
                point: dict[str, Any] = {
                    "family": name, "sweep": sweep, "width": width, "batch": rows, "parameters": parameters,
                }  # fmt: skip
                points.append(point)
                reason = too_much(last, point[sweep], 1 if last is None else last[sweep])
                if reason:
                    point["left out"] = reason
                else:
                    point |= _measured(name, width, rows)
                    last = point
                print(json.dumps(_shown(point)), flush=True)
    return {
        **measured_at(), "machine": machine(CPU), "load": load, "minutes": (time.perf_counter() - start) / 60,
        "points": points,
    }  # fmt: skip


def _measured(name: str, width: int, rows: int) -> dict[str, Any]:
    surroundings, given = environment(1), [name, str(width), str(rows)]
    command = [sys.executable, "-m", "benchmarks.growth", "time", *given]
    done = subprocess.run(command, env=surroundings, cwd=ROOT, check=True, capture_output=True, text=True)
    times = json.loads(done.stdout.splitlines()[-1])
    found: dict[str, Any] = {}
    for way in WAYS:
        memory = memory_apart(["benchmarks.growth", "memory", *given, "--way", way], surroundings)
        found[way] = {"seconds": [round(one, 6) for one in times[way]], "bytes": memory["host bytes"]}
    return found


def _shown(point: Mapping[str, Any]) -> dict[str, Any]:
    """One point in a line."""
    return {
        key: {"s": statistics.median(value["seconds"]), "MiB": value["bytes"] >> 20} if key in WAYS else value
        for key, value in point.items()
    }


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The exponent k of values ~ sizes^k: of the straight line through their logarithms, by least squares.

    >>> round(slope([1, 10, 100], [3, 300, 30_000]), 6)
    2.0
    """
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def line_of(found: Mapping[str, Any], family: str, sweep: str) -> list[dict[str, Any]]:
    """The points of one family and sweep that were measured, from small to large."""
    return [
        point for point in found["points"] if point["family"] == family and point["sweep"] == sweep and "plain" in point
    ]


def value_of(point: Mapping[str, Any], way: str, quantity: str) -> float:
    """The median of the times, or the bytes."""
    value = point[way][quantity]
    return value if quantity == "bytes" else statistics.median(value)


def slopes(line: Sequence[Mapping[str, Any]], sweep: str, quantity: str) -> dict[str, float]:
    """Of each way."""
    sizes = [point[sweep] for point in line]
    return {way: slope(sizes, [value_of(point, way, quantity) for point in line]) for way in WAYS}


def verdict(plain: float, private: float) -> str:
    """How a private step's slope lies to the plain one's.

    >>> verdict(1.0, 1.05), verdict(1.0, 0.8), verdict(0.5, 0.6)
    ('within 10 %', 'flatter', 'steeper')
    """
    if abs(private - plain) <= WITHIN * abs(plain):
        return f"within {WITHIN:.0%}".replace("%", " %")
    return "flatter" if private < plain else "steeper"


def _size_row(point: Mapping[str, Any], sweep: str) -> list[str]:
    cells = [f"{point[sweep]:,}"]
    if "left out" in point:
        return [*cells, point["left out"], *[""] * 5]
    for way in WAYS:
        low, middle, high = statistics.quantiles(point[way]["seconds"], n=4, method="inclusive")
        cells.append(f"{1e3 * middle:.1f} ({1e3 * low:.1f} .. {1e3 * high:.1f})")
    ratio = value_of(point, "private", "seconds") / value_of(point, "plain", "seconds")
    held = [point[way]["bytes"] / 2**20 for way in WAYS]
    return [*cells, f"{ratio:.2f}", *[f"{one:,.0f}" for one in held], f"{held[1] / held[0]:.2f}"]


def render(found: Mapping[str, Any]) -> str:
    """The page, every number from the result."""
    fits: list[list[str]] = []
    sections: list[str] = []
    for family, kind in FAMILIES.items():
        for sweep, against in SWEEPS.items():
            line = line_of(found, family, sweep)
            every = [p for p in found["points"] if p["family"] == family and p["sweep"] == sweep]
            fixed = (
                f"batches of {ROWS}"
                if sweep == "parameters"
                else f"w = {kind.width}, {line[0]['parameters']:,} parameters"
            )
            header = (against, "plain, ms", "private, ms", "ratio", "plain, MiB", "private, MiB", "ratio")
            sections += [
                f"## {family}: {against}", "", f"{kind.sizes}; {fixed}. In brackets the middle half.", "",
                table(header, [_size_row(point, sweep) for point in every], "rrrrrrr"), "",
            ]  # fmt: skip
            for quantity, called in QUANTITIES.items():
                row = [family, against, called]
                for part in (line, line[len(line) // 2 :]):
                    one = slopes(part, sweep, quantity)
                    row += [f"{one['plain']:.2f}", f"{one['private']:.2f}", verdict(**one)]
                fits.append(row)
    header = (
        "model",
        "against",
        "of",
        *("plain", "private", "all sizes"),
        *("plain", "private", "three largest"),
    )
    left_out = sum("left out" in point for point in found["points"])
    verdicts = [row[column] for row in fits for column in (5, 8)]
    counts = Counter(one if one in ("flatter", "steeper") else "within" for one in verdicts)
    return TEXT.format(
        words=words(found), cpu=found["machine"]["cpu"], cores=found["machine"]["cores"], load=found["load"],
        minutes=found["minutes"], fewest=FEWEST_ROUNDS, rounds=ROUNDS, within=counts["within"], lines=len(verdicts),
        flatter=counts["flatter"], steeper=counts["steeper"] or "none", slowest=SLOWEST, largest=LARGEST >> 30,
        fits=table(header, fits, "lllrrlrrl"), sections="\n".join(sections).rstrip(),
        left_out=f"{left_out} size{' is' if left_out == 1 else 's are'}" if left_out else "No size is",
    )  # fmt: skip


TEXT = """# How a private step grows

A whole private step (clipped sum, noise of an unpredictable stream, SGD) beside a plain one (mean loss, SGD), one
thread, on the same model and batch: against the batch size of one model, and against the parameters at one batch size.
Made by `python -m benchmarks.growth` in {minutes:.0f} minutes, {words}, on {cpu},
{cores} cores. Other programs ran: the load was {load:.1f} before.

![time and peak memory of a private and of a plain step, both axes logarithmic](growth.png)

## Slopes

Exponents of growth: 1 is twice as much for twice the size. Lines by least squares through medians, both axes
logarithmic, through all sizes and through the three largest, where what a step does once has become small.

{fits}

Of {lines} slopes {within} are plain training's within 10 %, {flatter} are flatter and {steeper} steeper. {left_out}
left out for more than {slowest:g} s a step or {largest} GiB.

Why some are flatter: what a private step does once (proof, recording, choice of methods) goes by operations and not by
rows or numbers, and takes more time than the smallest plain steps do as a whole. In memory it is the per-example
gradients that are kept between norm and sum: those that outgrow `cache_bytes` (128 MiB), as the second convolution's
do with 1,024 rows, are computed twice instead. What grows with the parameters and plain training has not, noise and the
sum it is added to, grows in proportion.

{sections}

## How it is measured

Time: CPU time of the process, which is that of its one thread and which other programs on the machine change less than
they change a clock on the wall; both steps in one process, in turn, the order shuffled every round, {fewest} to
{rounds} rounds, medians.
Memory: each in a process of its own, as in [engine-speed.md](engine-speed.md): resident memory at the highest point of
a step, minus the level before the first one.
"""


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Time above, memory below; against the batch size on the left, against parameters on the right."""
    figure = require("matplotlib.figure").Figure(figsize=(8.6, 6.6), layout="constrained", dpi=DPI)
    panels = figure.subplots(len(QUANTITIES), len(SWEEPS), sharex="col", sharey="row")
    for row, (quantity, called) in enumerate(QUANTITIES.items()):
        unit, scale = ("ms", 1e3) if quantity == "seconds" else ("MiB", 2.0**-20)
        for column, (sweep, against) in enumerate(SWEEPS.items()):
            panel = panels[row][column]
            panel.set_xscale("log", base=4 if sweep == "batch" else 10)
            panel.set_yscale("log")
            for number, family in enumerate(FAMILIES):
                line = line_of(found, family, sweep)
                sizes = [point[sweep] for point in line]
                for way in reversed(WAYS):
                    private = way == "private"
                    panel.plot(
                        sizes, [scale * value_of(point, way, quantity) for point in line], "-" if private else "--",
                        color=COLOURS[number], marker="os"[number], markersize=5, linewidth=1.6 if private else 1.2,
                        markerfacecolor=COLOURS[number] if private else "white", label=f"{family}, {way}",
                    )  # fmt: skip
                one = slopes(line[len(line) // 2 :], sweep, quantity)
                panel.annotate(
                    f"{family}: slope {one['private']:.2f}, plain {one['plain']:.2f}",
                    (0.03, 0.96 - 0.075 * number), xycoords="axes fraction",
                    va="top", fontsize=8, color=COLOURS[number],
                )  # fmt: skip
            fixed = f" ({'one model' if sweep == 'batch' else f'batches of {ROWS}'})"
            label(panel, "", "" if column else f"{called} of a step, {unit}", against + fixed if row else "")
            if sweep == "batch":
                panel.set_xticks(BATCHES, [f"{size:,}" for size in BATCHES])
            panel.minorticks_off()
    figure.suptitle("A private step beside a plain one (slopes through the three largest sizes)", fontsize=10)
    legend(figure, panels[0][0], columns=4)
    save(figure, path)


def write(found: Mapping[str, Any]) -> None:
    """Page and picture."""
    PAGE.write_text(render(found), encoding="utf-8")
    draw(found, PAGE.with_suffix(".png"))


def main() -> None:
    """Measure and write, or be one of the processes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("command", choices=("all", "page", "time", "memory"), nargs="?", default="all")
    parser.add_argument("point", nargs="*", help="of a process: family, width, rows")
    parser.add_argument("--way", choices=WAYS)
    arguments = parser.parse_args()
    if arguments.command in ("time", "memory"):
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        name, width, rows = arguments.point[0], *map(int, arguments.point[1:])
        if arguments.command == "time":
            print(json.dumps(times_here(name, width, rows)))
        else:
            print(json.dumps(memory_here(made(name, width, rows, arguments.way), CPU)))
        return
    if arguments.command == "all":
        RESULT.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    write(json.loads(RESULT.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
