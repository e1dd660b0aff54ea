"""Results on disk: one file a task, one line a finished run: JSON with a checksum of its own, sorted by the hash of the
spec."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

from filelock import FileLock

from decrescendo.base import sealed, strict_json, write_whole
from decrescendo.errors import FileRefused
from decrescendo_papers.experiments.checked import named, number, numbers, pair, text, texts
from decrescendo_papers.experiments.spec import Spec

FORMAT, VERSION = "decrescendo-result", 1


@dataclass(frozen=True, slots=True)
class Result:
    """What a run was, and what came out.

    Args:
        spec: the run.
        metrics: scores on declared public data; empty if ``refused``.
        claimed: epsilon by the accountant that the noise was calibrated with.
        certified: lower and upper end of the true epsilon at the spec's delta, by `accounting.Pld`.
        clt: epsilon that the central limit theorem claims for the very same steps.
        noise_multiplier: first and last.
        clip_norm: first and last.
        trace: further public or diagnostic series, each a list of numbers.
        seconds: wall-clock time of the training.
        machine: where it ran, and with what versions.
        commit: of the checkout it was made with, "+" behind it where files differed; empty: not known.
        refused: why the budget cannot be met by this accountant; there was no run then.
    """

    spec: Spec
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    claimed: float | None = None
    certified: tuple[float, float] | None = None
    clt: float | None = None
    noise_multiplier: tuple[float, float] | None = None
    clip_norm: tuple[float, float] | None = None
    trace: Mapping[str, list[float]] = field(default_factory=dict[str, list[float]])
    seconds: float = 0.0
    machine: Mapping[str, str] = field(default_factory=dict[str, str])
    refused: str = ""
    commit: str = ""


def path_of(folder: Path, spec: Spec) -> Path:
    """The file that the result of ``spec`` is a line of."""
    return folder / f"{spec.task}.jsonl"


def line_of(result: Result) -> str:
    """``result`` as a line, without its end."""
    facts = {**asdict(result), "spec": result.spec.settings()}
    if not result.commit:  # so that lines of before are what they were
        del facts["commit"]
    return sealed.seal({"format": FORMAT, "version": VERSION, **facts})


def save(folder: Path, result: Result) -> Path:
    """Write ``result`` among the others of its task, all or nothing, and return the path. Lines that cannot be read are
    left out of what is written."""
    path = path_of(folder, result.spec)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f".{path.name}.lock"):  # several processes finish runs of one task
        known = {name: line for name, line in _lines(path) if name}
        known[result.spec.hash] = line_of(result)
        write_whole(path, "".join(f"{known[name]}\n" for name in sorted(known)))
    return path


def read_line(line: str, source: object) -> Result:
    """The result in a line; ``source`` names it in errors.

    Raises:
        FileRefused: damaged (the checksum differs), edited, foreign or newer.
    """
    content = sealed.opened(line, source, FORMAT, VERSION)
    del content["format"], content["version"]
    try:
        spec = Spec.of(named(content.pop("spec")))
        for name in ("certified", "noise_multiplier", "clip_norm"):
            content[name] = pair(content[name])
        for name in ("claimed", "clt"):
            content[name] = None if content[name] is None else number(content[name])
        content["metrics"] = {name: number(value) for name, value in named(content["metrics"]).items()}
        content["trace"] = {name: numbers(values) for name, values in named(content["trace"]).items()}
        content["machine"] = texts(content["machine"])
        content["seconds"], content["refused"] = number(content["seconds"]), text(content["refused"])
        content["commit"] = text(content.get("commit", ""))
        return Result(spec=spec, **content)
    except FileRefused as error:
        raise FileRefused(f"{source}: {error}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise FileRefused(f"{source} must have the entries of a result, got {error}") from None


def read_all(path: Path) -> tuple[list[Result], list[str]]:
    """The results in a file, and what is wrong with the lines that hold none.

    Raises:
        FileRefused: not there, or no text.
    """
    results: list[Result] = []
    wrong: list[str] = []
    for at, (_, line) in enumerate(_lines(path, must_exist=True), start=1):
        try:
            results.append(read_line(line, f"{path}, line {at}"))
        except FileRefused as error:
            wrong.append(str(error))
    return results, wrong


def find(folder: Path, spec: Spec) -> Result | None:
    """The finished result of ``spec``; ``None`` if there is none, or only a damaged one."""
    path = path_of(folder, spec)
    try:
        about = path.stat()
        line = _by_hash(path, about.st_mtime_ns, about.st_size, about.st_ino).get(spec.hash)
        result = None if line is None else read_line(line, path)
    except (OSError, FileRefused):
        return None
    return result if result is not None and result.spec == spec else None


@lru_cache(maxsize=32)
def _by_hash(path: Path, *_: int) -> dict[str, str]:
    """Lines of a file as it is now: what follows the path changes with it."""
    return {name: line for name, line in _lines(path) if name}


def _lines(path: Path, *, must_exist: bool = False) -> Iterator[tuple[str, str]]:
    """Hash of the spec, or nothing if none can be read, and the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        if must_exist:
            raise FileRefused(f"{path} must be a file of results, got {error}") from None
        return
    except (OSError, ValueError) as error:
        raise FileRefused(f"{path} must be a file of results, got {error}") from None
    for line in filter(None, text.split("\n")):
        try:
            settings = strict_json.loads(line)["spec"]
            canonical = json.dumps(settings, sort_keys=True, separators=(",", ":"))
        except (ValueError, TypeError, KeyError):
            yield "", line
            continue
        yield hashlib.sha256(canonical.encode()).hexdigest()[:12], line
