"""Detects what a user's own loop changes between steps (weights, optimiser, batch); a run lists it as assumptions."""

from collections.abc import Callable, Collection
from typing import Any, final

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from decrescendo.base.assumption import Assumption
from decrescendo.clipping.clipped import Batch, trainable
from decrescendo.clipping.inventory import Inventory
from decrescendo.errors import UnsupportedModel
from decrescendo.training.loop.assumptions import (
    ENDED_EARLY,
    ENDED_ON_A_BATCH,
    GRADIENTS_CHANGED,
    OPTIMIZER_STATE,
    READ_AND_ENDED,
    READ_AND_SET,
    ROWS_CHANGED,
    SCHEDULER_STEPS,
    SET,
    STEP_SKIPPED,
    TRAINED_SET,
    WRITTEN,
    named,
)
from decrescendo.training.loop.earlier_runs import EarlierRuns
from decrescendo.training.loop.handed import Handed
from decrescendo.training.loop.optimizers import around_step, assumed_of_optimizer, state_at_start
from decrescendo.training.loop.schedulers import Settings, set_by_scheduler, settings_of, state_of, steps_of
from decrescendo.training.processes.bits import fingerprint, fingerprints


@final
class BetweenSteps:
    """Detects changes that a user's loop makes to weights, optimiser and batch, from the first draw on.

    Args:
        model: its trained parameters are watched.
        optimizer: its settings and its class are checked.
        settle: `Parts.settle`, called before the weights are fingerprinted.
        scheduler: of the run; after `filled` the user's loop steps it.
        seed: what this run's noise is drawn from, and no run of the model before; `None` where that is known.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        settle: Callable[[], None] = lambda: None,
        scheduler: LRScheduler | None = None,
        seed: object = None,
    ) -> None:
        self._model, self._optimizer, self._settle = model, optimizer, settle
        self._found: set[Assumption] = set()
        self._read = self._begun = self._restored = False
        self.when_read: Callable[[], object] = lambda: None  # called once
        self._earlier = EarlierRuns(seed)
        # Each parameter's requires_grad after the last step; the names that the loop froze or unfroze (ordered sets).
        self._requires = self._requires_now()
        self._frozen_or_unfrozen = {"frozen": dict[str, None](), "unfrozen": dict[str, None]()}
        # Weights and settings after the last step; the drawn tensors by id; weights and settings before the pass.
        self._weights: dict[str, bytes] | None = None
        self._settings: Settings = []
        self._handed = Handed(None)
        self.is_straight = False  # batches go from the draw to the step: no code of a user is in between
        self._entered: tuple[dict[str, bytes], Settings] | None = None
        # For a loop that steps optimiser and scheduler itself (`filled`).
        self._scheduler, self._is_filled = scheduler, False
        # The scheduler as its last step left it; in a loop that steps it, how many steps it had taken.
        self._scheduled, self._numbers, self._filled_at = "", "", -1
        self._handles: list[Any] = []

    def begin(self) -> bool:
        """Call before each draw: the state found before the first cannot depend on private data.

        Returns whether this is the first call.
        """
        begins = not self._begun
        if begins:
            if self._weights is not None:  # resumed
                # (A scheduler that was made since adds a setting of its own, and perhaps changes none.)
                now = settings_of(self._optimizer)
                pairs = zip(self._settings, now, strict=False)
                moved = any(old[key] != new[key] for old, new in pairs for key in old.keys() & new.keys())
                if moved or len(self._settings) != len(now):
                    self._note_set()
                self._settings = now
                self._note_trained()
                self.look()
            elif held := state_at_start(self._optimizer):
                self._found.add(OPTIMIZER_STATE.format(named(held)))
            self.look_back()
            self._begun, self._scheduled = True, state_of(self._scheduler)
            self._numbers = state_of(self._scheduler, counters=False)
            self._note()
        return begins

    def look_back(self) -> None:
        """Note whether the model has tensors trained by another run; in a resumed run, only those not
        restored are checked."""
        held = [*self._model.parameters(), *self._model.buffers()]
        if self._restored:
            restored = set(map(id, self._model.state_dict(keep_vars=True).values()))
            held = [value for value in held if id(value) not in restored]
        self._found |= self._earlier.before(held)

    def released(self, *, noisy: bool) -> None:
        """Note that a release, with noise or without, updates the weights."""
        self._earlier.trains(trainable(self._model).values(), noisy=noisy)

    @property
    def trained(self) -> list[str]:
        """The names of the parameters that were trained in the last step."""
        return [name for name, trained in self._requires.items() if trained]

    def resumed(self, *, noisy: bool, trained: Collection[str] | None = None) -> None:
        """Note that the weights come from a checkpoint of this run, and so depend on private data.

        Args:
            noisy: whether all steps had noise.
            trained: the parameters that it trained; ``None`` where it did not write them down.
        """
        self._restored = True
        if trained is not None:
            self._requires = {name: name in trained for name in self._requires}
        self.released(noisy=noisy)
        self._weights, self._settings = self._now(), settings_of(self._optimizer)

    def note_drawn(self, batch: Batch | None) -> None:
        """Note the batch that was drawn."""
        self._handed = Handed(None if self.is_straight else batch)

    def check_given(self, batch: Batch | None) -> None:
        """Compare the batch given to a step with the drawn one."""
        if batch is not None and not self.is_straight and self._handed.is_changed(batch):
            self._found.add(ROWS_CHANGED)

    def look(self) -> tuple[dict[str, bytes], Settings]:
        """Check that weights and settings are as the last step left them, and the optimiser's class. Returns the
        weights' fingerprints and the settings."""
        self._found |= assumed_of_optimizer(self._optimizer)
        now, settings = self._now(), settings_of(self._optimizer)
        if self._weights is None:
            return now, settings
        if any(self._weights[name] != code for name, code in now.items() if name in self._weights):
            self._found.add(WRITTEN)
        if self._begun and self._settings != settings:
            own = self._scheduler if self._is_filled else None
            if own is None or not set_by_scheduler(own, self._optimizer, self._settings, settings):
                self._note_set()
        if self._begun and not self._is_filled and self._scheduled != state_of(self._scheduler):
            self._note_set()
        if self._is_filled and self._numbers != state_of(self._scheduler, counters=False):
            self._note_set()
        return now, settings

    def _note_set(self) -> None:
        self._found.add(READ_AND_SET if self._read else SET)

    def enter(self) -> None:
        """Call when a pass begins: until `leave` nothing may change the weights or the optimiser's
        settings."""
        self._entered = self.look()
        if self._begun:
            self._note_trained()

    def replayed(self) -> None:
        """Call where the pass was replayed, so that no code ran that could change anything: `leave` compares
        nothing."""
        self._entered = None

    def leave(self) -> None:
        """Call when the pass has ended, before the optimiser updates the weights.

        Raises:
            UnsupportedModel: the pass changed weights or settings: data that it wrote there have no noise.
        """
        entered, self._entered = self._entered, None
        if entered is not None and entered != (found := (self._now(), settings_of(self._optimizer))):
            what = "weights" if entered[0] != found[0] else "settings"
            raise UnsupportedModel(
                f"no pass may change the weights or their optimizer, got another value of {what} after it. What a "
                "loss or a hook writes there has no noise: change it between steps"
            )

    def stepped(self) -> None:
        """Call after the optimiser has updated the weights."""
        self._handed = Handed(None)
        self._note()

    def scheduled(self) -> None:
        """Call after the run's scheduler has set the learning rates, right after `stepped`."""
        self._settings, self._scheduled = settings_of(self._optimizer), state_of(self._scheduler)

    def filled(self) -> None:
        """Call when the noisy mean is in every ``.grad``: the user's loop must then step its optimiser once."""
        self._handed = Handed(None)
        if self.waiting:
            self._found.add(STEP_SKIPPED)
        if self._is_filled and steps_of(self._scheduler) != self._filled_at + (self._scheduler is not None):
            self._found.add(SCHEDULER_STEPS)
        self._is_filled, self._filled_at = True, steps_of(self._scheduler)
        self._forget()
        gradients = self._gradients()

        def before() -> None:
            if gradients != self._gradients():
                self._found.add(GRADIENTS_CHANGED)
            self.look()

        def after() -> None:
            self._forget()
            self._note()

        def within(closure: Callable[[], Any]) -> Callable[[], Any]:
            def watched() -> Any:
                kept, weights, settings = self._gradients(), self._now(), settings_of(self._optimizer)
                found = closure()
                if kept != self._gradients():
                    self._found.add(GRADIENTS_CHANGED)
                if weights != self._now():
                    self._found.add(WRITTEN)
                if settings != settings_of(self._optimizer):
                    self._note_set()
                return found

            return watched

        self._handles = around_step(self._optimizer, before, after, within)

    @property
    def waiting(self) -> bool:
        """Whether every ``.grad`` has a noisy mean that no optimiser step has used yet."""
        return bool(self._handles) and self._weights == self._now()

    def read(self) -> None:
        """Note that private diagnostics of a step were read."""
        if not self._read:
            self._read = True
            self.when_read()

    @property
    def assumptions(self) -> set[Assumption]:
        """The assumptions that follow from the changes found."""
        what = " and ".join(
            f"{named(names)} {'was' if len(names) == 1 else 'were'} {how}"
            for how, names in self._frozen_or_unfrozen.items()
            if names
        )
        return self._found | ({TRAINED_SET.format(what)} if what else set())

    def ended(self, *, early: bool, drawn: bool) -> tuple[Assumption, ...]:
        """The assumptions of a run that ends here: early, or after drawing a batch that no step used."""
        by = [READ_AND_ENDED if self._read else ENDED_EARLY] if early else []
        return (*by, *([ENDED_ON_A_BATCH] if drawn else []), *([STEP_SKIPPED] if self.waiting else []))

    def _note(self) -> None:
        self._weights = None
        self._weights, self._settings = self._now(), settings_of(self._optimizer)
        self._requires = self._requires_now()

    def _note_trained(self) -> None:
        for name, trained in self._requires_now().items():
            if self._requires.get(name, trained) is not trained:  # (a new parameter does not count)
                self._frozen_or_unfrozen["unfrozen" if trained else "frozen"][name] = None

    def _requires_now(self) -> dict[str, bool]:
        return {name: value.requires_grad for name, value in Inventory.of(self._model).parameters.items()}

    def _forget(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _now(self) -> dict[str, bytes]:
        """Fingerprints of the parameters that are trained now, or were in the step before."""
        self._settle()
        before = self._weights or {}
        named = Inventory.of(self._model).parameters.items()
        held = {name: value for name, value in named if value.requires_grad or name in before}
        return dict(zip(held, fingerprints(*held.values()), strict=True))

    def _gradients(self) -> bytes:
        found = [parameter.grad for parameter in trainable(self._model).values()]
        return fingerprint(*(value for value in found if value is not None))
