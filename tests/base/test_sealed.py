"""Facts: sealed files keep the checksums they always had; whatever is damaged, foreign or newer is refused."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from decrescendo.base import sealed
from decrescendo.errors import FileRefused

BODY: dict[str, Any] = {"format": "toy", "version": 2, "b": [1, 2.5, None], "a": {"z": "é", "y": True}}


def test_the_checksum_is_that_of_sorted_keys_without_white_space() -> None:
    text = '{"a":{"y":true,"z":"\\u00e9"},"b":[1,2.5,null],"format":"toy","version":2}'
    assert sealed.digest(BODY) == hashlib.sha256(text.encode()).hexdigest()
    spaced = text.replace(":", ": ").replace(",", ", ")
    assert sealed.digest(BODY, spaced=True) == hashlib.sha256(spaced.encode()).hexdigest()


@pytest.mark.parametrize("indent", [None, 1])
def test_what_was_sealed_is_opened_however_it_is_laid_out(indent: int | None) -> None:
    text = sealed.seal(BODY, indent=indent)
    assert list(json.loads(text))[-1] == "sha256"
    assert sealed.opened(text, "toy.json", "toy", 1, 2) == BODY
    shuffled = json.dumps(dict(reversed(json.loads(text).items())))
    assert sealed.opened(shuffled, "toy.json", "toy", 2) == BODY


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda text: text[:-4], "must be JSON"),
        (lambda text: text.replace("2.5", "NaN"), "must be JSON"),
        (lambda text: text.replace("2.5", "2.6"), "its own checksum"),
        (lambda text: text.replace('"toy"', '"zip"'), "a foreign file"),
        (lambda text: text.replace('"version": 2', '"version": 3'), "must be of version 2, got version=3"),
        (lambda text: text.replace('"version": 2', '"version": true'), "must be of version 2"),
        (lambda text: text.replace('"b"', '"c"'), "a difference in b, c"),
        (lambda text: "[1]", "a foreign file"),
        (lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != "sha256"}), "checksum"),
    ],
)
def test_anything_else_is_refused_in_words(edit: Any, words: str) -> None:
    with pytest.raises(FileRefused, match=f"^toy.json .*{words}"):
        sealed.opened(edit(sealed.seal(BODY)), "toy.json", "toy", 2, keys=BODY.keys())


def test_entries_may_be_free_or_differ_by_version() -> None:
    text = sealed.seal({**BODY, "more": 1})
    assert sealed.opened(text, "toy.json", "toy", 2, keys={2: BODY.keys()}, free={"more"})["more"] == 1
    with pytest.raises(FileRefused, match="a difference in more"):
        sealed.opened(text, "toy.json", "toy", 2, keys={2: BODY.keys()})


def test_numbers_without_a_value_are_refused_unless_asked_for() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        sealed.seal({"epsilon": float("inf")})
    assert "Infinity" in sealed.seal({"epsilon": float("inf")}, finite=False)


def test_a_file_is_written_and_read(tmp_path: Path) -> None:
    path = sealed.write(tmp_path / "deep/toy.json", "toy", 1, {"a": 1})
    assert sealed.read(path, "toy", 1) == {"a": 1}
    with pytest.raises(FileRefused, match="version 2"):
        sealed.read(path, "toy", 2)
    with pytest.raises(FileRefused, match="readable"):
        sealed.read(tmp_path / "nowhere.json", "toy", 1)
