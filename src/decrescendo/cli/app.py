"""The application that commands join, and how they speak: plain lines, JSON, errors of one line."""

import errno
import functools
import inspect
import json
import math
import re
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, ParamSpec

import typer
from rich.console import Console
from rich.markup import escape
from typer.models import OptionInfo

from decrescendo.errors import DecrescendoError, InvalidValue

P = ParamSpec("P")


def make_app(name: str, words: str) -> typer.Typer:
    """An application of commands that speak as these do."""
    return typer.Typer(
        name=name,
        help=words,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )


app = make_app(
    "decrescendo",
    "Differentially private training with noise and clip norms that change over the run, at a certified epsilon.\n\n"
    "Where to start: `decrescendo demo` runs an example; `decrescendo new patients` writes a script to start from; "
    "`decrescendo plan --help` is the budget alone.",
)
out, err = Console(emoji=False), Console(stderr=True, emoji=False)  # a text such as a:100:b stays as it is
EVERY = 5.0  # seconds between lines where nothing can move


# What the library calls an option that is shorter here.
_ALSO = {"batch": ("expected_batch_size",), "lr": ("learning_rate",)}


class Terminated(BaseException):
    """SIGTERM came: the process ends, and cleans up on the way."""


def terminate(*_: object) -> NoReturn:
    """What SIGTERM does in the command line."""
    raise Terminated


def listen() -> None:
    """Take SIGTERM as Ctrl-C is taken: else the process would end at once, and leave half of what it was writing."""
    signal.signal(signal.SIGTERM, terminate)


def one_line_errors(command: Callable[P, None]) -> Callable[P, None]:
    """The package's and the file system's errors as one line and exit code 2, Ctrl-C and SIGTERM as one line and the
    shell's codes 130 and 143; others keep their traceback."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except DecrescendoError as error:
            words = as_typed(" ".join(str(error).split()), command)
            err.print(f"[red]error:[/red] {escape(words)}", soft_wrap=True)
            raise typer.Exit(2) from None
        except MemoryError as error:
            err.print(f"[red]error:[/red] out of memory{escape(f': {error}' if str(error) else '')}", soft_wrap=True)
            raise typer.Exit(2) from None
        except (KeyboardInterrupt, Terminated) as stop:
            name, code = ("Ctrl-C", 130) if isinstance(stop, KeyboardInterrupt) else ("SIGTERM", 143)
            kept = [option for option in ("store", "checkpoints") if kwargs.get(option) is not None]
            noted = "Every release was written down before it was used, files" if kept else "Files"
            onward = "; the run goes on with --resume" if "checkpoints" in kept else ""
            err.print(f"stopped by {name}. {noted} are whole or not there{onward}", soft_wrap=True)
            raise typer.Exit(code) from None
        except OSError as error:
            if error.errno == errno.EPIPE:  # whoever read the output has seen enough
                raise
            where = "" if error.filename is None else f"{error.filename}: "
            err.print(f"[red]error:[/red] {escape(where + (error.strerror or str(error)))}", soft_wrap=True)
            raise typer.Exit(2) from None

    guarded.__signature__ = inspect.signature(command)  # type: ignore[attr-defined]
    return guarded


@contextmanager
def working(words: str) -> Generator[None]:
    """Say on standard error what takes its time: on a terminal while it does, elsewhere a line every few seconds."""
    if err.is_terminal:
        with err.status(words):
            yield
        return
    done, start = threading.Event(), time.monotonic()

    def tell() -> None:
        while not done.wait(EVERY):
            err.print(f"{words}, {time.monotonic() - start:.0f} s so far", highlight=False)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def as_typed(words: str, command: Callable[..., None]) -> str:
    """An error about an argument of the library, as one about the option that it came from.

    >>> from typing import Annotated
    >>> def command(clip: Annotated[float, typer.Option()]) -> None: ...
    >>> as_typed("clip must be > 0, got clip=-1", command)
    '--clip must be > 0, got --clip=-1'
    """
    for name, parameter in inspect.signature(command).parameters.items():
        for fact in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(fact, OptionInfo):
                declared = [str(text) for text in (fact.default, *(fact.param_decls or ()))]
                named = [text for text in declared if text.startswith("--")]
                option = named[0] if named else f"--{name.replace('_', '-')}"
                for said in (name, *_ALSO.get(name, ())):
                    if words.startswith(f"{said} must"):
                        words = re.sub(rf"^{said}(?= must)|\b{said}(?==)", option, words)
                words = re.sub(rf"\b{name}=True\b", option, words)
    return words


def check_out(path: Path | None) -> None:
    """That a file can be written there: before the work, not after it.

    Raises:
        InvalidValue: its folder is not there.
        OSError: nobody may write into it.
    """
    from decrescendo.base.sealed import check_writable

    if path is None:
        return
    if not path.absolute().parent.is_dir():
        raise InvalidValue(f"--out must name a file in a folder that exists, got {str(path)!r}")
    check_writable(path.absolute().parent)


def say(text: str) -> None:
    """Plain lines on standard output, as long as they are: people copy numbers and paths. What a file's text
    tells a terminal to do is not done."""
    from decrescendo.base.markdown import obeyed

    out.print(obeyed("\ufffd", printable(text)), soft_wrap=True, highlight=False, markup=False)


def printable(text: str) -> str:
    """File names may have bytes that are no text."""
    return text.encode("utf-8", "backslashreplace").decode()


def in_a_cell(text: str) -> str:
    """A text that somebody else wrote, for a cell of a table: neither markup nor a terminal's commands.

    >>> in_a_cell("[/red] a" + chr(27))
    '\\\\[/red] a\\\\x1b'
    """
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in printable(text))
    return escape("".join(shown))


def print_json(content: dict[str, Any]) -> None:
    """On standard output, without colour or wrapping; an infinite epsilon is the string "inf"."""
    typer.echo(json.dumps(_finite(content), indent=1, default=str, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value
