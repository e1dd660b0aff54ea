"""The pages say what is there: tests that exist, links that lead somewhere, names that can be looked up."""

import ast
import functools
import importlib
import inspect
import re
import shlex
import tomllib
from os.path import relpath
from pathlib import Path

import pytest
import typer.main

import decrescendo as dc
from decrescendo.cli import app

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (ROOT / "docs", ROOT / "papers/docs")
PAGES = sorted([*ROOT.glob("*.md"), ROOT / "papers/README.md", *(p for f in FOLDERS for p in f.rglob("*.md"))])
NAMED_TEST = re.compile(r"((?:papers/)?tests/[\w/]+\.py)((?:::\w+)+)")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(`{3,})([^\n]*)\n(.*?)^\1\s*$", re.DOTALL | re.MULTILINE)
# Rooms with a public surface; those of packages that may be absent are looked at in the index only.
PUBLIC_ROOMS = (
    "accounting", "audit", "base", "clipping", "distributed", "doctor", "federated", "optim", "plans", "plans.curves",
    "report", "training", "training.steering",
)  # fmt: skip
# What docs/conf.py writes when the site is built.
GENERATED = ("reference/api/", "reference/command-line")


@functools.cache
def names_in(path: Path) -> set[str]:
    """``::test_name``, ``::TestClass`` and ``::TestClass::test_name`` of a file, without importing it."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            found.add(f"::{node.name}")
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            inner = [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
            found.add(f"::{node.name}")
            found |= {f"::{node.name}::{name}" for name in inner if name.startswith("test_")}
    return found


def missing_tests(text: str) -> list[str]:
    named = NAMED_TEST.findall(text)
    return [path + name for path, name in named if not (ROOT / path).is_file() or name not in names_in(ROOT / path)]


def anchors(text: str) -> set[str]:
    """The names of headings, as the site and the repository's pages make them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


def generated(file: Path) -> bool:
    return relpath(file, ROOT / "docs").startswith(GENERATED)


def broken_links(page: Path, text: str) -> list[str]:
    broken: list[str] = []
    for link in LINK.findall(FENCE.sub("", text)):
        target, _, anchor = link.partition("#")
        file = page.parent / target if target else page
        if "://" in link:
            continue
        text_there = file.read_text(encoding="utf-8") if file.is_file() and file.suffix == ".md" else None
        if not file.exists() or (anchor and text_there is not None and anchor not in anchors(text_there)):
            broken.append(link)
    return broken


def toctree(page: Path) -> list[Path]:
    """The pages that a page's tables of contents name."""
    bodies = [body for _, kind, body in FENCE.findall(page.read_text(encoding="utf-8")) if kind == "{toctree}"]
    entries = [line for body in bodies for line in body.splitlines() if line and not line.startswith(":")]
    named = [page.parent / f"{entry}.md" for entry in entries if not generated(page.parent / entry)]
    return [found.resolve() for file in named for found in sorted(file.parent.glob(file.name)) or [file]]


def table_rows(text: str) -> list[list[str]]:
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows]


def test_every_test_named_in_a_page_exists() -> None:
    assert len(NAMED_TEST.findall((ROOT / "docs/reference/pitfall-tests.md").read_text(encoding="utf-8"))) > 40
    for page in PAGES:
        assert missing_tests(page.read_text(encoding="utf-8")) == [], page.name


def test_a_test_that_does_not_exist_is_found() -> None:
    here = "tests/test_docs.py::test_a_test_that_does_not_exist_is_found"
    assert missing_tests(f"`{here}` `{here}_not` `tests/nowhere.py::test_x`") == [
        f"{here}_not",
        "tests/nowhere.py::test_x",
    ]


def test_every_pitfall_has_a_test() -> None:
    pitfalls, tests = (
        [
            row
            for row in table_rows((ROOT / "docs" / page).read_text(encoding="utf-8"))
            if row[0] not in ("pitfall", "---")
        ]
        for page in ("explanation/pitfalls.md", "reference/pitfall-tests.md")
    )
    assert [row[0] for row in pitfalls] == [row[0] for row in tests]
    for pitfall, severity, done in pitfalls:
        assert severity in {"voids", "leaks", "weakens", "wrong", "yours"}, pitfall
        assert "not yet" not in done, pitfall
    for pitfall, test in tests:
        assert NAMED_TEST.search(test), pitfall


def test_links_inside_the_repository_lead_somewhere() -> None:
    found = {str(page.relative_to(ROOT)): broken_links(page, page.read_text(encoding="utf-8")) for page in PAGES}
    assert {name: links for name, links in found.items() if links} == {}


def test_a_broken_link_is_found() -> None:
    text = "[a](docs/nowhere.md) [b](https://example.org) [c](README.md#limits)"
    assert broken_links(ROOT / "README.md", text) == ["docs/nowhere.md"]
    assert broken_links(ROOT / "README.md", "[c](README.md#nowhere) [d](#limits)") == ["README.md#nowhere"]


def test_the_sites_contents_reach_every_page_once() -> None:
    docs, reached = ROOT / "docs", [ROOT / "docs/index.md"]
    for page in reached:  # grows on the way
        reached += toctree(page)
    names = [str(page.relative_to(docs).with_suffix("")) for page in reached]
    assert len(names) == len(set(names))
    there = {str(page.relative_to(docs).with_suffix("")) for page in docs.rglob("*.md")}
    assert {name for name in there if not name.startswith(GENERATED)} == set(names)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def commands(text: str) -> list[str]:
    """Commands of the library in the page's fences, without prompts, comments and broken lines."""
    lines = [line for _, _, body in FENCE.findall(text) for line in body.replace("\\\n", " ").splitlines()]
    bare = [line.removeprefix("$ ").split(" #")[0].strip() for line in lines]
    return [line for line in bare if line.startswith("decrescendo ")]


def understood(line: str) -> str | None:
    """Why the command line would refuse these words, without running the command."""
    _, name, *arguments = shlex.split(line)
    command = typer.main.get_command(app).commands[name]
    try:
        command.make_context(name, arguments)
    except Exception as error:  # any refusal is one
        return str(error)
    return None


def test_every_command_in_a_page_is_one_that_the_command_line_understands() -> None:
    refused = {line: understood(line) for page in PAGES for line in commands(page.read_text(encoding="utf-8"))}
    assert {line: why for line, why in refused.items() if why} == {}


def test_a_command_that_is_not_understood_is_found() -> None:
    assert commands("```sh\n$ decrescendo plan --x 1 # y\n```") == ["decrescendo plan --x 1"]
    assert "No such option" in str(understood("decrescendo plan --x 1"))
    assert "epsilon" in str(understood("decrescendo plan"))


def test_every_public_name_is_in_the_glossary_or_the_readme() -> None:
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in ("docs/reference/glossary.md", "README.md"))
    assert [name for name in dir(dc) if not re.search(rf"\bdc\.{name}\b", text)] == []


@pytest.mark.parametrize(
    ("page", "package", "least"),
    [("docs/reference", "src/decrescendo", 30), ("papers/docs", "papers/src/decrescendo_papers", 15)],
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
    assert [name for name in named if not any((of / name).exists() for of in (ROOT, ROOT / "src/decrescendo"))] == []
    for name in re.findall(r"`curves\.(\w+)`", section):
        assert hasattr(dc.curves, name), name


def test_every_public_name_is_in_the_index_with_its_file() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text[text.index("## Public names, by file") : text.index("## Seams")]
    found: dict[str, set[str]] = {}
    for file, names in re.findall(r"^\| `([\w/]+)` \| (.*) \|$", section, re.MULTILINE):
        assert (ROOT / f"src/decrescendo/{file}.py").is_file(), file
        found[f"decrescendo.{file}".replace("/", ".")] = set(names.split(", "))
    public: set[str] = set()
    for name in PUBLIC_ROOMS:
        room = importlib.import_module(f"decrescendo.{name}")
        things = {key: getattr(room, key) for key in room.__all__}
        public |= {key for key, thing in things.items() if not inspect.ismodule(thing)}
        for key, thing in things.items():
            home = getattr(thing, "__module__", "") if inspect.isroutine(thing) or inspect.isclass(thing) else ""
            assert not home.startswith("decrescendo.") or key in found.get(home, ()), (key, home)
    rest = {name for file, names in found.items() if not re.search(r"\.(flower|hf)\.", file) for name in names}
    assert public == rest


def packages_in_the_architecture() -> list[tuple[list[str], list[str]]]:
    """Of each section under "Packages": the folders in its heading, and the files in the first column of its table."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    _, *sections = text[text.index("## Packages") : text.index("## Who may import whom")].split("\n### ")
    return [
        (
            re.findall(r"`([\w/]+)/`", section.splitlines()[0]),
            [
                name
                for row in table_rows(section)
                if row[0] not in ("files", "---")
                for name in re.findall(r"`([^`]+)`", row[0])
            ],
        )
        for section in sections
    ]


def test_every_file_that_the_architecture_speaks_of_exists() -> None:
    sections = packages_in_the_architecture()
    assert sum(len(names) for _, names in sections) > 150
    library, missing = ROOT / "src/decrescendo", []
    for folders, names in sections:
        # Where a section has several folders, its files are named from the one above.
        above = [(ROOT if one.startswith("papers/") else library) / one for one in folders] or [library]
        places = above if len(above) == 1 else [above[0].parent]
        for name in names:
            missing += [name] if not any((at / f"{name}{end}").exists() for at in places for end in ("", ".py")) else []
    assert missing == []


def test_every_package_of_the_library_is_in_the_architecture() -> None:
    library = ROOT / "src/decrescendo"
    folders = {folder for found, _ in packages_in_the_architecture() for folder in found}
    inner = {
        f"{found[0]}/{name}".rstrip("/") for found, names in packages_in_the_architecture() for name in names if found
    }
    direct = {name.rstrip("/") for _, names in packages_in_the_architecture() for name in names}
    packages = {str(path.parent.relative_to(library)) for path in library.rglob("*/__init__.py")}
    assert len(packages) > 20
    assert packages - folders - inner - direct == set()


def test_no_cell_of_a_table_in_the_architecture_is_too_long_to_be_read_at_once() -> None:
    rows = table_rows((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    assert len(rows) > 100
    assert [cell for row in rows for cell in row if len(cell) > 300] == []
