"""The last campaign: what was promised of it, and that the page shows what was measured."""

import json
import re
from pathlib import Path

from fuzzing import TARGETS

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
