"""Results on disk: one small JSON a finished run, named by its spec, with a checksum over its content."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from decrescendo.base import sealed as kept
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


def path_of(folder: Path, spec: Spec) -> Path:
    """Where the result of ``spec`` is kept."""
    return folder / f"{spec.name}.json"


def save(folder: Path, result: Result) -> Path:
    """Write ``result``, all or nothing, and return its path."""
    facts = {**asdict(result), "spec": result.spec.settings()}
    return kept.write(path_of(folder, result.spec), FORMAT, VERSION, facts)


def load(path: Path) -> Result:
    """The result in a file.

    Raises:
        FileRefused: not there, damaged (the checksum differs), edited, foreign or newer.
    """
    content = kept.read(path, FORMAT, VERSION)
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
        return Result(spec=spec, **content)
    except FileRefused as error:
        raise FileRefused(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise FileRefused(f"{path} must have the entries of a result, got {error}") from None


def find(folder: Path, spec: Spec) -> Result | None:
    """The finished result of ``spec``; ``None`` if there is none, or only a damaged one."""
    try:
        result = load(path_of(folder, spec))
    except FileRefused:
        return None
    return result if result.spec == spec else None
