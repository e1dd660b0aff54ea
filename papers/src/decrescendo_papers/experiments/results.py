"""Results on disk: one file a task, one line a finished run: JSON with a checksum of its own, sorted by the hash of the
spec."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from decrescendo.base import sealed
from decrescendo.errors import FileRefused, check_integer
from decrescendo_papers.experiments import lines
from decrescendo_papers.experiments.checked import named, number, numbers, pair, text, texts
from decrescendo_papers.experiments.spec import Spec

FORMAT, VERSION = "decrescendo-result", 1

# Raised when equal settings begin to give other numbers. 1: seeded noise as it was drawn until 6a182d75 (23 November
# 2026). 2: exact noise of a keystream, for seeds as for secrets.
REVISION = 2


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
        commit: of the checkout it was made with, "+" behind it where files differed; "before ..": not recorded, and in
            the history since that commit; empty: not known.
        revision: the `REVISION` it was made by.
        steps: taken, where the budget decided how many; 0: those of the spec.
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
    revision: int = 1
    steps: int = 0


def path_of(folder: Path, spec: Spec) -> Path:
    """The file that the result of ``spec`` is a line of."""
    return folder / f"{spec.task}.jsonl"


def line_of(result: Result) -> str:
    """``result`` as a line, without its end."""
    facts = {**asdict(result), "spec": result.spec.settings()}
    for name, default in (
        ("commit", ""),
        ("revision", 1),
        ("steps", 0),
    ):  # lines of before are what they were
        if facts[name] == default:
            del facts[name]
    return sealed.seal({"format": FORMAT, "version": VERSION, **facts})


def save(folder: Path, result: Result) -> Path:
    """Write ``result`` among the others of its task, all or nothing, and return the path. Lines that cannot be read are
    left out of what is written."""
    return lines.keep(path_of(folder, result.spec), result.spec.hash, line_of(result))


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
        content["revision"] = check_integer("revision", content.get("revision", 1), at_least=1)
        content["steps"] = check_integer("steps", content.get("steps", 0), at_least=0)
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
    for at, (_, line) in enumerate(lines.read(path, must_exist=True), start=1):
        try:
            results.append(read_line(line, f"{path}, line {at}"))
        except FileRefused as error:
            wrong.append(str(error))
    return results, wrong


def find(folder: Path, spec: Spec) -> Result | None:
    """The finished result of ``spec``; ``None`` if there is none, or only a damaged one."""
    path = path_of(folder, spec)
    try:
        line = lines.find(path, spec.hash)
        result = None if line is None else read_line(line, path)
    except FileRefused:
        return None
    return result if result is not None and result.spec == spec else None
