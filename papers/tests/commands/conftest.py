"""A runner of the reproduction's commands."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from decrescendo_papers.cli import app

Invoke = Callable[..., Result]


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Invoke:
    """Runs the command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


def facts(result: Result) -> dict[str, Any]:
    """Standard output as JSON; nothing else may be on it."""
    return json.loads(result.stdout)
