"""The page's server: on the loopback address only, nothing kept on disk, nothing asked of anybody else.

Who may ask: whoever knows the address, which has a fresh random word in it. A web site cannot: it cannot guess the
word, a name of its own that leads here is refused (`Host`), and no other origin may read an answer. The page may load
nothing from anywhere else (Content-Security-Policy), has no cookies, and is not to be stored.
"""

import base64
import binascii
import json
import secrets
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, final

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from decrescendo.errors import DecrescendoError, FileRefused, InvalidValue, check_real
from decrescendo.studio.facts import Subject, assess, outline, text_of
from decrescendo.studio.opening import Opened, from_files, from_path
from decrescendo.studio.settings import read

ADDRESS, HOSTS = "127.0.0.1", ["127.0.0.1", "localhost"]
LARGEST = 256 * 2**20
KEPT = 20_000  # subjects: several of the largest stores
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@final
class Desk:
    """What is open, by numbers that the page knows; one computation at a time."""

    def __init__(self) -> None:
        self._subjects: OrderedDict[int, Subject] = OrderedDict()
        self._next = 0
        # What each page asked for last, and who computes.
        self._wanted: dict[str, object] = {}
        self._turn = threading.Lock()
        self.first: dict[str, Any] | None = None

    def put(self, subject: Subject) -> int:
        """Its number."""
        self._next += 1
        self._subjects[self._next] = subject
        while len(self._subjects) > KEPT:
            self._subjects.popitem(last=False)
        return self._next

    def show(self, opened: Opened) -> dict[str, Any]:
        """What was opened, for the page."""
        subjects, store = opened
        numbers = [self.put(subject) for subject in subjects]
        return {"store": store, "numbers": numbers} if store else self.outline(numbers[0])

    def outline(self, number: int) -> dict[str, Any]:
        """`facts.outline` of a subject, with its number."""
        return {"number": number, **outline(self._get(number))}

    def plan(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The controls as a plan."""
        settings = read(asked["form"])
        quick = bool(asked.get("quick"))
        # The controls' own code would make the plan that is not quick: a script for this one loads it.
        return self.outline(self.put(Subject.of("plan", settings.plan(quick=quick), None if quick else settings)))

    def judge(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """`facts.assess` of a subject."""
        return assess(self._get(asked["number"]), asked["part"])

    def look(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """A subject that is open, again."""
        return self.outline(asked["number"])

    def open(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Files as the page read them: names and base64."""
        try:
            given = {str(name): base64.b64decode(text, validate=True) for name, text in asked["files"].items()}
        except (AttributeError, TypeError, binascii.Error) as error:
            raise FileRefused(f"files must be names and base64, got {error}") from None
        rate = check_real("sample_rate", asked["sample_rate"], above=0, at_most=1)
        delta = check_real("delta", asked["delta"], above=0, below=1)
        return self.show(from_files(given, sample_rate=rate, delta=delta))

    def start(self, asked: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002 (as the others)
        """What the command line named, if anything."""
        return self.first or {}

    def file(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """One file to download."""
        return {"text": text_of(self._get(asked["number"]), asked["name"])}

    def _get(self, number: Any) -> Subject:
        found = self._subjects.get(number)
        if found is None:
            raise InvalidValue(f"number must be of something that is open, got {number!r}. Open it again")
        return found

    def answer(self, ask: Callable[[Mapping[str, Any]], dict[str, Any]], asked: Any, page: str = "") -> JSONResponse:
        """One at a time, so that a dragged slider does not fill the machine; what is refused is an answer too.

        Of what ``page`` asked while it waited, only the last is computed.
        """
        asked_now = object()
        if page:
            self._wanted[page] = asked_now
        try:
            with self._turn:
                if page and self._wanted[page] is not asked_now:
                    return JSONResponse({"error": "the page asked for something else"}, status_code=409)
                return JSONResponse(ask(asked))
        except DecrescendoError as error:
            return JSONResponse({"error": " ".join(str(error).split())}, status_code=422)
        except MemoryError:
            words = "the plan must fit into memory, got one that does not. Take fewer steps"
            return JSONResponse({"error": words}, status_code=422)
        except (KeyError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
            return JSONResponse({"error": f"the page must ask in its own form, got {error!r}"}, status_code=400)


def application(token: str, desk: Desk) -> Starlette:
    """The application under ``/token/``."""

    def route(name: str, ask: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Route:
        async def endpoint(request: Request) -> JSONResponse:
            if int(request.headers.get("content-length", LARGEST + 1)) > LARGEST:
                words = f"files must be smaller than {LARGEST >> 20} MiB. decrescendo studio FILE opens larger ones"
                return JSONResponse({"error": words}, status_code=413)
            try:
                asked = json.loads(await request.body())
            except (ValueError, RecursionError):
                return JSONResponse({"error": "the page must ask in JSON, got something else"}, status_code=400)
            return await run_in_threadpool(desk.answer, ask, asked, request.headers.get("x-page", ""))

        return Route(f"/api/{name}", endpoint, methods=["POST"])

    asks = {"plan": desk.plan, "judge": desk.judge, "look": desk.look, "open": desk.open, "start": desk.start}
    routes = [route(name, ask) for name, ask in {**asks, "file": desk.file}.items()]
    static = StaticFiles(directory=str(files("decrescendo.studio").joinpath("static")), html=True)
    return Starlette(
        routes=[Mount(f"/{token}", routes=[*routes, Mount("/", static)])],
        middleware=[
            Middleware(BaseHTTPMiddleware, dispatch=_with_headers),
            Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS),
        ],
    )


async def _with_headers(request: Request, answered: RequestResponseEndpoint) -> Response:
    """`HEADERS` on every answer."""
    answer = await answered(request)
    answer.headers.update(HEADERS)
    return answer


@final
class Studio:
    """A server that listens, and runs when told.

    Args:
        port: of the loopback address; 0: any that is free.
        path: a file, or the folder of a run, to show at first.

    >>> studio = Studio()
    >>> studio.url.startswith("http://127.0.0.1:")
    True
    >>> studio.close()
    """

    def __init__(self, port: int = 0, path: Path | None = None) -> None:
        desk, token = Desk(), secrets.token_urlsafe(12)
        if path is not None:
            desk.first = desk.show(from_path(path, sample_rate=0.01, delta=1e-5))
        self._socket = socket.create_server((ADDRESS, port))
        self.url = f"http://{ADDRESS}:{self._socket.getsockname()[1]}/{token}/"
        config = uvicorn.Config(
            application(token, desk),
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
        )
        self._server = uvicorn.Server(config)
        self._lock, self._running, self._closed = threading.Lock(), False, False

    def run(self) -> None:
        """Serve until Ctrl-C, or `close`, from whatever thread and however early."""
        with self._lock:
            if self._closed:
                return
            self._running = True
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def close(self) -> None:
        """Stop; a server that runs lets go of its port by itself."""
        with self._lock:
            self._closed = self._server.should_exit = True
            if not self._running:
                self._socket.close()
