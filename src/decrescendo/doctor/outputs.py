"""What a process prints, logs, writes and saves, kept as lines in place of reaching the disk or the network."""

import builtins
import contextlib
import hashlib
import io
import itertools
import json
import logging
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from decrescendo.doctor.by_hand import WeightsByHand
from decrescendo.doctor.events import user_globals, user_place, wrap

FILE = "written as a file"  # that is binary
_PATHS = (str, os.PathLike)
_OF_WEIGHTS = re.compile("weight|norm|param|theta|coef|bias|slope|intercept")
UNREAD = "(not read)"
_MOST, _LONGEST = 20_000, 200_000  # outputs, and characters of each
# What a copy of the process must not do: write elsewhere, start programs, connect.
_REFUSED = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.remove", "os.rename", "os.rmdir",
            "os.link", "os.symlink", "os.truncate", "shutil.", "socket.connect", "socket.sendto", "sqlite3.connect",
            "os.kill", "os.chmod", "os.chown", "os.utime", "ftplib.", "smtplib.", "urllib.")  # fmt: skip
_FOLDERS = ("makedirs", "mkdir", "remove", "unlink", "rmdir", "removedirs", "chmod", "utime")
# Of other libraries: where they are given a number.
_LOGGERS = (("torch.utils.tensorboard", "SummaryWriter", "add_scalar"),
            ("torch.utils.tensorboard", "SummaryWriter", "add_scalars"), ("wandb", "", "log"),
            ("mlflow", "", "log_metric"), ("mlflow", "", "log_metrics"), ("safetensors.torch", "", "save_file"),
            ("torch.jit", "", "save"), ("pandas", "DataFrame", "to_parquet"), ("pandas", "DataFrame", "to_feather"),
            ("pandas", "DataFrame", "to_hdf"),
            ("tqdm.std", "tqdm", "set_postfix"),
            ("tqdm.std", "tqdm", "set_postfix_str"), ("tqdm.std", "tqdm", "set_description"),
            ("tqdm.std", "tqdm", "write"))  # fmt: skip


class Outputs:
    """Outputs of the user's code, from `start` on; nothing before."""

    def __init__(self) -> None:
        self._lines: Any = None
        self._count = 0
        self._kept: dict[str, bytes] = {}
        self._home = ""
        self.held: WeightsByHand | None = None
        self.state: Callable[[], list[int]] = list  # of random numbers

    def watch_files(self) -> None:
        """From the beginning: text files that are opened now may be written to later."""
        for owner in (builtins, io):
            wrap(owner, "open", self._opened)

    def start(self, path: Path, folder: Path, *used: int) -> None:
        """Keep every output in a file, and hold back all that would leave this process.

        Args:
            path: of the file.
            folder: which the process works in from now on, so that files by native code stay there.
            used: descriptors that stay as they are.
        """
        self._lines = io.FileIO(path, "w")
        nothing = os.open(os.devnull, os.O_WRONLY)
        for number in _leaving():
            if number not in (*used, self._lines.fileno(), nothing):
                os.dup2(nothing, number)
        self._home = os.getcwd()
        os.chdir(folder)
        _stop_clocks()
        stand_ins: list[tuple[Any, str, Any]] = [
            (time, "sleep", _nothing), *((os, name, _nothing) for name in _FOLDERS),
            *((os, name, self._renamed) for name in ("rename", "replace", "renames")),
            (builtins, "print", self._printed), (logging.Logger, "handle", self._logged),
            (torch, "save", self._saved),
        ]  # fmt: skip
        for module, owner, name in _LOGGERS:
            held: Any = sys.modules.get(module)
            held = getattr(held, owner, None) if owner else held
            if hasattr(held, name):
                stand_ins.append((held, name, self._told))
        for owner, name, stand_in in stand_ins:
            own = getattr(owner, name)
            setattr(owner, name, stand_in)
            for space in user_globals():  # `from torch import save`
                space.update({key: stand_in for key, value in space.items() if value is own})
        tempfile.tempdir = str(folder)
        wrap(torch, "load", self._loaded)
        sys.stdout, sys.stderr = _Stream(self), _Stream(self)
        sys.addaudithook(_refuse)

    def add(self, kind: str, text: str) -> None:
        """One output, with the user's line that it comes from."""
        if self._lines is None or self._count >= _MOST:
            return
        self._count += 1
        if self.held and (kind in ("saved", FILE) or _OF_WEIGHTS.search(text.lower())) and self.held.moved:
            text = ""  # of weights that are not those of the first twin yet
        text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} {UNREAD}"
        self._lines.write((json.dumps([*user_place(), kind, text, *self.state()]) + "\n").encode())

    def keep(self, path: str, content: bytes) -> None:
        """A file that was written, for those who read it again."""
        self._kept[os.path.abspath(os.path.join(self._home, path))] = content

    def _printed(self, *values: Any, **how: Any) -> None:
        if how.get("file") not in (None, sys.stdout, sys.stderr):
            how["file"].write(str(how.get("sep") or " ").join(map(str, values)) + str(how.get("end") or "\n"))
        else:
            self.add("printed", str(how.get("sep") or " ").join(map(str, values)))

    def _renamed(self, before: Any, after: Any, **_: Any) -> None:
        found = self._found(before)
        if isinstance(found, io.BytesIO):
            self.keep(os.fspath(after), found.getvalue())

    def _logged(self, record: logging.LogRecord) -> None:
        self.add("logged", record.getMessage())

    def _told(self, *values: Any, **named: Any) -> None:
        self.add("logged", " ".join(_leaves("", [*values, named])))

    def _saved(self, content: Any, file: Any, *_: Any, **__: Any) -> None:
        if self.held:
            self.held.hold_all()
        self.add("saved", "\n".join(_leaves("", content)))
        if isinstance(file, _PATHS):
            held = io.BytesIO()
            torch.serialization.save(content, held)
            self.keep(os.fspath(file), held.getvalue())

    def _loaded(self, load: Callable[..., Any], file: Any, *args: Any, **kwargs: Any) -> Any:
        return load(self._found(file), *args, **kwargs)

    def _found(self, file: Any) -> Any:
        """What was written in this process, or where the file is."""
        if not isinstance(file, _PATHS):
            return file
        path = os.path.abspath(os.path.join(self._home, os.fspath(file)))
        return io.BytesIO(self._kept[path]) if path in self._kept else path

    def _opened(
        self, inner: Callable[..., Any], file: Any, mode: str = "r", buffering: int = -1, encoding: str | None = None,
        errors: str | None = None, newline: str | None = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        text = {"encoding": encoding, "errors": errors, "newline": newline}
        writes, binary = bool(set("wax+") & set(mode)), "b" in mode
        if not isinstance(file, _PATHS) or os.fspath(file) == os.devnull or "opener" in kwargs:
            return inner(file, mode, buffering, **text, **kwargs)
        if self._lines is None:
            if not writes or binary or "+" in mode or not buffering:
                return inner(file, mode, buffering, **text, **kwargs)
            raw = inner(file, mode.replace("t", "") + "b", **kwargs)
            return _Text(self, raw, mode, line_buffering=buffering == 1, **text)
        if writes:
            path = os.fspath(file)
            return _Bytes(self, path) if binary else _Text(self, io.BytesIO(), mode, path=path, **text)
        found = self._found(file)
        if isinstance(found, io.BytesIO):
            return found if binary else io.TextIOWrapper(found, **text)
        return inner(found, mode, buffering, **text, **kwargs)


class _Text(io.TextIOWrapper):
    """A text file, whose lines are outputs."""

    def __init__(self, outputs: Outputs, raw: Any, mode: str, *, path: str = "", **kwargs: Any) -> None:
        super().__init__(raw, **kwargs)
        self._outputs, self._path = outputs, path
        vars(self)["mode"] = mode

    def write(self, text: str) -> int:
        if self._outputs._lines is None:
            return super().write(text)
        self._outputs.add("written", text)
        return super().write(text) if self._path else len(text)

    def close(self) -> None:
        if self._path and not self.closed:
            self.flush()
            self._outputs.keep(self._path, self.buffer.getvalue())  # type: ignore[attr-defined]
        super().close()


class _Bytes(io.BytesIO):
    """A binary file in memory."""

    def __init__(self, outputs: Outputs, path: str) -> None:
        super().__init__()
        self._outputs, self.name = outputs, path

    def close(self) -> None:
        if not self.closed:
            content = self.getvalue()
            self._outputs.add(FILE, f"{os.path.basename(self.name)}\n{hashlib.sha256(content).hexdigest()}")
            self._outputs.keep(self.name, content)
        super().close()


class _Stream(io.StringIO):
    """What stands for the terminal."""

    def __init__(self, outputs: Outputs) -> None:
        super().__init__()
        self._outputs = outputs

    def write(self, text: str) -> int:
        bar = str(sys._getframe(1).f_globals.get("__name__")).startswith("tqdm")  # which draws when time has passed
        if text.strip() and not bar:
            self._outputs.add("printed", text)
        return len(text)


def _leaves(name: str, content: Any, deep: int = 6) -> Iterator[str]:
    """Each number, text and tensor of a structure: of tensors, sums."""
    if isinstance(content, nn.Module):
        content = {**content.state_dict(), **{f"{key} ({held})": value for key, p in content.named_parameters()
                                              for held, value in vars(p).items()}}  # fmt: skip
    if isinstance(content, Tensor | np.ndarray):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            flat = torch.as_tensor(content).detach().double().flatten()
            flat = flat if flat.numel() > 1 else flat.repeat(2)
            yield f"{name} {float(flat.sum())!r} {float(flat @ torch.linspace(1, 2, len(flat)).double())!r}"
    elif isinstance(content, dict) and deep:
        for key, value in content.items():
            yield from _leaves(f"{name}.{key}".strip("."), value, deep - 1)
    elif isinstance(content, (list, tuple)) and deep:
        for value in content:
            yield from _leaves(name, value, deep - 1)
    elif isinstance(content, str | int | float | bool) or content is None:
        yield f"{name} {content}"
    elif isinstance(content, np.generic):
        yield f"{name} {content.item()}"
    elif deep and isinstance(getattr(content, "__dict__", None), dict) and not callable(content):
        yield from _leaves(name, vars(content), deep - 1)
    else:
        yield f"{name} {UNREAD}"


def _stop_clocks() -> None:
    """Let every clock of the user's code tell the number of times that it was asked, as in every other twin."""
    asked = itertools.count(1)
    for name in ("time", "perf_counter", "monotonic", "process_time"):
        for kind, unit in ((name, 1e-3), (f"{name}_ns", 1)):
            own = getattr(time, kind)
            begun = own()

            def clock(begun: Any = begun, unit: Any = unit) -> Any:
                return begun + next(asked) * unit

            for space in [vars(time), *user_globals()]:
                for key in [key for key, value in space.items() if value is own]:
                    space[key] = clock


def _nothing(*_: Any, **__: Any) -> None:
    """What a twin does where the training makes a folder, or waits."""


def _leaving() -> Iterator[int]:
    """Descriptors by which something would leave: files that are open for writing, sockets and pipes."""
    import fcntl  # (not on every system)

    for number in range(3, 1024):
        with contextlib.suppress(OSError):
            mode, flags = os.fstat(number).st_mode, fcntl.fcntl(number, fcntl.F_GETFL)
            if flags & (os.O_WRONLY | os.O_RDWR) or stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
                yield number


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    path = os.fsdecode(args[0]) if event == "open" and isinstance(args[0], (str, bytes)) else ""
    writes = path and path != os.devnull and args[2] & (os.O_WRONLY | os.O_RDWR)
    if (writes and not os.path.abspath(path).startswith(os.getcwd())) or event.startswith(_REFUSED):
        raise PermissionError(f"a copy of the training must not do this: {event}")
