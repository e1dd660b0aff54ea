"""Trainings of Hugging Face trainers that survive a crash: what their checkpoints lack, beside them."""

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

from decrescendo.base.rng import Secure
from decrescendo.errors import FileRefused, PlanViolation
from decrescendo.training.persistence.checkpoint.checkpoints import Checkpoints, Stateful, states_in
from decrescendo.training.persistence.checkpoint.releases import RELEASES

# In ``output_dir``. `Trainer.push_to_hub` leaves names with an underscore out: whoever reads it knows the noise.
FOLDER = "_decrescendo"
_STATE, _SHOWN = "trainer_state.json", re.compile("checkpoint-([0-9]+)")
# A folder's first state is written before the first step; later ones where the trainer saves.
_NEVER = 10**9


class Beginning:
    """What a run began with that its plan does not say: who goes on with something else is told so.

    Args:
        seed: of the run.
        data: a digest of rows of the data.

    >>> beginning = Beginning(1, "ab")
    >>> beginning.load_state_dict(Beginning(2, "ab").state_dict())
    Traceback (most recent call last):
    decrescendo.errors.PlanViolation: a run must go on with the seed it began with, got another one. Its noise ...
    """

    def __init__(self, seed: int | Secure, data: str) -> None:
        kind = "secure" if isinstance(seed, Secure) else f"seed {seed}"
        self._seed, self._data = hashlib.sha256(f"decrescendo:{kind}".encode()).hexdigest(), data

    def state_dict(self) -> dict[str, Any]:
        """Digests."""
        return {"seed": self._seed, "data": self._data}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Compare with these.

        Raises:
            PlanViolation: another seed, or other data.
        """
        if state_dict.get("seed") != self._seed:
            raise PlanViolation(
                "a run must go on with the seed it began with, got another one. Its noise would not be what the "
                "first steps had: give follow(plan, seed=..) the same, or begin a new run in a new output_dir"
            )
        if state_dict.get("data") != self._data:
            raise PlanViolation(
                "a run must go on with the data it began with, got other rows. The same noise on another sum would "
                "betray the difference: put the data back, or begin a new run in a new output_dir"
            )


class States:
    """The folder of one training's states, beside the checkpoints of a trainer.

    Args:
        output_dir: where the trainer saves its checkpoints.
        keeps: whether it saves what a training can go on from.

    Attributes:
        keeps: the same.
    """

    def __init__(self, output_dir: str, *, keeps: bool) -> None:
        self._output, self._folder, self.keeps = Path(output_dir), Path(output_dir) / FOLDER, keeps
        self._resume = False

    def resume_from(self, given: str | bool) -> str | None:
        """The trainer's checkpoint to go on from: the newest that is whole, or the one that is named.

        Args:
            given: ``resume_from_checkpoint``, true.

        Returns:
            Its folder; ``None`` where the run was killed before its first checkpoint, and begins again as it did.

        Raises:
            PlanViolation: a training that keeps nothing to go on from.
            FileRefused: nothing there that this training can go on from.
        """
        if not self.keeps:
            raise PlanViolation(
                "a training that is gone on with must keep its checkpoints, got save_strategy='no', "
                "save_only_model=True or noise decided during the run. Begin it with save_strategy='steps' and a Plan"
            )
        kept = [int(path.name.rpartition("-")[2]) for path in states_in(self._folder)]
        self._resume = True
        if given is True:
            whole = [step for step in kept if step and _is_whole(self._output / f"checkpoint-{step}", step)]
            if not kept:
                raise FileRefused(self._none(self._output))
            step = max(whole, default=0)
            if step not in kept:
                raise FileRefused(
                    f"{self._output} must have a whole checkpoint to go on from, got states of steps {kept} and none "
                    "of the trainer's checkpoints for them. Put those back, or begin a new run in a new output_dir"
                )
        else:
            path = Path(str(given))
            shown = _SHOWN.fullmatch(path.name)
            if shown is None or path.resolve().parent != self._output.resolve():
                raise FileRefused(
                    f"resume_from_checkpoint must be True or a folder {self._output}/checkpoint-N, got {str(given)!r}: "
                    "the random streams of a run are beside its checkpoints. Give that run's output_dir"
                )
            step = int(shown[1])
            if not kept:
                raise FileRefused(self._none(path))
            if step not in kept or not _is_whole(path, step):
                raise FileRefused(
                    f"{path} must be a whole checkpoint whose random streams are kept, got states of steps {kept}. "
                    "Only the newest are: resume_from_checkpoint=True takes the last"
                )
        for later in states_in(self._folder):  # what the run comes to again
            if int(later.name.rpartition("-")[2]) > step:
                shutil.rmtree(later, ignore_errors=True)
        return str(self._output / f"checkpoint-{step}") if step else None

    def _none(self, where: Path) -> str:
        return (
            f"{where} must be of a private training that was not finished, got no random streams and ledger in "
            f"{self._folder} (they are removed when a run is finished). Begin a new run in a new output_dir"
        )

    def checkpoints(self, beginning: Beginning, scheduler: Stateful, *, registered: bool = False) -> Checkpoints | None:
        """For `Trainer`; ``None`` where nothing is kept.

        Args:
            beginning: what is compared when the run is gone on with.
            scheduler: of the learning rate, which is kept, too.
            registered: the run is in a store, which has its budget reserved also before its first step.

        Raises:
            PlanViolation: another training was not finished there, and is not gone on with.
        """
        if not self.keeps:
            return None
        begun = states_in(self._folder) or (self._folder / RELEASES).exists()
        if begun and not self._resume and not (registered or self._has_released()):
            shutil.rmtree(self._folder, ignore_errors=True)  # it failed before its first step
        elif begun and not self._resume:
            raise PlanViolation(
                f"output_dir must have no other training that was not finished, got {str(self._output)!r}. Go on with "
                "it, trainer.train(resume_from_checkpoint=True), or take a new output_dir: what both release counts"
            )
        also = {"beginning": beginning, "scheduler": scheduler}
        return Checkpoints(self._folder, every=_NEVER, also=also, resume=True)

    def _has_released(self) -> bool:
        try:
            return len((self._folder / RELEASES).read_bytes().splitlines()) > 1  # the first names the run
        except OSError:
            return True

    def done(self) -> None:
        """The run is finished: nobody needs its random streams, and nobody may know them."""
        if self.keeps:
            shutil.rmtree(self._folder, ignore_errors=True)


def _is_whole(folder: Path, step: int) -> bool:
    """Whether a checkpoint of the trainer's was written to its end, which is its state's file."""
    try:
        state: Any = json.loads((folder / _STATE).read_bytes())  # of theirs, with NaN
    except (OSError, ValueError):
        return False
    return isinstance(state, dict) and state.get("global_step") == step
