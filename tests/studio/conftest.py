"""A studio that answers, and a browser."""

import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser import CHROMIUM, Browser

if TYPE_CHECKING:
    from decrescendo.studio.server import Studio

Open = Callable[..., "Studio"]
# Without the extra `studio` there is nothing to test.
collect_ignore_glob = [] if find_spec("uvicorn") and find_spec("starlette") else ["test_*.py"]


@pytest.fixture
def opened() -> Generator[Open]:
    """Starts a studio in a thread; with a path, as `decrescendo studio PATH` does."""
    from decrescendo.studio.server import Studio

    with ExitStack() as after:

        def start(path: Path | None = None) -> "Studio":
            studio = Studio(path=path)
            thread = threading.Thread(target=studio.run)
            thread.start()
            after.callback(thread.join, 30)
            after.callback(studio.close)
            return studio

        yield start


@pytest.fixture
def browser(tmp_path: Path) -> Generator[Browser]:
    """A new browser that saves into ``tmp_path``."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with Browser(tmp_path) as found:
        yield found
