"""What a folder of released files must hold, and whether this machine's wheel works where there is no compiler.

``make release`` runs it on ``dist/``: wheels for other systems are inspected (tags, the format of each kernel, the
exported name, the C library asked for); the one for this system is installed into an empty environment, passes the
tests of the kernels there, and runs the demonstration.
"""

import hashlib
import os
import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "decrescendo"
SOURCES = tuple(sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.c")))
# Of each wheel, by its tag: the first bytes of a library, and the processor's number and where that stands.
FORMATS = {
    "manylinux_2_17_x86_64.manylinux2014_x86_64": (b"\x7fELF", b"\x3e\x00", 18),
    "manylinux_2_17_aarch64.manylinux2014_aarch64": (b"\x7fELF", b"\xb7\x00", 18),
    "macosx_11_0_arm64": (b"\xcf\xfa\xed\xfe", b"\x0c\x00\x00\x01", 4),
    "win_amd64": (b"MZ", b"", 0),
}
NEWEST_GLIBC = (2, 17)
KERNEL_TESTS = (
    "tests/rng/test_kernel.py", "tests/clipping/test_grams.py", "tests/clipping/test_matrices.py",
    "tests/clipping/test_products.py", "tests/clipping/test_segments.py", "tests/test_build.py",
)  # fmt: skip


def symbol(wheel: zipfile.ZipFile, source: str) -> bytes:
    """The name that a kernel must export: it has the hash of its source and headers, as packed."""
    folder = Path("decrescendo", source).parent.as_posix()
    headers = {
        name for name in wheel.namelist()
        if name.endswith(".h") and Path(name).parent.as_posix() in (folder, "decrescendo/base/rng")
    }  # fmt: skip
    texts = [wheel.read(name) for name in (f"decrescendo/{source}", *sorted(headers, key=lambda name: Path(name).name))]
    return f"decrescendo_{Path(source).stem}_{hashlib.sha256(b''.join(texts)).hexdigest()[:16]}".encode()


def faults(path: Path) -> list[str]:
    """What is wrong with one wheel, in sentences."""
    tag = path.stem.split("-py3-none-", 1)[-1]
    if tag not in FORMATS:
        return [f"{path.name} must be for one of {', '.join(FORMATS)}"]
    magic, machine, place = FORMATS[tag]
    found: list[str] = []
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        about = next(name for name in names if name.endswith(".dist-info/WHEEL"))
        tags = set(re.findall(r"^Tag: py3-none-(\S+)$", wheel.read(about).decode(), re.MULTILINE))
        if tags != set(tag.split(".")):
            found.append(f"{path.name} says that it is for {sorted(tags)}")
        for source in SOURCES:
            name = f"decrescendo/{Path(source).with_name(f'_{Path(source).stem}.so').as_posix()}"
            if name not in names:
                found.append(f"{path.name} has no {name}")
                continue
            library = wheel.read(name)
            if not library.startswith(magic) or library[place : place + len(machine)] != machine:
                found.append(f"{name} of {path.name} is for another system")
            if symbol(wheel, source) not in library:
                found.append(f"{name} of {path.name} does not export {symbol(wheel, source).decode()}")
            asked = {tuple(map(int, pair)) for pair in re.findall(rb"GLIBC_(\d+)\.(\d+)", library)}
            if asked and max(asked) > NEWEST_GLIBC:
                found.append(f"{name} of {path.name} asks for glibc {max(asked)}")
        if strange := [name for name in names if not name.startswith(("decrescendo/", "decrescendo-"))]:
            found.append(f"{path.name} holds {strange}")
    return found


def try_here(wheel: Path) -> None:
    """Install the wheel without a compiler; then its kernels' tests, and the demonstration. Raises where one fails."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = str(Path(folder, "bin", "python"))
        pip = [
            python,
            "-m",
            "pip",
            "install",
            "--no-compile",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        surroundings = {**os.environ, "PATH": str(Path(folder, "bin")), "CC": "false"}
        surroundings.pop("PYTHONPATH", None)
        for what in (["-r", str(ROOT / "constraints.txt")], [str(wheel)]):
            subprocess.run([*pip, *what], check=True, env=surroundings)
        loaded = (
            "from pathlib import Path; import decrescendo; from decrescendo.base.native import kernel\n"
            "here = Path(decrescendo.__file__).parent\n"
            f"assert here.is_relative_to({folder!r}) and None not in [kernel(here / s) for s in {SOURCES!r}]"
        )
        subprocess.run([python, "-c", loaded], check=True, cwd=folder, env=surroundings)
        tests = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *KERNEL_TESTS]
        subprocess.run(tests, check=True, cwd=ROOT, env=surroundings)
        subprocess.run([str(Path(folder, "bin", "decrescendo")), "demo"], check=True, cwd=folder, env=surroundings)


def main(folder: Path) -> int:
    """The exit status: 0 where everything is as it should be."""
    wheels = sorted(folder.glob("*.whl"))
    found = [fault for wheel in wheels for fault in faults(wheel)]
    if len(wheels) != len(FORMATS) or len(list(folder.glob("*.tar.gz"))) != 1:
        found.append(f"{folder} must hold one sdist and {len(FORMATS)} wheels")
    for wheel in wheels:
        print(f"{wheel.name}: {wheel.stat().st_size / 2**20:.2f} MiB")
    if found:
        print(*found, sep="\n")
        return 1
    tag = {"linux": f"manylinux2014_{platform.machine()}", "darwin": "macosx_11_0_arm64"}.get(sys.platform)
    here = [wheel for wheel in wheels if tag is not None and tag in wheel.name]
    for wheel in here:
        try_here(wheel)
    print(
        f"inspected {len(wheels)} wheels; installed, tested and run here: {', '.join(w.name for w in here) or 'none'}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
