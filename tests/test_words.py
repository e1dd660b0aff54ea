"""One word, one meaning: words that have given way to the field's do not come back."""

import ast
import functools
import re
from pathlib import Path

import pytest
from nodes import nodes, parsed

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
    "kept_bytes": "cache_bytes", "supposed": "assumptions", "heed": "observe", "owes": "can_be_cost_of",
    "unheard": "no_record", "gone_on": "start_or_resume", "go_on_reading": "restore_readings",
    "life_of": "new_run_state", "decided_clip_norm": "chosen_clip_norms",
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

# Ways to say it in prose (pages, docstrings, messages) that readers stumbled over, and what is said now.
RETIRED_PROSE = {
    r"suppos(?:e|es|ed|ing|ition)": "assume, assumed",
    r"hangs? on": "depends on",
    r"done again": "repeated (a step), replayed (a captured pass)",
    r"proven (?:pass|passes|program|step)": "checked pass",
    r"(?:proven|stays?|keeps? (?:the )?examples|examples (?:are|is)|sees? no example) apart": "independent per example",
    r"is no other (?:after|for)": "does not depend on",
    r"how manieth": "index",
    r"cut (?:batches|ones)|batches that (?:are|were) cut(?! from)|batch that was cut": "truncated batches",
    r"(?:earlier|killed|own|all) li(?:fe|ves)": "process, restart",
    r"doors?": "public API, function",
    r"leaves? the house": "is published",
    r"judged by (?!a t test)": "accounted by",
    r"held against": "compared with",
    r"said in words": "documented, written",
    r"taken? on trust": "assumed",
    r"who has it in hand": "the caller",
}
# What files of earlier versions say, and pages that programs write from results.
KEPT_PROSE = ("each moving schedule is held against constant noise",)
WRITTEN_BY_PROGRAMS = ("docs/reference/coverage", "papers/docs/reproduction")


def prose_of(path: Path) -> str:
    """A page without code and link targets; of a source file its docstrings and texts, without doctests."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        texts = [one.value for one in nodes(parsed(text)) if isinstance(one, ast.Constant)]
        text = "\n".join(one for one in texts if isinstance(one, str) and " " in one)
        text = re.sub(r"^ *(?:>>>|\.\.\. |\w+:).*$", lambda one: one[0].partition(": ")[2], text, flags=re.MULTILINE)
    else:
        text = re.sub(r"^(```+).*?^\1", "", text, flags=re.DOTALL | re.MULTILINE)
    for kept in KEPT_PROSE:
        text = text.replace(kept, "")
    return " ".join(re.sub(r"`+[^`\n]+`+|\]\([^)]*\)", " ", text).split())


def retired_prose(text: str) -> list[str]:
    return [
        f"{found[0]!r}, now {now}"
        for said, now in (RETIRED_PROSE.items() if as_words(*RETIRED_PROSE).search(text) else ())
        for found in as_words(said).finditer(text)
    ]


@functools.cache
def as_words(*said: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(said)})(?:\b|(?<= ))", re.IGNORECASE)


def names_of(text: str, wanted: str) -> set[str]:
    """Which of the words that match ``wanted`` a source calls a class, function, argument, attribute or variable."""
    found: set[str] = set()
    for node in nodes(parsed(text)) if re.search(wanted, text) else ():
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
    return {name for name in found if re.search(wanted, name)}


RETIRED_WORD = rf"\b(?:{'|'.join(RETIRED)})\b"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_no_name_in_the_code_is_a_retired_word(package: Path) -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}, now {RETIRED[name]}"
        for path in package.rglob("*.py")
        for name in names_of(path.read_text(encoding="utf-8"), RETIRED_WORD)
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


@pytest.mark.parametrize("package", [*PACKAGES, None], ids=lambda path: path.name if path else "pages")
def test_no_page_docstring_or_message_has_a_retired_turn_of_phrase(package: Path | None) -> None:
    pages = [ROOT / "README.md", ROOT / "papers/README.md", *PAGES]
    found = {
        f"{name}: {one}"
        for path in (package.rglob("*.py") if package else pages)
        if not (name := str(path.relative_to(ROOT))).startswith(WRITTEN_BY_PROGRAMS)
        for one in retired_prose(prose_of(path))
    }
    assert found == set()


def test_a_retired_turn_of_phrase_is_found() -> None:
    text = "The answer hangs on the step. It is supposed that a pass done again is no other for other examples."
    assert len(retired_prose(text)) == 4
    assert retired_prose("It depends on the step, is assumed, and is replayed; the trials stand 0.1 apart.") == []


def test_weights_are_parameters_only() -> None:
    """Plans and accountants have no parameters: what they multiply by are influences, factors and coefficients."""
    for room in ("plans", "accounting"):
        for path in (PACKAGES[0] / room).rglob("*.py"):
            # (numpy's own arguments, the nodes and weights of a quadrature, and torch's weight decay are their authors'
            # words.)
            found = names_of(path.read_text(encoding="utf-8"), "weight")
            assert found <= ({"weights", "weight"} if path.stem == "gaussian" else {"weights", "weight_decay"}), path


def test_a_retired_word_is_found() -> None:
    text = "def judged(dots): return Terms(dots).thawed()"
    assert names_of(text, RETIRED_WORD) == {"judged", "dots", "Terms", "thawed"}
