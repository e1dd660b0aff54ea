"""One small plan file, calibrated once, and a runner."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from decrescendo.cli import app

Invoke = Callable[..., Result]
SMALL = ["--epsilon", "2", "--delta", "1e-5", "--dataset-size", "1438", "--batch", "200", "--steps", "4"]


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Invoke:
    """Runs the command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="session")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dynamic, 4 steps, for the digits."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    result = CliRunner().invoke(app, ["plan", *SMALL, "--save", str(path)])
    assert result.exit_code == 0, result.output
    return path


def facts(result: Result) -> dict[str, Any]:
    """Standard output as JSON; nothing else may be on it."""
    return json.loads(result.stdout)
