"""Every wrong input gives one clear error of this package's own, and leaves nothing behind."""

import functools
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from wrong_inputs_cases import CASES, outcome

SCRIPT = Path(__file__).parents[1] / "support" / "wrong_inputs_cases.py"


@functools.cache
def outcomes(config: pytest.Config) -> dict[str, Any]:
    """All cases, tried once; in another process where a type checker stands before the library's own checks here."""
    if not config.getoption("jaxtyping_packages"):
        with warnings.catch_warnings():  # torch's, which are none of an error's
            warnings.simplefilter("ignore")
            return {name: outcome(make) for name, (_, _, make) in CASES.items()}
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_input_is_refused_in_words_and_leaves_no_trace(name: str, pytestconfig: pytest.Config) -> None:
    error, words, _ = CASES[name]
    found = outcomes(pytestconfig)[name]
    assert found["ours"], f"{found['error']}: {found['message']}\n{found['trace']}"
    assert found["error"] == error, found["message"]
    assert re.search(words, found["message"]), found["message"]
    assert ", got" in found["message"] or ": got" in found["message"], "what was got is not said"
    assert found["left"] == []


def test_the_cases_are_many() -> None:
    assert len(CASES) >= 40
