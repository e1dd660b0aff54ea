"""`Checkpoints`: a folder of saved states of one training, each written completely or not at all."""

import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, final, runtime_checkable

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from decrescendo.base import sealed
from decrescendo.base.whole_file import alone_in, read_whole, sync_folder, write_whole
from decrescendo.errors import FileRefused, InvalidValue, check_instance, check_integer, check_path
from decrescendo.training.persistence.checkpoint.tree import pack, unpack

FORMAT, VERSION = "decrescendo-checkpoint", 2
STATE, TENSORS = "state.json", "tensors.safetensors"
# The newest, and one more in case the disk loses it.
_NUMBER_KEPT = 2
_PREFIX = "step-"
_NAME = re.compile(_PREFIX + "[0-9]{9}")


@runtime_checkable
class Stateful(Protocol):
    """An object with state beside the optimiser's: a learning-rate scheduler, an average of iterates."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object:
        """Restore a state."""
        ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a training after ``step`` steps."""

    step: int
    state: Mapping[str, Any]


@final
@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Where, and how often, a training saves the state from which it resumes after a crash.

    A checkpoint holds the random streams: its reader knows the noise of all later steps, released or not. It
    holds all of the model's state dict, whatever code of the model puts there. It is as sensitive as the data, readable
    by its owner only, and should be deleted when the run is done.

    The folder also has a digest of every noisy sum (`Releases`): a repeated step must match it, or raises; and an empty
    file ``diagnostics-read`` once private diagnostics were read, so that a resumed run still says so. A copy
    of the folder cannot be told from the original. Two runs that go on from copies, with different
    data, release the same noise on different sums, and the difference has none: never go on from a copy or a backup.

    Args:
        folder: of this training alone.
        every: steps between two checkpoints, >= 1. A crash costs the time of as many steps at most, and no privacy:
            repeated steps have the same batches and the same noise, are the same releases to the last bit
            (or are refused), and count once.
        also: other objects with a state, by name: averages, a scheduler that your own code steps. (The scheduler of
            ``train(scheduler=)`` is kept without it.)
        resume: go on from the newest checkpoint in the folder; without one, from the start. If false, the folder must
            be empty: a forgotten run is not written over.

    >>> Checkpoints("runs/mnist-checkpoints", every=100).every
    100
    """

    folder: str | os.PathLike[str]
    every: int = 100
    also: Mapping[str, Stateful] = field(default_factory=dict[str, Stateful])
    resume: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "every", check_integer("every", self.every, at_least=1))
        check_path("folder", self.folder)
        check_instance("resume", self.resume, bool)
        check_instance("also", self.also, Mapping, 'also={"average": average} names what else has a state')
        for name, thing in self.also.items():
            check_instance(f"also[{name!r}]", thing, Stateful, "It needs state_dict and load_state_dict")
        folder = Path(self.folder)
        try:
            is_file = folder.exists() and not folder.is_dir()
            held = list[str]() if is_file or not folder.exists() else [path.name for path in folder.iterdir()]
        except OSError as error:
            raise FileRefused(f"{folder} must be a folder that can be read, got {error.strerror}") from None
        if not os.fspath(self.folder):
            raise InvalidValue("checkpoints must be in a folder, got an empty name")
        if is_file:
            raise InvalidValue(f"checkpoints must be in a folder, got a file, {os.fspath(self.folder)!r}")
        if "run.json" in held:
            raise InvalidValue(
                f"checkpoints must not be in the folder of a saved run, got {os.fspath(self.folder)!r}. They hold the "
                "run's noise: name another"
            )
        if held and not self.resume:
            raise InvalidValue(
                f"checkpoints must have a new or empty folder, got {os.fspath(self.folder)!r}. To go on with the run "
                "in it, pass resume=True"
            )

    def keeping(self, name: str, thing: Stateful) -> "Checkpoints":
        """A copy with ``thing`` added to ``also``; itself if it is there already.

        Raises:
            InvalidValue: ``also`` has another object of this name.
        """
        if any(held is thing for held in self.also.values()):
            return self
        if name in self.also:
            raise InvalidValue(
                f"also must name each thing once, got another {name!r} than the training's own, which is kept without "
                f"it. Leave {name!r} out of also"
            )
        return replace(self, also={**self.also, name: thing})

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint; it is on the disk when this returns. All older ones but one are removed."""
        also = {name: thing.state_dict() for name, thing in self.also.items()}
        state = dict(checkpoint.state) | {"also": also, "schedulers": self._schedulers()}
        write_state(Path(self.folder), checkpoint.step, state, kept=_NUMBER_KEPT)

    def _schedulers(self) -> dict[str, str]:
        """The classes of learning-rate schedulers in ``also``."""
        return {name: type(thing).__qualname__ for name, thing in self.also.items() if isinstance(thing, LRScheduler)}

    def newest(self) -> Checkpoint | None:
        """The last complete checkpoint, or ``None`` if the folder has none.

        Raises:
            FileRefused: there are some, and all of them are damaged or foreign.
        """
        problem = None
        for path in reversed(states_in(Path(self.folder))):
            try:
                return read_state(path)
            except FileRefused as error:
                problem = problem or error
        if problem is not None:
            raise problem
        return None

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the state of the objects in ``also``."""
        states = checkpoint.state["also"]
        if states.keys() != self.also.keys():
            raise InvalidValue(
                f"scheduler= and also= must be of what the checkpoint holds, {', '.join(sorted(states)) or 'nothing'}, "
                f"got {', '.join(sorted(self.also)) or 'nothing'}. Go on with what the run began with"
            )
        for name, thing in self.also.items():
            began, kind = checkpoint.state.get("schedulers", {}).get(name), self._schedulers().get(name)
            if began != kind and began is not None:
                raise InvalidValue(
                    f"{name} must be a scheduler of the class that the run began with, {began}, got {kind}. Go on with "
                    "the first one's"
                )
            thing.load_state_dict(states[name])


def states_in(folder: Path) -> list[Path]:
    """The paths of the states in a folder, the oldest first.

    Raises:
        FileRefused: a folder that this user may not look into.
    """
    try:
        names = os.listdir(folder) if folder.is_dir() else []
    except OSError as error:
        raise FileRefused(f"{folder} must be a folder that can be read, got {error.strerror}") from None
    return sorted(folder / name for name in names if _NAME.fullmatch(name))


def write_state(folder: Path, step: int, state: Mapping[str, Any], *, kept: int) -> None:
    """Write a state atomically; it is on the disk when this returns. All but the newest ``kept`` states are
    removed."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    target = folder / f"{_PREFIX}{step:09d}"
    staging = folder / f".{target.name}.{os.getpid()}"
    tensors: dict[str, Tensor] = {}
    body = {"format": FORMAT, "version": VERSION, "step": step, "state": pack(state, tensors)}
    content = save_tensors(tensors)
    body |= {"tensors_sha256": hashlib.sha256(content).hexdigest()}
    with alone_in(folder):
        for left in folder.glob(f".{_PREFIX}*"):  # of a process that was killed while it wrote
            shutil.rmtree(left, ignore_errors=True)
        staging.mkdir(mode=0o700)
        try:
            write_whole(staging / TENSORS, content, mode=0o600)
            write_whole(staging / STATE, sealed.seal(body), mode=0o600)
            sync_folder(staging)
            shutil.rmtree(target, ignore_errors=True)
            staging.rename(target)
            sync_folder(folder)
        except OSError as error:
            shutil.rmtree(staging, ignore_errors=True)
            raise FileRefused(
                f"{folder} must be a folder that a state can be written to, got {error.strerror}. Make room, and go on "
                "from the last one"
            ) from error
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        for old in states_in(folder)[:-kept]:
            shutil.rmtree(old, ignore_errors=True)


def read_state(path: Path) -> Checkpoint:
    """Read a state written by `write_state`.

    Raises:
        FileRefused: damaged, foreign or of another version.
    """
    content = read_whole(path / TENSORS)
    body = sealed.opened(read_whole(path / STATE), path / STATE, FORMAT, VERSION)
    if body.get("tensors_sha256") != hashlib.sha256(content).hexdigest():
        raise FileRefused(f"{path} must be as it was written, got other bytes: it is damaged")
    try:
        step, state = check_integer("step", body["step"]), unpack(body["state"], load_tensors(content))
        check_instance("state", state, dict)
        if _NAME.fullmatch(path.name) and path.name != f"{_PREFIX}{step:09d}":
            raise FileRefused(f"{path} must hold the step of its name, got step {step}")
        return Checkpoint(step, state)
    except FileRefused:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise FileRefused(f"{path} must be a checkpoint, got one that does not fit together ({error})") from None
