"""The pages say what is there: tests that exist, links that lead somewhere, names that can be looked up."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import decrescendo as dc

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (ROOT / "docs", ROOT / "papers/docs")
PAGES = sorted(
    [*ROOT.glob("*.md"), ROOT / "papers/README.md", *(p for f in FOLDERS for p in f.rglob("*.md"))]
)
NAMED_TEST = re.compile(r"((?:papers/)?tests/[\w/]+\.py)((?:::\w+)+)")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def names_in(path: Path) -> set[str]:
    """``::test_name`` and ``::TestClass::test_name`` of a file, without importing it."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            found.add(f"::{node.name}")
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            inner = [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
            found |= {f"::{node.name}::{name}" for name in inner if name.startswith("test_")}
    return found


def missing_tests(text: str) -> list[str]:
    named = NAMED_TEST.findall(text)
    return [
        path + name
        for path, name in named
        if not (ROOT / path).is_file() or name not in names_in(ROOT / path)
    ]


def broken_links(page: Path, text: str) -> list[str]:
    targets = [target.split("#")[0] for target in LINK.findall(text) if "://" not in target]
    return [target for target in targets if target and not (page.parent / target).exists()]


def table_rows(text: str) -> list[list[str]]:
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows]


def test_every_test_named_in_a_page_exists() -> None:
    assert len(NAMED_TEST.findall((ROOT / "docs/pitfalls.md").read_text(encoding="utf-8"))) > 40
    for page in PAGES:
        assert missing_tests(page.read_text(encoding="utf-8")) == [], page.name


def test_a_test_that_does_not_exist_is_found() -> None:
    here = "tests/test_docs.py::test_a_test_that_does_not_exist_is_found"
    assert missing_tests(f"`{here}` `{here}_not` `tests/nowhere.py::test_x`") == [
        f"{here}_not",
        "tests/nowhere.py::test_x",
    ]


def test_every_pitfall_has_a_test() -> None:
    rows = [
        row
        for row in table_rows((ROOT / "docs/pitfalls.md").read_text(encoding="utf-8"))
        if row[0] not in ("pitfall", "---")
    ]
    for pitfall, severity, done, test in rows:
        assert severity in {"voids", "leaks", "weakens", "wrong", "yours"}, pitfall
        assert NAMED_TEST.search(test), pitfall
        assert "not yet" not in done, pitfall


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


def test_a_broken_link_is_found() -> None:
    text = "[a](docs/nowhere.md) [b](https://example.org) [c](README.md#limits)"
    assert broken_links(ROOT / "README.md", text) == ["docs/nowhere.md"]


def test_every_public_name_is_in_the_glossary_or_the_readme() -> None:
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in ("docs/glossary.md", "README.md"))
    assert [name for name in dc.__all__ if not re.search(rf"\bdc\.{name}\b", text)] == []


@pytest.mark.parametrize(
    ("page", "package", "least"),
    [("docs", "src/decrescendo", 30), ("papers/docs", "papers/src/decrescendo_papers", 15)],
)
def test_files_named_in_the_glossary_exist(page: str, package: str, least: int) -> None:
    text = (ROOT / page / "glossary.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+(?:\.py|/))` \|", text)
    assert len(named) > least
    assert [name for name in named if not (ROOT / package / name).exists()] == []


def test_the_layers_in_the_architecture_are_those_that_are_checked() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    found = re.search(r"```layers\n(.*?)```", text, re.DOTALL)
    assert found is not None
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = [layer.replace("decrescendo.", "") for layer in contracts["contracts"][0]["layers"]]
    assert found[1].splitlines() == layers


def test_every_room_has_a_layer() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = {
        name.removeprefix("decrescendo.")
        for layer in contracts["contracts"][0]["layers"]
        for name in layer.split(" | ")
    }
    rooms = {
        path.stem
        for path in (ROOT / "src/decrescendo").iterdir()
        if (path.suffix == ".py" or (path / "__init__.py").is_file()) and path.stem != "__init__"
    }
    assert rooms - {"__main__"} == layers


def test_no_page_speaks_of_the_machine_it_was_written_on() -> None:
    for page in PAGES:
        assert not re.search(r"/work/|/tmp/|/root/|/home/", page.read_text(encoding="utf-8")), page.name


def test_every_concept_has_a_place_that_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text[text.index("## Where the papers' concepts live") : text.index("## Seams")]
    named = re.findall(r"`([\w/]+(?:\.py|/))`", section)
    assert len(named) > 12
    assert [
        name for name in named if not any((of / name).exists() for of in (ROOT, ROOT / "src/decrescendo"))
    ] == []
    for name in re.findall(r"`curves\.(\w+)`", section):
        assert hasattr(dc.curves, name), name
