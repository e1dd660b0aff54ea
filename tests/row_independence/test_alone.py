"""Fact: what follows a pass knows nothing of clipping."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_it_loads_nothing_of_clipping() -> None:
    code = (
        "import sys, decrescendo.row_independence.tracing\n"
        "print([name for name in sys.modules if name.startswith('decrescendo.clipping')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
