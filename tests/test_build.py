"""What installing compiles, and that an installation never fails for it (hatch_build.py)."""

import importlib.util
import os
import shutil
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar

import pytest
import release

from decrescendo.base.native import kernel

ROOT = Path(__file__).resolve().parents[1]
compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))) or not sys.platform.startswith(("linux", "darwin")),
    reason="no C compiler, or none that is asked",
)


T = TypeVar("T")


class SomeHook(Generic[T]):
    """In the place of hatchling's."""


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The hook as hatch would run it, on a copy of the source. (hatchling itself is only there while building.)"""
    interface = ModuleType("hatchling.builders.hooks.plugin.interface")
    interface.BuildHookInterface = SomeHook
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.Compile()
    made.libraries = [tmp_path / module.library_of(source) for source in module.SOURCES]
    for source, library in zip(module.SOURCES, made.libraries, strict=True):
        library.parent.mkdir(parents=True, exist_ok=True)
        for path in (ROOT / source, *(ROOT / source).parent.glob("*.h")):
            shutil.copy(path, tmp_path / source.parent)
        library.write_bytes(b"of an older source")
    made.root, made.said = str(tmp_path), []
    made.app = SimpleNamespace(display_warning=made.said.append)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("DECRESCENDO_COMPILED", raising=False)
    return made


def build(hook: Any) -> dict[str, Any]:
    data: dict[str, Any] = {"artifacts": []}
    hook.initialize("standard", data)
    return data


@pytest.mark.slow
@compiler
def test_each_library_is_compiled_and_the_wheel_is_for_this_platform(hook: Any) -> None:
    data = build(hook)
    assert all(library.stat().st_size > 10_000 for library in hook.libraries)
    assert data["tag"].startswith("py3-none-")
    assert data["artifacts"] == [
        "src/decrescendo/base/rng/_banded.so",
        "src/decrescendo/base/rng/_gaussian.so",
        "src/decrescendo/clipping/rules/_grams.so",
        "src/decrescendo/clipping/rules/_matrices.so",
        "src/decrescendo/clipping/rules/_products.so",
        "src/decrescendo/clipping/rules/_segments.so",
    ]
    assert not hook.said


@pytest.mark.parametrize("command", ["false", "true", "no-such-compiler -g", "'/no tools/gcc' -m32", "'unclosed"])
def test_a_compiler_that_fails_leaves_a_package_without_it(
    hook: Any, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", command)
    assert build(hook) == {"artifacts": []}
    assert not any(library.exists() for library in hook.libraries)  # nor one of an older source
    assert len(hook.said) == 6


def test_it_can_be_left_out(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DECRESCENDO_COMPILED", "0")
    assert build(hook) == {"artifacts": []}
    assert not any(library.exists() for library in hook.libraries)


def test_no_compiler_at_all(hook: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build(hook) == {"artifacts": []}
    assert "no C compiler" in hook.said[0]


def test_what_was_built_can_be_left_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = sorted((ROOT / "src").rglob("*.c"))
    assert len(sources) == 6
    if shutil.which("cc") is not None and os.environ.get("DECRESCENDO_COMPILED") != "0":
        assert None not in map(kernel, sources)
    monkeypatch.setenv("DECRESCENDO_COMPILED", "0")
    assert list(map(kernel, sources)) == [None] * len(sources)


def a_wheel(folder: Path, tag: str, library: bytes) -> Path:
    """A wheel as hatch packs it, whose kernels are all ``library`` and the name that each must export."""
    path = folder / f"decrescendo-0.1.0-py3-none-{tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        tags = "".join(f"Tag: py3-none-{one}\n" for one in tag.split("."))
        wheel.writestr("decrescendo-0.1.0.dist-info/WHEEL", f"Wheel-Version: 1.0\n{tags}")
        for source in (ROOT / "src").rglob("*.[ch]"):
            wheel.write(source, source.relative_to(ROOT / "src").as_posix())
        for source in release.SOURCES:
            there = Path("decrescendo", source)
            wheel.writestr(there.with_name(f"_{there.stem}.so").as_posix(), library + release.symbol(wheel, source))
    return path


LINUX = "manylinux_2_17_x86_64.manylinux2014_x86_64"
ELF = b"\x7fELF" + bytes(14) + b"\x3e\x00"


@pytest.mark.parametrize(
    ("tag", "library", "fault"),
    [
        (LINUX, ELF, None),
        (LINUX, ELF + b"GLIBC_2.14\0GLIBC_2.17\0", None),
        (LINUX, ELF + b"GLIBC_2.28\0", "asks for glibc (2, 28)"),
        (LINUX, b"\x7fELF" + bytes(14) + b"\xb7\x00", "is for another system"),
        ("win_amd64", ELF, "is for another system"),
        ("linux_x86_64", ELF, "must be for one of"),
    ],
)
def test_a_released_wheel_holds_kernels_for_its_own_system(
    tmp_path: Path, tag: str, library: bytes, fault: str | None
) -> None:
    found = release.faults(a_wheel(tmp_path, tag, library))
    assert not found if fault is None else found and all(fault in one for one in found)


def test_a_kernel_of_another_source_is_found_in_a_wheel(tmp_path: Path) -> None:
    path = a_wheel(tmp_path, LINUX, ELF)
    with zipfile.ZipFile(path) as wheel:
        packed = {name: wheel.read(name) for name in wheel.namelist()}
    packed["decrescendo/base/rng/processor.h"] += b"\n"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in packed.items():
            wheel.writestr(name, text)
    assert len(release.faults(path)) == len(release.SOURCES)
    assert all("does not export" in fault for fault in release.faults(path))
