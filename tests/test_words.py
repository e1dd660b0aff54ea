"""One word, one meaning: words that have given way to the field's do not come back."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (ROOT / "src/decrescendo", ROOT / "papers/src/decrescendo_papers")
PAGES = sorted(
    page
    for folder in ("docs", "papers/docs", "examples")
    for page in (ROOT / folder).rglob("*.md")
    if "adr" not in page.parts  # what was decided when
)
# Names of files, of classes and functions, of arguments and variables; and what is said now.
RETIRED = {
    "Terms": "AdaptivePlan", "Steered": "AdaptiveRun", "Seen": "PolicyContext",
    "Untouched": "FrozenStateGuard", "thawed": "unfreeze", "Quiet": "the proof", "calm": "the proof",
    "judged": "certify", "Spent": "EpsilonCurve", "sketch": "text_plot", "Conduct": "Provenance",
    "conduct": "provenance", "weighing": "clip factors", "SERVER": "CENTRAL", "SHARES": "DISTRIBUTED",
    "sandwich": "discretisation", "Dots": "LossGrid", "dots": "grid", "place_dots": "place_grid",
    "Prices": "MarginalCosts", "prices": "costs", "noise_weights": "noise_influence", "Means": "Workspace",
    "kept_bytes": "cache_bytes",
}  # fmt: skip
FILES = {
    "terms",
    "steered",
    "seen",
    "untouched",
    "judged",
    "spent",
    "sketch",
    "conduct",
    "sandwich",
    "prices",
    "kept",
}


def names_of(tree: ast.AST) -> set[str]:
    """What a file calls its classes, functions, arguments, attributes and variables."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.keyword) and node.arg:
            found.add(node.arg)
    return found


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_no_name_in_the_code_is_a_retired_word(package: Path) -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}, now {RETIRED[name]}"
        for path in package.rglob("*.py")
        for name in names_of(ast.parse(path.read_text(encoding="utf-8"))) & RETIRED.keys()
    }
    assert found == set()


def test_no_file_is_called_by_a_retired_word() -> None:
    assert [str(path) for package in PACKAGES for path in package.rglob("*.py") if path.stem in FILES] == []


def test_no_page_names_a_retired_word_as_code() -> None:
    found = {
        f"{page.relative_to(ROOT)}: {word}"
        for page in PAGES
        for code in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))
        for word in re.findall(r"\w+", code)
        if word in RETIRED
    }
    assert found == set()


def test_weights_are_parameters_only() -> None:
    """Plans and accountants have no parameters: what they multiply by are influences, factors and coefficients."""
    for room in ("plans", "accounting"):
        for path in (PACKAGES[0] / room).rglob("*.py"):
            # (numpy's own arguments, and the nodes and weights of a quadrature, are their authors' words.)
            found = {
                name for name in names_of(ast.parse(path.read_text(encoding="utf-8"))) if "weight" in name
            }
            assert found <= ({"weights", "weight"} if path.stem == "gaussian" else {"weights"}), path


def test_a_retired_word_is_found() -> None:
    tree = ast.parse("def judged(dots): return Terms(dots).thawed()")
    assert names_of(tree) & RETIRED.keys() == {"judged", "dots", "Terms", "thawed"}
