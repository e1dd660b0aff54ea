"""A studio that answers, and a browser."""

import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")
from decrescendo.studio.server import Studio

Open = Callable[..., Studio]


@pytest.fixture
def opened() -> Generator[Open]:
    """Starts a studio in a thread; with a path, as `decrescendo studio PATH` does."""
    with ExitStack() as after:

        def start(path: Path | None = None) -> Studio:
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
