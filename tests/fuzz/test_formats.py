"""Whatever is read: a value that is the same when written and read again, or one clear error; nothing else, in time.

A few inputs of each format, made by hypothesis; `python -m benchmarks.fuzz` makes many more, and its last campaign is
judged.
"""

import json
import re
from pathlib import Path

import pytest
from fuzzing import TARGETS, Files, Outcome, Target, judge, judge_files
from fuzzing.judging import Failure
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = {"command-line": 4, "store": 10, "checkpoint": 10, "journal": 10, "keeper": 10}


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "command-line"])
def test_every_seed_is_accepted(name: str) -> None:
    for files in TARGETS[name].seeds():
        assert judge_files(TARGETS[name], files) is Outcome.ACCEPTED


@pytest.mark.parametrize("name", TARGETS)
def test_any_change_is_read_or_refused_clearly(name: str) -> None:
    @settings(
        max_examples=EXAMPLES.get(name, 8),
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(st.binary(min_size=1, max_size=48))
    def run(data: bytes) -> None:
        judge(TARGETS[name], data)

    run()


def _broken(read: object) -> Target:
    return Target("broken", lambda: [{"a": b"{}"}], read)  # type: ignore[arg-type]


def test_the_harness_sees_a_wrong_error() -> None:
    with pytest.raises(Failure, match="KeyError"):
        judge(_broken(lambda folder: {}["a"]), b"")


def test_the_harness_sees_a_changed_file() -> None:
    with pytest.raises(Failure, match="files changed"):
        judge(_broken(lambda folder: (folder / "b").write_text("half")), b"")


def test_the_harness_sees_what_does_not_come_back() -> None:
    files: Files = {"a": b"1"}
    target = Target("broken", lambda: [files], lambda folder: 1, again=lambda value, folder: 2)
    with pytest.raises(Failure, match="read again"):
        judge(target, b"")


def test_the_harness_sees_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzzing.judging.SECONDS", 0.05)

    def forever(folder: object) -> None:
        while True:
            pass

    with pytest.raises(Failure, match="seconds"):
        judge(_broken(forever), b"")


ROOT = Path(__file__).resolve().parents[2]
CONTENT = json.loads((ROOT / "results" / "fuzz.json").read_text(encoding="utf-8"))


def test_a_hundred_thousand_inputs_of_every_format_and_no_failure() -> None:
    assert CONTENT["targets"].keys() == TARGETS.keys()
    assert CONTENT["total"]["inputs"] >= 100_000
    assert CONTENT["total"]["failed"] == 0
    for name, row in CONTENT["targets"].items():
        assert row["inputs"] == row["accepted"] + row["refused"] + row["failed"] > 0, name
        assert row["accepted"] > 0, name  # changes that change nothing that matters are made too
        assert row["refused"] > 0, name


def test_the_page_has_the_numbers_of_the_file() -> None:
    page = (ROOT / "docs" / "explanation" / "fuzzing.md").read_text(encoding="utf-8")
    rows = {row[0]: row[1:] for row in (re.split(r" \| ", line.strip("| ")) for line in page.splitlines())}
    for name, facts in {**CONTENT["targets"], "all": CONTENT["total"]}.items():
        shown = [int(cell.replace(",", "")) for cell in rows[name][:4]]
        assert shown == [facts["inputs"], facts["accepted"], facts["refused"], facts["failed"]], name
