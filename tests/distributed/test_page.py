"""The script of the page runs as it stands, here in one process."""

import re
from pathlib import Path

import pytest

from decrescendo.training.run import Run

PAGE = Path(__file__).parents[2] / "docs/how-to/distribute.md"


def test_the_pages_script_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, *_ = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    monkeypatch.chdir(tmp_path)
    exec(compile(script, "train.py", "exec"), {"__name__": "__main__"})
    assert Run.load(tmp_path / "run").steps == 100
