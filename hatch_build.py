"""Compiles what is faster compiled, if there is a compiler; without one the package is the same, and slower in places.

``DECRESCENDO_COMPILED=0`` leaves it out: for a wheel that every machine can install.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

RULES = Path("src", "decrescendo", "clipping", "rules")
SOURCE, LIBRARY = RULES / "products.c", RULES / "_products.so"
FLAGS = ["-O3", "-std=gnu11", "-fPIC", "-shared", "-ffp-contract=fast", "-Wno-psabi"]


class Compile(BuildHookInterface[Any]):
    """One C file to one shared library beside it."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 (hatch's)
        library = Path(self.root, LIBRARY)
        library.unlink(missing_ok=True)  # one of an older source must not stay
        if os.environ.get("DECRESCENDO_COMPILED") == "0" or not sys.platform.startswith(("linux", "darwin")):
            return
        compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            self.app.display_info("no C compiler: convolutions on a CPU take the form without it")
            return
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            made = Path(folder, library.name)
            command = [*compiler.split(), *FLAGS, str(Path(self.root, SOURCE)), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode:
                self.app.display_warning(f"not compiled, the form without it is taken: {done.stderr.strip()}")
                return
            os.replace(made, library)
        build_data["artifacts"].append(LIBRARY.as_posix())
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
