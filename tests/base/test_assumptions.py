"""The table of assumptions: codes are slugs, sentences say what must be true, and the page is the table."""

import re
from pathlib import Path

import pytest
from assumptions_page import PAGE, page

import decrescendo
from decrescendo.base.assumption import BEGINS, Assumption, are_independent, independence, read_assumption
from decrescendo.base.assumptions import TEMPLATES, assumed, template
from decrescendo.errors import InvalidType, InvalidValue

SOURCE = Path(decrescendo.__file__).parent


def test_the_page_is_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


def test_each_code_stands_once() -> None:
    codes = [one.code for one in TEMPLATES]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("one", TEMPLATES, ids=lambda one: one.code)
def test_a_sentence_says_what_must_be_true(one: object) -> None:
    """One sentence with a verb in the present tense, and neither `proven` nor `supposed` in it."""
    found = template(getattr(one, "code", ""))
    said = found.format(*["name"] * found.sentence.count("{}"))
    assert said.sentence.startswith(BEGINS)
    assert not said.sentence.endswith(".")
    assert not re.search(r"\b(proven|supposed|apart|trust|proof)\b", " ".join(found))
    assert not found.sentence.startswith("that a ")
    for text in found:
        assert text, found.code
    assert read_assumption(said.written()) == said


def test_each_code_is_used_and_no_other() -> None:
    """A code that nothing assumes any more goes out of the table, and off the page."""
    text = "\n".join(
        path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py") if path.name not in ("assumption.py",)
    )
    used = set(re.findall(r'\b(?:assumed|template)\(\s*"([a-z0-9-]+)"', text))
    assert used == {one.code for one in TEMPLATES}


def test_what_begins_with_rows_alone_is_of_the_independence_of_rows() -> None:
    own, rows = assumed("own-collate-fn"), assumed("rows-own-generator")
    assert are_independent([own])
    assert independence([own]) == "yes, checked at every pass"
    assert not are_independent([own, rows])
    assert independence([own, rows]) == "no, assumed in part (rows-own-generator)"
    # A code of a later version says by itself what it is of.
    assert not are_independent([read_assumption("rows-by-a-later-version: Assumed: it is so")])


@pytest.mark.parametrize("code", ["", "Own", "own code", "own_code", "own-", "-own"])
def test_a_code_is_a_slug(code: str) -> None:
    with pytest.raises(InvalidValue, match="code must be of small letters"):
        Assumption(code, "Assumed: it is so")


@pytest.mark.parametrize("sentence", ["", "it is so", "assumed: it is so", "Assumed:", "Assumed: "])
def test_a_sentence_begins_with_assumed(sentence: str) -> None:
    with pytest.raises(InvalidValue, match="sentence must begin with"):
        Assumption("own", sentence)


def test_a_sentence_is_one_line_without_control_characters() -> None:
    assert Assumption("own", "Assumed: a\n\nb\x1b[2Jc").sentence == "Assumed: a b\ufffd[2Jc"


@pytest.mark.parametrize(
    ("text", "error"),
    [(3, InvalidType), (None, InvalidType), (" ", InvalidValue), ("assumed: it is public", InvalidValue)],
)
def test_what_is_no_text_is_no_assumption(text: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        read_assumption(text)
