"""The tests that hang on arithmetic, on words or on files, once more on machines unlike this one, as far as it can play
them: ``make test-machines``, or ``python tests/support/machines.py NAME..`` for some of the legs.

A leg is one line of `LEGS`: what is set, and which tests run under it. A leg that is red ends with the tests that
failed; one that cannot be played here is skipped, with the reason. The leg ``newest`` runs all tests, and the check of
types, in an environment of its own (``.newest``) with the newest versions of all dependencies that pip finds.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# What is made of sums: bounds, gradients, trainings, and the pages and examples that print them.
NUMBERS = (
    "tests/accounting", "tests/contracts", "tests/plans", "papers/tests/theory", "tests/optim", "tests/noise",
    "tests/rng", "tests/clipping", "tests/training", "papers/tests/experiments", "papers/tests/data", "tests/statement",
    "src", "README.md",
)  # fmt: skip
# What is made of parallel or compiled sums.
GRADIENTS = (
    "tests/contracts",
    "tests/clipping",
    "tests/training",
    "tests/optim",
    "tests/noise",
    "tests/rng",
    "papers/tests/experiments",
)
# What is made of words, dates, orders and files.
WORDS = (
    "papers/tests/experiments", "papers/tests/data", "tests/statement", "tests/store", "tests/cli", "tests/plans",
    "tests/test_docs.py", "tests/test_public_api.py", "src/decrescendo/base/markdown.py",
    "src/decrescendo/training/run",
)  # fmt: skip
# Where newer versions of other libraries could show.
ALL = ("tests", "src", "docs", "README.md", "papers")

# Libraries choose their kernels by the processor; each has a switch of its own.
OLD = {
    "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "OPENBLAS_CORETYPE": "Nehalem", "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F",
}  # fmt: skip
AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Leg:
    """One machine: its name, its tests, what is set, whether it is locked out of the folder above the checkout, and
    whether its dependencies are the newest."""

    name: str
    tests: tuple[str, ...]
    set: dict[str, str] = field(default_factory=dict[str, str])
    numpy_without: tuple[str, ...] = ()  # features of the processor that NumPy is to leave aside
    locked: bool = False
    newest: bool = False


LEGS = (
    Leg("old-processor", NUMBERS, OLD, numpy_without=("X86_V3", "X86_V4", "AVX512", "AVX2", "FMA3")),
    Leg("avx2", NUMBERS, AVX2, numpy_without=("X86_V4", "AVX512")),
    Leg("one-thread", GRADIENTS, {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}),
    Leg("two-threads", GRADIENTS, {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}),
    Leg("no-kernel", GRADIENTS, {"DECRESCENDO_COMPILED": "0"}),
    Leg("hash-seed", WORDS, {"PYTHONHASHSEED": "20261122"}),
    Leg("time-zone", WORDS, {"TZ": "America/Los_Angeles"}),
    Leg("plain-c", WORDS, {"LANG": "C", "LC_ALL": "C"}),
    Leg("locked", WORDS, locked=True),
    Leg("newest", ALL, newest=True),
)
NEWEST = ROOT / ".newest"
PACKAGES = (".[plots,federated,studio,hf,dev]", "./papers")
# Bytes that the environment takes, and pip on the way there; torch for CUDA is most of it.
ROOM = 12_000_000_000


def main() -> int:
    """Run the legs, one line each; 1 if one is red."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("legs", nargs="*", metavar="NAME", help=", ".join(leg.name for leg in LEGS))
    parser.add_argument("--only", nargs="+", metavar="PATH", help="these tests instead of a leg's own")
    parser.add_argument("--processes", type=int, default=2, help="at once (2)")
    parser.add_argument(
        "--torch",
        metavar="VERSION",
        help="the torch of the leg newest (otherwise the newest version that pip finds)",
    )
    asked = parser.parse_args()
    if unknown := sorted({*asked.legs} - {leg.name for leg in LEGS}):
        parser.error(f"legs must be among {', '.join(leg.name for leg in LEGS)}, got {', '.join(unknown)}")
    legs = [leg for leg in LEGS if not asked.legs or leg.name in asked.legs]
    return max(
        newest(leg, asked.torch, asked.only, asked.processes) if leg.newest else _run(leg, asked.only, asked.processes)
        for leg in legs
    )


def newest(leg: Leg, torch: str | None, only: list[str] | None, processes: int) -> int:
    """A leg in a new environment: says which versions that has, and runs the tests and the check of types; 1 if red."""
    python = NEWEST / "bin" / "python"
    if why := _missing():
        print(f"{leg.name}: skipped, {why}", flush=True)
        return 0
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(NEWEST)], check=True)
    packages = [f"torch=={torch}" if torch else "torch", *(x for name in PACKAGES for x in ("-e", name))]
    install = [*PIP, "install", "--quiet", "--no-compile", "--upgrade", *packages]
    done = subprocess.run([python, *install], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{leg.name}: FAILED, pip could not install:\n{done.stderr[-2000:]}", flush=True)
        return 1
    print(f"{leg.name}: {versions(python)}", flush=True)
    red = _run(leg, only, processes, str(python))
    if only:
        return red
    check = [python.with_name("pyrefly"), "check", "--python-interpreter-path", python]
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{leg.name}: FAILED, types:\n{done.stdout[-10_000:]}{done.stderr[-2000:]}", flush=True)
    return max(red, int(done.returncode != 0))


PIP = ("-m", "pip", "--disable-pip-version-check")


def _missing() -> str | None:
    """Why no environment can be made here; ``None``: one can."""
    if (free := shutil.disk_usage(ROOT).free) < ROOM:
        return f"the disk must have {ROOM / 1e9:.0f} GB free for the environment, got {free / 1e9:.1f} GB"
    with tempfile.TemporaryDirectory() as folder:
        small = ["download", "--no-deps", "--no-cache-dir", "--dest", folder, "filelock"]
        if subprocess.run([sys.executable, *PIP, *small], capture_output=True, check=False).returncode:
            return "pip reaches no package index"
    return None


def versions(python: Path) -> str:
    """In words, which packages of an environment are in other versions than in constraints.txt, and of which a newer
    version exists that pip could not take beside the others."""

    def listed(*options: str) -> dict[str, dict[str, str]]:
        command = [python, *PIP, "list", "--format=json", "--exclude-editable", *options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return {one["name"]: one for one in json.loads(done.stdout)}

    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    pinned = dict(line.split("==") for line in lines)
    # "2.14.1+cpu" is that version for one kind of device.
    here = {name: one["version"].partition("+")[0] for name, one in listed().items() if name in pinned}
    other = [f"{name} {here[name]} (pinned {pinned[name]})" for name in here if here[name] != pinned[name]]
    newer = [f"{name} {one['latest_version']}" for name, one in listed("--outdated").items() if name in pinned]
    return (
        f"{len(here) - len(other)} packages as pinned; otherwise: {', '.join(other) or 'none'}; "
        f"newer, but held back by another package or by pip's settings: {', '.join(newer) or 'none'}"
    )


def _run(leg: Leg, only: list[str] | None, processes: int, python: str = sys.executable) -> int:
    tests = only or leg.tests
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)  # of whoever plays the leg
        environment = {**os.environ, **leg.set, **_without(leg), **(_aside(folder) if leg.locked else {})}
        before = _locked(environment) if leg.locked else []
        if before is None:
            print(f"{leg.name}: skipped, {LOCKED}", flush=True)
            return 0
        again = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        several = ["-n", str(processes), "--dist", "worksteal"] if processes > 1 else []
        command = [*before, *again, *several, *tests]
        start = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines() or done.stderr.splitlines() or ["no output"]
    words = "passed" if done.returncode == 0 else "FAILED"
    print(f"{leg.name}: {words} in {time.monotonic() - start:.0f} s: {lines[-1]}", flush=True)
    if done.returncode:
        failed = [line for line in lines if re.match(r"(FAILED|ERROR) ", line)] or [
            *lines[-20:],
            done.stderr[-2000:],
        ]
        settings = [shlex.quote(f"{name}={environment[name]}") for name in (*leg.set, *_without(leg))]
        print(
            "\n".join(
                [
                    *failed,
                    f"again, one test: {' '.join([*(['env', *settings] if settings else []), *again])} NAME",
                ]
            )
        )
    return int(done.returncode != 0)


def _without(leg: Leg) -> dict[str, str]:
    """What keeps NumPy from features that this processor has; it warns of others."""
    if not leg.numpy_without:
        return {}
    from numpy._core import _multiarray_umath as core

    here = [name for name in core.__cpu_dispatch__ if core.__cpu_features__[name]]
    return {"NPY_DISABLE_CPU_FEATURES": " ".join(name for name in here if name.startswith(leg.numpy_without))}


def _aside(folder: str) -> dict[str, str]:
    """Where another user writes: not into the checkout, nor into a home of somebody else's."""
    return {
        "TMPDIR": folder, "HOME": folder, "MPLCONFIGDIR": folder, "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": f"{folder}/hypothesis",
    }  # fmt: skip


LOCKED = (
    "the folder above the checkout is writable, and neither another user (setpriv) can run this Python nor can that "
    "folder be made read-only (unshare)"
)


def _locked(environment: dict[str, str]) -> list[str] | None:
    """What goes before a command so that the folder above the checkout cannot be written to; ``None``: nothing does."""
    above = ROOT.parent
    if not os.access(above, os.W_OK):
        return []
    # All of it, but not the checkout, and not where is written to if that is in there.
    kept = " && ".join(f'mount --bind "{path}" "{path}"' for path in (above, ROOT, environment["HOME"]))
    mounts = f'{kept} && mount -o remount,ro,bind "{above}" && exec "$@"'
    for tool, *rest in (
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env"],
        ["unshare", "--mount", "sh", "-c", mounts, "sh"],
    ):
        if shutil.which(tool) is None:
            continue
        check = (
            f"import os, decrescendo; assert not os.access({str(above)!r}, os.W_OK); "
            "assert os.access(os.environ['HOME'], os.W_OK)"
        )
        tried = [tool, *rest, sys.executable, "-c", check]
        if not subprocess.run(tried, cwd=ROOT, env=environment, capture_output=True, check=False).returncode:
            return [tool, *rest]
    return None


if __name__ == "__main__":
    sys.exit(main())
