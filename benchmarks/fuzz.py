"""Fuzz everything that reads, coverage-guided, for as long as it is given.

    python -m pip install atheris                                  # not in the lock: it is needed for nothing else
    python -m benchmarks.fuzz [--scale 1] [--targets plan,run]     # writes results/fuzz.json

libFuzzer, through atheris, makes bytes; `tests/support/fuzzing` reads them as changes of a valid file (values and keys
in JSON, bytes, lengths, SQL, other arguments) and judges what becomes of it: read, and then equal when written and read
again, or refused by an error of this package with a message, within 20 seconds, and no file changed. Code coverage of
the package tells libFuzzer which changes are worth changing again. Each target is fuzzed in a process of its own, one
after the other.

Failures do not end a campaign: they are counted, and the shortest input of each kind is printed as hexadecimal digits:
`judge(TARGETS[name], bytes.fromhex(..))` repeats it.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULT, PAGE = ROOT / "results" / "fuzz.json", ROOT / "docs/explanation/fuzzing.md"
BEGIN, END = "<!-- table of results/fuzz.json -->", "<!-- end of it -->"
# Inputs of each target, by what one costs and how much there is to find.
INPUTS = {
    "plan": 15_000, "adaptive plan": 15_000, "ledger": 6_000, "run": 10_000, "store": 1_500, "checkpoint": 1_500,
    "releases": 4_000, "compared run": 6_000,
    "result": 8_000, "recipe": 8_000, "costs": 6_000, "influence": 6_000, "idx": 4_000, "names": 3_000,
    "imdb-lines": 3_000, "imdb-archive": 4_000, "xray-arrays": 4_000, "xray-archive": 4_000, "messages": 8_000,
    "journal": 1_200, "keeper": 1_500, "wire": 3_000, "command-line": 400, "declaration": 3_000,
}  # fmt: skip


def one(name: str, inputs: int, out: Path, seed: int) -> None:
    """Fuzz one target in this process; it ends with it."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    import atheris

    with atheris.instrument_imports(include=["decrescendo"]):
        import torch
        from fuzzing import TARGETS, Failure, judge
    torch.set_num_threads(1)
    target, counts, failures = TARGETS[name], Counter[str](), dict[str, str]()
    begun, slowest = time.perf_counter(), 0.0
    judge(target, b"")  # caches, lazy imports

    def write() -> None:
        facts = {
            "engine": f"atheris {version('atheris')}", "inputs": counts.total(), "accepted": counts["accepted"],
            "refused": counts["refused"], "failed": counts["failed"], "kinds_of_failure": failures,
            "seconds": round(time.perf_counter() - begun, 1), "slowest_seconds": round(slowest, 2),
            "largest_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }  # fmt: skip
        out.write_text(json.dumps(facts))

    def call(data: bytes) -> None:
        nonlocal slowest
        start = time.perf_counter()
        try:
            counts[str(judge(target, data))] += 1
        except Failure as failure:
            counts["failed"] += 1
            kind = _kind(str(failure))
            if kind not in failures or len(data.hex()) < len(failures[kind]):
                failures[kind] = data.hex()
        slowest = max(slowest, time.perf_counter() - start)
        if counts.total() % 500 == 0 or counts.total() == inputs:
            write()
        if counts.total() >= inputs:
            os._exit(0)

    options = [
        f"-seed={seed}",
        "-max_len=256",
        "-len_control=20",
        "-rss_limit_mb=4096",
        "-timeout=120",
        "-verbosity=0",
    ]
    atheris.Setup([sys.argv[0], *options], call)
    atheris.Fuzz()


def _kind(text: str) -> str:
    """The first line, without what differs from input to input, and the last place in this package."""
    places = [line.split("src/")[-1] for line in text.splitlines() if "src/decrescendo/" in line]
    return text.splitlines()[0][:100] + (f" | {places[-1].strip()}" if places else "")


def campaign(names: list[str], scale: float, seed: int) -> dict[str, Any]:
    """Target after target."""
    found: dict[str, Any] = {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "counts.json"
            command = [sys.executable, "-m", "benchmarks.fuzz", "--one", name, "--seed", str(seed)]
            command += ["--inputs", str(max(1, round(INPUTS[name] * scale))), "--out", str(out)]
            ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            if not out.exists() or ended.returncode:
                print(ended.stderr[:6000], file=sys.stderr)
                raise SystemExit(f"{name} ended with {ended.returncode}: it crashed, hung, or had no memory left")
            found[name] = json.loads(out.read_text())
        print(json.dumps({name: found[name]}), flush=True)
    return found


def main() -> None:
    """A campaign, or one target of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="times the usual number of inputs")
    parser.add_argument("--targets", default=",".join(INPUTS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--inputs", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        one(given.one, given.inputs, given.out, given.seed)
        return
    names = given.targets.split(",")
    before = json.loads(given.result.read_text()) if given.result.exists() else {}
    targets = before.get("targets", {}) | campaign(names, given.scale, given.seed)
    total = {
        key: sum(target[key] for target in targets.values()) for key in ("inputs", "accepted", "refused", "failed")
    }
    # What was found is history, kept by hand: see docs/explanation/fuzzing.md.
    content = {"total": total, "targets": targets, "found_and_fixed": before.get("found_and_fixed", {})}
    given.result.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(total))
    if given.result == RESULT:
        start, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{start}{BEGIN}\n{table(content)}{END}{rest.partition(END)[2]}")


def table(content: dict[str, Any]) -> str:
    """For the page."""
    lines = [
        "| format | inputs | read | refused | failed | bugs found and fixed |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    rows = {**content["targets"], "all": content["total"]}
    fixed = content["found_and_fixed"]
    for name, row in rows.items():
        bugs = sum(map(len, fixed.values())) if name == "all" else len(fixed.get(name, ()))
        lines.append(
            f"| {name} | {row['inputs']:,} | {row['accepted']:,} | {row['refused']:,} | {row['failed']} | {bugs} |"
        )
    seconds = max(row["slowest_seconds"] for row in content["targets"].values())
    memory = max(row["largest_memory_mb"] for row in content["targets"].values())
    engines = ", ".join(sorted({row["engine"] for row in content["targets"].values()}))
    return (
        "\n".join(lines) + f"\n\n{engines}; the slowest input took {seconds:.2f} s, the largest process {memory} MB.\n"
    )


if __name__ == "__main__":
    main()
