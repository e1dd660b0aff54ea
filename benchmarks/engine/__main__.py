"""Command line: ``run`` measures, ``operations`` counts, ``page`` writes docs/reference/engine-speed.md, ``profile``
shows where time goes."""

import argparse
import json
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from benchmarks import measured_at
from benchmarks.engine import keep, read
from benchmarks.engine.contenders import CONTENDERS, Setting
from benchmarks.engine.machine import machine, versions
from benchmarks.engine.memory import environment, memory_apart, memory_here
from benchmarks.engine.profiling import show
from benchmarks.engine.timing import measure
from benchmarks.engine.workloads import workloads

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results" / "engine"


def main() -> None:
    """Parse and go."""
    arguments = _parser().parse_args()
    if arguments.command == "page":
        from benchmarks.engine.page import write

        write(arguments.results, arguments.docs)
        return
    if arguments.command == "operations":
        from benchmarks.engine.operations import write as count_all

        count_all(arguments.results / "operations.json")
        return
    device = _device(arguments.device)
    known = list(workloads(device))
    if arguments.command == "run":
        run(
            arguments,
            device,
            _chosen(arguments.workloads, known),
            _chosen(arguments.contenders, list(CONTENDERS)),
        )
    elif arguments.command == "one":
        one(arguments, device)
    elif arguments.command == "memory":
        setting = Setting(workloads(device)[arguments.workload], device)
        print(json.dumps(memory_here(CONTENDERS[arguments.contender].make(setting), device)))
    else:
        for name in _chosen(arguments.workloads, known):
            show(name, _chosen(arguments.contenders, list(CONTENDERS)), device, arguments.rows)


def run(arguments: argparse.Namespace, device: torch.device, chosen: list[str], contenders: list[str]) -> None:
    """Each workload in a fresh process; what has a result is left alone."""
    threads = arguments.threads or torch.get_num_threads()
    done = read(arguments.results, device.type)
    for name in chosen:
        if name in done and not arguments.force and not arguments.print_only:
            print(f"{name}: has a result; --force measures again")
            continue
        command = [sys.executable, "-m", "benchmarks.engine", "one", name, "--device", str(device)]
        command += ["--contenders", *contenders, "--rounds", str(arguments.rounds)]
        command += ["--seconds", str(arguments.seconds), "--threads", str(threads)]
        command += ["--no-memory"] * arguments.no_memory
        command += [] if arguments.print_only else ["--out", str(arguments.results)]
        subprocess.run(command, check=True, cwd=ROOT, env=environment(threads))


def one(arguments: argparse.Namespace, device: torch.device) -> None:
    """One workload: time in this process, memory in one process a contender."""
    warnings.simplefilter("ignore")  # what libraries say about their own hooks and slow paths shows in the times
    torch.set_num_threads(arguments.threads)
    setting = Setting(workloads(device)[arguments.workload], device)
    workload = setting.workload
    memory: dict[str, dict] = {}
    if not arguments.no_memory:
        # First, since a contender that hangs is noticed here: what runs in this process cannot be stopped.
        surroundings = environment(arguments.threads)
        names = list(dict.fromkeys(("plain", *arguments.contenders)))
        commands = [["benchmarks.engine", "memory", workload.name, name, "--device", str(device)] for name in names]
        # What a process holds does not depend on others. On a GPU all at once: torch itself counts.
        with ThreadPoolExecutor(len(names) if device.type == "cuda" else 2) as pool:
            for name, found in zip(
                names, pool.map(lambda command: memory_apart(command, surroundings), commands), strict=True
            ):
                memory[name] = found
                print(f"{workload.name}, {name}: memory {found}", file=sys.stderr, flush=True)
    slow = {name: found["too slow"] for name, found in memory.items() if "too slow" in found}
    quick = [name for name in arguments.contenders if name not in slow]
    times = measure(setting, quick, rounds=arguments.rounds, seconds=arguments.seconds)
    times |= {name: {"status": "too slow", "reason": reason} for name, reason in slow.items()}
    for name, entry in times.items():
        if entry["status"] == "measured" and name in memory:
            entry["memory"] = memory[name]
    report = {
        "workload": workload.name,
        "title": workload.title,
        "sizes": workload.sizes,
        "rows": workload.rows,
        "clip norm": workload.clip_norm,
        "parameters": sum(p.numel() for p in workload.model(device).parameters()),
        "extra": workload.extra,
        "device": device.type,
        "threads": arguments.threads,
        **measured_at(),
        "machine": machine(device),
        "versions": versions(),
        "contenders": times,
    }
    _print(report)
    if arguments.out:
        keep(Path(arguments.out), device.type, report)


def _print(report: dict) -> None:
    print(f"\n{report['title']} ({report['device']}, {report['rows']} examples, {report['threads']} threads)")
    for name, entry in report["contenders"].items():
        if "times plain" not in entry:
            print(f"  {name:26s} {entry['status']}: {entry.get('reason', '')[:200]}")
            continue
        low, high = entry["times plain, quartiles"]
        held = entry.get("memory", {}).get("device bytes", entry.get("memory", {}).get("host bytes"))
        memory = "" if held is None else f" {held / 2**20:8.0f} MiB"
        error = entry.get("relative error")
        note = "" if error is None else f"  error {error:.0e}" + ("" if entry["same work"] else ", NOT THE SAME WORK")
        rewritten = f"  rewritten: {entry['rewritten']}" if "rewritten" in entry else ""
        way = f"  {entry['passes'].split(':')[0]}" if "passes" in entry else ""
        print(
            f"  {name:26s} {entry['median, ms']:9.1f} ms {entry['times plain']:7.2f} "
            f"({low:.2f} to {high:.2f}){memory}{note}{rewritten}{way}",
            flush=True,
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("run", "measure workloads"), ("one", "measure one workload in this process")):
        command = commands.add_parser(name, help=text)
        if name == "run":
            command.add_argument("--workloads", nargs="+", help="names; all without it")
            command.add_argument("--force", action="store_true", help="measure again what has a result")
            command.add_argument("--results", type=Path, default=RESULTS)
            command.add_argument("--print-only", action="store_true", help="write no result")
        else:
            command.add_argument("workload")
            command.add_argument("--out", help="a folder of results")
        command.add_argument("--contenders", nargs="+", help="names; all without it")
        command.add_argument("--device", default="auto", help="cpu, cuda, or auto: cuda where there is one")
        command.add_argument("--rounds", type=int, default=21)
        command.add_argument("--seconds", type=float, default=180.0, help="of rounds for each workload, about")
        command.add_argument("--threads", type=int, default=None, help="torch's own choice without it")
        command.add_argument("--no-memory", action="store_true")
    memory = commands.add_parser("memory", help="peak memory of one contender in this process")
    memory.add_argument("workload")
    memory.add_argument("contender")
    memory.add_argument("--device", default="cpu")
    page = commands.add_parser("page", help="docs/reference/engine-speed.md and figure from results/engine")
    page.add_argument("--results", type=Path, default=RESULTS)
    page.add_argument("--docs", type=Path, default=ROOT / "docs/reference")
    counted = commands.add_parser("operations", help="count products and bytes, ours and plain training's")
    counted.add_argument("--results", type=Path, default=RESULTS)
    profiled = commands.add_parser("profile", help="the costliest operations")
    profiled.add_argument("--workloads", nargs="+")
    profiled.add_argument("--contenders", nargs="+", default=["plain", "decrescendo"])
    profiled.add_argument("--device", default="auto")
    profiled.add_argument("--rows", type=int, default=15)
    return parser


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def _chosen(asked: list[str] | None, known: list[str]) -> list[str]:
    unknown = [name for name in asked or [] if name not in known]
    if unknown:
        sys.exit(f"known names are {', '.join(known)}; got {', '.join(unknown)}")
    return asked or known


if __name__ == "__main__":
    main()
