"""Compiles what is faster compiled, if there is a compiler; without one the package is the same, and slower in places.

``DECRESCENDO_COMPILED=0`` leaves it out: for a wheel that every machine can install. ``DECRESCENDO_TARGET`` names the
platform of a wheel that is cross-compiled with zig (`make release`).
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path("src", "decrescendo")
RULES = PACKAGE / "clipping" / "rules"
SOURCES = (
    PACKAGE / "base" / "rng" / "banded.c",
    PACKAGE / "base" / "rng" / "gaussian.c",
    RULES / "grams.c",
    RULES / "matrices.c",
    RULES / "products.c",
    RULES / "segments.c",
)
FLAGS = ["-O3", "-std=gnu11", "-fPIC", "-shared", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi"]
# Platforms of released wheels: zig's name of each, and the tag of the wheel.
TARGETS = {
    "linux-x86_64": ("x86_64-linux-gnu.2.17", "manylinux_2_17_x86_64.manylinux2014_x86_64"),
    "linux-aarch64": ("aarch64-linux-gnu.2.17", "manylinux_2_17_aarch64.manylinux2014_aarch64"),
    "macos-arm64": ("aarch64-macos.11.0", "macosx_11_0_arm64"),
    "windows-x86_64": ("x86_64-windows-gnu", "win_amd64"),
}


class Compile(BuildHookInterface[Any]):
    """Each C file to a shared library beside it."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 (hatch's)
        target = os.environ.get("DECRESCENDO_TARGET")
        if target is not None and target not in TARGETS:
            raise SystemExit(f"DECRESCENDO_TARGET must be one of {', '.join(TARGETS)}, got {target}")
        made: list[str] = []
        for source in SOURCES:
            library = library_of(source)
            try:
                done = compile_to(Path(self.root, source), Path(self.root, library))
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                done = str(error)
            if done is None:
                made.append(library.as_posix())
            elif target is not None:
                raise SystemExit(f"{source.name} could not be compiled for {target}: {done}")
            else:
                self.app.display_warning(f"what {source.name} does takes the form without C: {done}")
        if not made:
            return
        build_data["artifacts"] += made
        build_data["pure_python"] = False
        here = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = "py3-none-" + (here if target is None else TARGETS[target][1])


def library_of(source: Path) -> Path:
    """Where the library of a C file lies."""
    return source.with_name(f"_{source.stem}.so")


def compile_to(source: Path, library: Path) -> str | None:
    """Compile, and put the library in its place at once; ``None``, or why there is none now."""
    library.unlink(missing_ok=True)
    target = os.environ.get("DECRESCENDO_TARGET")
    if target is not None:
        compiler = [sys.executable, "-m", "ziglang", "cc", "-target", TARGETS[target][0], "-g0"]
    elif os.environ.get("DECRESCENDO_COMPILED") == "0" or not sys.platform.startswith(("linux", "darwin")):
        return "not asked for, or not on this system"
    else:
        compiler = (
            shlex.split(os.environ.get("CC", ""))
            or [path for path in map(shutil.which, ("cc", "gcc", "clang")) if path][:1]
        )
    if not compiler:
        return "no C compiler found"
    headers = {*source.parent.glob("*.h"), *source.parents[2].glob("base/rng/*.h")}
    texts = [path.read_bytes() for path in (source, *sorted(headers, key=lambda path: path.name))]
    digest = hashlib.sha256(b"".join(texts)).hexdigest()[:16]  # as base/native.py makes it
    name = f"-D{source.stem.upper()}=decrescendo_{source.stem}_{digest}"
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder, library.name)
        command = [*compiler, *FLAGS, name, str(source), "-o", str(made)]
        # The first one for Windows compiles its runtime library, too.
        longest = 300 if target is None else 1800
        done = subprocess.run(command, capture_output=True, text=True, timeout=longest, check=False)
        if done.returncode:
            return done.stderr.strip()
        made.replace(library)
    return None
