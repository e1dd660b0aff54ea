"""Saves the state of a run in checkpoints when one is due, and resumes from the newest."""

import hashlib
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from decrescendo.base.assumption import Assumption, read_assumption
from decrescendo.base.storages import pieces
from decrescendo.clipping import Diagnostics
from decrescendo.errors import DecrescendoError, FileRefused, InvalidValue, PlanViolation, check_integer
from decrescendo.optim.several import name_of
from decrescendo.plans.agreement import Agreement
from decrescendo.training.loop.assumptions import together
from decrescendo.training.loop.drawing import RunStreams
from decrescendo.training.persistence.checkpoint import Checkpoint, Checkpoints, Releases
from decrescendo.training.persistence.run_state import RunState, restore_readings, telemetry_entry
from decrescendo.training.persistence.sharded_state import as_held, in_parts, noise_in_parts
from decrescendo.training.processes.bits import checksum, is_part
from decrescendo.training.processes.world import Tree, World
from decrescendo.training.run.weights import entries_of_frozen_layers
from decrescendo.training.statement import FLOAT32

# In place of the step of the last checkpoint: it is there, but of another number of ranks.
_BY_OTHERS = -2
# An empty file.
_READ = "diagnostics-read"


@final
class Keeper:
    """Rank 0 saves and loads a run's checkpoints; other ranks get the state without the secret random streams.

    Attributes:
        releases: on rank 0, the journal of digests beside the checkpoints.
        trained: the names of the parameters that the process that wrote the checkpoint trained, once a run is resumed.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        agreed: Agreement,
        world: World,
        streams: RunStreams,
        run_state: RunState,
    ) -> None:
        if agreed.planned is None:
            raise InvalidValue(
                "a run with checkpoints must have a plan, got noise decided during the run: the state of a policy is "
                "not saved. Calibrate a plan, or train without checkpoints"
            )
        self._checkpoints, self._agreed, self._planned = checkpoints, agreed, agreed.planned
        self._world, self._streams, self._run_state, self._saved = world, streams, run_state, -1
        self.releases = Releases(checkpoints.folder) if world.rank == 0 else None
        self.trained: list[str] | None = None

    @property
    def is_due(self) -> bool:
        """Whether this step needs a checkpoint that is not written yet."""
        regular = self._run_state.taken % self._checkpoints.every == 0
        return not self.is_saved and (regular or self._saved == _BY_OTHERS)

    @property
    def is_saved(self) -> bool:
        """Whether this step has a checkpoint."""
        return self._run_state.taken == self._saved

    @property
    def was_read(self) -> bool:
        """Whether a process of this run has read private diagnostics."""
        return self._marker.exists()

    def note_read(self) -> None:
        """Write down, for processes that resume the run, that private diagnostics were read."""
        if self._marker.parent.is_dir():  # (where ranks share no folder, rank 0 has it)
            self._marker.touch(mode=0o600)

    @property
    def _marker(self) -> Path:
        return Path(self._checkpoints.folder) / _READ

    def keep(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        positions: Mapping[str, Any],
        assumptions: tuple[Assumption, ...],
    ) -> None:
        """Write a checkpoint of this step if there is none; the first is written before the first step."""
        run_state = self._run_state
        if self.is_saved:
            return
        if any("initial_lr" in group for group in optimizer.param_groups) and not self._checkpoints.also:
            raise InvalidValue(
                "checkpoints must keep the scheduler that sets the optimizer's rate, got none: resumed, it would begin "
                "anew. Give the training scheduler=, or Checkpoints(folder, also={..}) one that your loop steps"
            )
        self._saved = run_state.taken
        # With sharded parameters, gathering is collective: every rank must call it.
        assumptions = together(self._world, assumptions)
        saved, beside = _divided(model)
        weights, moments = _whole(saved), _whole(optimizer.state_dict())
        correlated = self._streams.correlated
        earlier = dict[str, Any]() if correlated is None else _whole(correlated.state(dict(model.named_parameters())))
        if self.releases is None:
            return
        if correlated is not None and correlated.taken != run_state.taken:
            raise PlanViolation(
                f"a checkpoint must be of a step whose noise was released, got noise of {correlated.taken} steps after "
                f"{run_state.taken}. Go on from the last one"
            )
        state = {
            "agreed": self._agreed.sha256,
            "run": run_state.run_id,
            "place": run_state.place,
            "ranks": self._world.size,
            "resumed": list(run_state.resumed),
            "accumulate": run_state.accumulate,
            "gamma": run_state.gamma,
            "model": weights,
            "beside": beside,
            "optimizer": moments,
            "kind": name_of(optimizer),
            **positions,  # of sampling and data, without what is loaded ahead; and clip_norm
            **self._streams.others(),
            **({"correlated": earlier} if earlier else {}),
            "releases": self.releases.name,
            "assumptions": [assumption.written() for assumption in assumptions],
            "columns": [astuple(diagnostics) for diagnostics in run_state.diagnostics],
            "seconds": run_state.seconds,
            **({} if run_state.telemetry is None else {"telemetry": telemetry_entry(run_state)}),
        }
        self._checkpoints.save(Checkpoint(run_state.taken, state))

    def resume(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[tuple[float, ...], str]:
        """Restore the newest checkpoint, if any; returns the clip norms that a clip controller chose, and its settings.

        Raises:
            FileRefused: the file is no training's checkpoint, or does not fit model and optimiser.
            PlanViolation: the checkpoint is of another plan, of a run with a store where there is none (or without
                where there is one), or steps after it would be repeated by another number of ranks.
        """
        handed = self._world.draw(partial(self._newest, model))
        step, state, run_state = handed["step"], handed["state"], self._run_state
        if step is None:
            return (), ""
        with fitting():
            kind = name_of(optimizer)
            if state["kind"] != kind:
                raise FileRefused(
                    f"a run must go on with the optimiser it began with, {state['kind']}, got {kind}, which remembers "
                    "other things. Make the same one"
                )
            held, beside = model.state_dict(), _divided(model)[1]
            if state["beside"] != beside:
                raise FileRefused(
                    "a run must go on with the frozen layers it began with, got others: what they hold beside plain "
                    "parameters and buffers (scales of quantised weights) differs. Load the same model"
                )
            kept = {name: held[name] for name in held if not _is_kept(held[name])}
            kept |= {name: as_held(held.get(name), value) for name, value in state["model"].items()}
            entries = entries_of_frozen_layers(model)
            model.load_state_dict({name: value for name, value in kept.items() if name not in entries})
            optimizer.load_state_dict(in_parts(state["optimizer"], optimizer))
            run_state.assumptions = tuple(map(read_assumption, state["assumptions"]))
            run_state.releases[:] = self._planned.first(step)
            run_state.diagnostics[:] = [Diagnostics(*values) for values in state["columns"]]
            run_state.began = time.monotonic() - state["seconds"]
            self._checkpoints.restore(Checkpoint(step, state))
            if "correlated" in state:  # sharded: each rank restores the noise of its part
                self._earlier(noise_in_parts(state.pop("correlated"), model), step)
            # Of another number of ranks: written again at once, or what this number releases could not be repeated.
            self._saved = step if state["ranks"] == self._world.size else _BY_OTHERS
            run_state.run_id = state["run"]
            self.trained = state.get("trained")
            restore_readings(run_state, state.get("telemetry"), step)
            run_state.resumed = (*state["resumed"], step)
            if state["gamma"] != run_state.gamma:
                raise PlanViolation(
                    f"a run must go on with the clipping it began with, got gamma={run_state.gamma or None} after "
                    f"gamma={state['gamma'] or None}. Its statement could not say how gradients were clipped"
                )
            if step and state["accumulate"] == FLOAT32:
                run_state.accumulate = FLOAT32
            place = state["place"]
            run_state.place = None if place is None else check_integer("place", place)
            return tuple(float(norm) for norm in state["clip_norm"]), str(state.get("controller", ""))

    def _earlier(self, state: Mapping[str, Any], step: int) -> None:
        """Restore the state of correlated noise (noise of past steps) after ``step``."""
        if self._streams.correlated is None:
            raise FileRefused("a checkpoint must fit its plan, got correlated noise for a plan without")
        self._streams.correlated.load_state(state, step)

    def _newest(self, model: nn.Module) -> Tree:
        """On rank 0: load the newest checkpoint and restore the random streams, which are removed from what is
        returned (correlated noise: if unsharded)."""
        assert self.releases is not None
        found = self._checkpoints.newest()
        if found is None or self._is_before_any_release(found):
            self.releases.begin()
            return {"step": None, "state": None}
        state = dict(found.state)
        if not {"agreed", "run", "releases", "ranks"} <= state.keys():
            raise FileRefused("a checkpoint must be of a training, got one of something else")
        if state["agreed"] != self._agreed.sha256:
            raise PlanViolation(
                "a run must go on with the plan it began with, got another one than the checkpoint's. "
                "Its releases would not be what was promised"
            )
        if bool(state["run"]) != bool(self._run_state.run_id):
            raise PlanViolation(
                "a run must go on with the store it began with, or without one if it had none, got the other. "
                "Its releases would be in no ledger, or only half of them"
            )
        self.releases.go_on(state["releases"], found.step)
        ranks, size = state["ranks"], self._world.size
        again = self.releases.steps - found.step
        if ranks != size and again > 0:
            raise PlanViolation(
                f"repeated steps must be taken by as many processes as before, got {size} for {ranks} with "
                f"{again} steps after the checkpoint of step {found.step}: sums of other "
                f"shares are rounded otherwise. Go on with {ranks} until the next checkpoint"
            )
        with fitting():
            self._streams.go_to({name: state.pop(name) for name in ("sampling", "data")})
            self._streams.put_others(state)
            if self._streams.correlated is not None and not any(map(is_part, model.parameters())):
                self._earlier(state.pop("correlated"), found.step)
        return {"step": found.step, "state": state}

    def _is_before_any_release(self, found: Checkpoint) -> bool:
        """Whether a checkpoint is of another plan or kind of run that ended before it released anything: what was
        refused then may begin anew in its folder."""
        assert self.releases is not None
        state = found.state
        if found.step or not {"agreed", "run", "releases"} <= state.keys():
            return False
        if state["agreed"] == self._agreed.sha256 and bool(state["run"]) == bool(self._run_state.run_id):
            return False
        self.releases.go_on(state["releases"], 0)
        return self.releases.steps == 0


def _divided(model: nn.Module) -> tuple[dict[str, Any], str]:
    """A model's state dict without extra entries of frozen layers and tensor subclasses (quantised weights); and
    their digest."""
    entries, state = entries_of_frozen_layers(model), model.state_dict()
    beside = {name: value for name, value in state.items() if name in entries or not _is_kept(value)}
    shown = [
        (name, checksum(value).hex() if isinstance(value, Tensor) else repr(value))
        for name, value in sorted(beside.items())
    ]
    digest = hashlib.sha256(repr(shown).encode()).hexdigest() if shown else ""
    return {name: value for name, value in state.items() if name not in beside}, digest


def _is_kept(value: object) -> bool:
    """Whether a checkpoint stores a state dict's entry: not a tensor subclass (torchao's)."""
    return not isinstance(value, Tensor) or pieces(value)[0][0] == ""


def _whole(tree: Any) -> Any:
    """A state with full CPU tensors in place of those sharded over ranks."""
    if isinstance(tree, Mapping):
        return {key: _whole(value) for key, value in cast("Mapping[Any, Any]", tree).items()}
    if isinstance(tree, list):
        return [_whole(value) for value in cast("list[Any]", tree)]
    return cast("Any", tree).full_tensor().cpu() if isinstance(tree, Tensor) and is_part(tree) else tree


@contextmanager
def fitting(what: str = "a checkpoint", known: type[DecrescendoError] = DecrescendoError) -> Generator[None]:
    """Inside, whatever fails is the fault of what is read.

    Args:
        what: is read.
        known: errors that pass as they are.

    Raises:
        FileRefused: anything that cannot be read.
    """
    try:
        yield
    except known:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        raise FileRefused(
            f"{what} must fit this model and optimiser, got one that does not ({error}). Give those that the "
            "run was begun with, or another folder"
        ) from error
