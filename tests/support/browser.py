"""A headless Chromium, driven by mouse and keyboard through its own DevTools pipe: no driver to install.

``--remote-debugging-pipe`` takes JSON commands from file descriptor 3 and answers on 4, each ended by a zero byte.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless=new --remote-debugging-pipe --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync --disable-dev-shm-usage "
    "--disable-extensions --hide-scrollbars --force-color-profile=srgb"
)


class Browser:
    """One page; use as a context manager.

    Args:
        downloads: folder for files that the page saves.
    """

    def __init__(self, downloads: Path) -> None:
        assert CHROMIUM is not None
        self._folder = tempfile.mkdtemp(prefix="browser")
        theirs, self._write = os.pipe()
        self._read, ours = os.pipe()
        # bash hands the two ends over as 3 and 4, which is where Chromium looks.
        command = f'exec "{CHROMIUM}" {FLAGS} --user-data-dir="{self._folder}" about:blank 3<&{theirs} 4>&{ours}'
        self._process = subprocess.Popen(
            ["bash", "-c", command],
            pass_fds=(theirs, ours), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs)
        os.close(ours)
        self._buffer, self._number, self._session = b"", 0, ""
        self.requested: list[str] = []
        self.complaints: list[str] = []
        pages = [t for t in self("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        self._session = self("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "DOM", "Log"):
            self(f"{domain}.enable")
        self("Page.setDownloadBehavior", behavior="allow", downloadPath=str(downloads))

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; events in between are remembered."""
        self._number += 1
        command: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        while True:
            message = self._message()
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]

    def _message(self, patience: float = 60) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], patience)[0]:
                raise TimeoutError("the browser says nothing")
            found = os.read(self._read, 1 << 20)
            if not found:
                raise RuntimeError("the browser has ended")
            self._buffer += found
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._remember(message)
        return message

    def _remember(self, message: dict[str, Any]) -> None:
        facts = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requested.append(facts["request"]["url"])
        elif message.get("method") == "Runtime.exceptionThrown":
            details = facts["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif message.get("method") == "Log.entryAdded" and facts["entry"]["level"] == "error":
            self.complaints.append(facts["entry"]["text"])

    def go(self, url: str) -> None:
        """Open a page."""
        self("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """What JavaScript says."""
        found = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"]["description"])
        return found["result"].get("value")

    def until(self, expression: str, seconds: float = 120) -> None:
        """Wait until JavaScript says so."""
        end = time.monotonic() + seconds
        while not self.value(expression):
            if time.monotonic() > end:
                raise TimeoutError(f"never: {expression}; the page says {self.value('document.body.innerText')!r}")
            time.sleep(0.05)

    def size(self, wide: int, high: int = 900) -> None:
        """Of the window, in pixels."""
        phone = {"width": wide, "height": high, "deviceScaleFactor": 1, "mobile": wide < 500}
        self("Emulation.setDeviceMetricsOverride", **phone)

    def dark(self, on: bool) -> None:
        """The colours that the person prefers."""
        preferred = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self("Emulation.setEmulatedMedia", features=[preferred])

    def place(self, selector: str, across: float = 0.5, down: float = 0.5) -> tuple[float, float]:
        """A point of an element, scrolled into sight."""
        box = self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'});"
            "const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()"
        )
        return box[0] + across * box[2], box[1] + down * box[3]

    def mouse(self, kind: str, at: tuple[float, float], down: bool = False) -> None:
        """``mousePressed``, ``mouseMoved`` or ``mouseReleased``."""
        button = "none" if kind == "mouseMoved" and not down else "left"
        self(
            "Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button=button, buttons=int(down), clickCount=1
        )  # fmt: skip

    def click(self, selector: str, across: float = 0.5, down: float = 0.5) -> None:
        """With the mouse."""
        at = self.place(selector, across, down)
        self.mouse("mouseMoved", at)
        self.mouse("mousePressed", at, down=True)
        self.mouse("mouseReleased", at)

    def drag(self, selector: str, start: float, end: float, *, upright: bool = False) -> None:
        """A slider, from one share of it to another, with the mouse."""
        points = [start + (end - start) * i / 4 for i in range(5)]
        places = [self.place(selector, 0.5, point) if upright else self.place(selector, point) for point in points]
        self.mouse("mouseMoved", places[0])
        self.mouse("mousePressed", places[0], down=True)
        for place in places[1:]:
            self.mouse("mouseMoved", place, down=True)
        self.mouse("mouseReleased", places[-1])

    def type(self, selector: str, text: str) -> None:
        """In place of what stands there."""
        self.click(selector)
        self.value(f"document.querySelector({json.dumps(selector)}).select()")
        self("Input.insertText", text=text)

    def choose(self, selector: str, value: str) -> None:
        """An option of a list; headless pages draw no list, so the keyboard does it."""
        at = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{at}.focus()")
        steps = self.value(f"[...{at}.options].findIndex(o => o.value === {json.dumps(value)}) - {at}.selectedIndex")
        name = "ArrowDown" if steps > 0 else "ArrowUp"
        code = 40 if steps > 0 else 38
        for _ in range(abs(steps)):
            for kind in ("keyDown", "keyUp"):
                self("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)

    def give(self, selector: str, files: Sequence[Path]) -> None:
        """Files for a file input, as its dialog would."""
        root = self("DOM.getDocument")["root"]["nodeId"]
        node = self("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """A screenshot, of the whole page or of the window."""
        found = self("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))
