"""What installing compiles, and that an installation never fails for it (hatch_build.py)."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar

import pytest

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
        "src/decrescendo/base/rng/_gaussian.so",
        "src/decrescendo/clipping/rules/_matrices.so",
        "src/decrescendo/clipping/rules/_products.so",
        "src/decrescendo/clipping/rules/_segments.so",
    ]
    assert not hook.said


@pytest.mark.parametrize(
    "command", ["false", "true", "no-such-compiler -g", "'/no tools/gcc' -m32", "'unclosed"]
)
def test_a_compiler_that_fails_leaves_a_package_without_it(
    hook: Any, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", command)
    assert build(hook) == {"artifacts": []}
    assert not any(library.exists() for library in hook.libraries)  # nor one of an older source
    assert len(hook.said) == 4


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
    assert len(sources) == 4
    if shutil.which("cc") is not None and os.environ.get("DECRESCENDO_COMPILED") != "0":
        assert None not in map(kernel, sources)
    monkeypatch.setenv("DECRESCENDO_COMPILED", "0")
    assert list(map(kernel, sources)) == [None] * 4
