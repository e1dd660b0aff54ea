"""Compiles what is faster compiled, if there is a compiler; without one the package is the same, and slower in places.

``DECRESCENDO_COMPILED=0`` leaves it out: for a wheel that every machine can install.
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
    PACKAGE / "base" / "rng" / "gaussian.c",
    RULES / "matrices.c",
    RULES / "products.c",
    RULES / "segments.c",
)
FLAGS = ["-O3", "-std=gnu11", "-fPIC", "-shared", "-ffp-contract=fast", "-Wno-psabi"]


class Compile(BuildHookInterface[Any]):
    """Each C file to a shared library beside it."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 (hatch's)
        made: list[str] = []
        for source in SOURCES:
            library = library_of(source)
            try:
                done = compile_to(Path(self.root, source), Path(self.root, library))
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                done = str(error)
            if done is None:
                made.append(library.as_posix())
            else:
                self.app.display_warning(f"what {source.name} does takes the form without C: {done}")
        if not made:
            return
        build_data["artifacts"] += made
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")


def library_of(source: Path) -> Path:
    """Where the library of a C file lies."""
    return source.with_name(f"_{source.stem}.so")


def compile_to(source: Path, library: Path) -> str | None:
    """Compile, and put the library in its place at once; ``None``, or why there is none now."""
    library.unlink(missing_ok=True)
    if os.environ.get("DECRESCENDO_COMPILED") == "0" or not sys.platform.startswith(("linux", "darwin")):
        return "not asked for, or not on this system"
    compiler = (
        shlex.split(os.environ.get("CC", ""))
        or [path for path in map(shutil.which, ("cc", "gcc", "clang")) if path][:1]
    )
    if not compiler:
        return "no C compiler found"
    texts = [path.read_bytes() for path in (source, *sorted(source.parent.glob("*.h")))]
    digest = hashlib.sha256(b"".join(texts)).hexdigest()[:16]  # as base/native.py makes it
    name = f"-D{source.stem.upper()}=decrescendo_{source.stem}_{digest}"
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder, library.name)
        command = [*compiler, *FLAGS, name, str(source), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            return done.stderr.strip()
        made.replace(library)
    return None
