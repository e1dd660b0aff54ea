"""Captured passes: the operations of a checked pass are replayed without the Python that started them.

Checking and recording take longer, in Python, than a small model's operations. Once a pass over the same number of
examples was checked, the next one is checked while its operations are captured (`tape` on a CPU, a CUDA graph on a
GPU). From then on these are replayed on other rows, until the model moves in memory. Its value comparisons are
replayed at every step; but Python code does not run again, so a change in it is not seen. Some passes in between run
in Python, and must run the same operations. `capture_choice` decides whether to capture.

Batches are padded to a few sizes, captured or not: no setting and no timing changes a result.
"""

import threading
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

from decrescendo.base.assumptions import REPLAYED
from decrescendo.base.batches import leaves_of
from decrescendo.clipping import capture_choice
from decrescendo.clipping.capture_choice import Choice
from decrescendo.clipping.captured import (
    Ahead,
    Captured,
    PassKey,
    Replayed,
    capture_pass,
    does_otherwise,
    is_compared,
    padded,
    pass_key,
    why_not_around,
)
from decrescendo.clipping.captured_pass import CHANGES, OtherOperations, UncomputedStateKept, why_broken
from decrescendo.clipping.checker import Checker
from decrescendo.clipping.clipped import Batch
from decrescendo.clipping.device_graphs import Capture, capturing_on
from decrescendo.clipping.factors import Factors
from decrescendo.clipping.inventory import Inventory
from decrescendo.clipping.memory import release
from decrescendo.clipping.passes import Pass
from decrescendo.clipping.workspace import Workspace
from decrescendo.errors import DecrescendoError
from decrescendo.row_independence.tracing import Numbers, changed_places, without_keys

# Captured passes that are kept, those used last: each has memory for its inputs and its results.
_MOST = 32
# Passes whose occurrences are counted.
_SEEN = 512
# Replays that may be repeated in Python before captures are given up, and beyond these half of all; fewer unless
# capture=True.
_MISSED, _MISSED_UNASKED = 8, 2


@dataclass(slots=True)
class Captures:
    """The captured passes of one engine.

    Args:
        checker: runs passes in Python, checked.
        workspace: memory for the rules.
        factors: computes clip factors from losses and norms (`factors_of`).
        choice: decides whether passes are captured.
    """

    checker: Checker
    workspace: Workspace
    factors: Callable[..., Factors]
    choice: Choice
    # One pass at a time: they share their memory.
    _one_at_a_time: threading.RLock = field(default_factory=threading.RLock)
    _borrowed: Tensor | None = None
    _make: Callable[[], Capture] | None = None
    _captured: dict[PassKey, Captured] = field(default_factory=dict[PassKey, Captured])
    # Occurrences of each pass.
    _seen: dict[PassKey, int] = field(default_factory=dict[PassKey, int])
    # The program's Python state when passes were captured.
    _kept: Numbers | None = None
    # Its state before the current pass in Python; whether a pass left it unchanged; passes so compared; their epoch.
    _before: Numbers | None = None
    _steady: bool = False
    _unsteady: int = 0
    _epoch: int = 0
    # Replayed passes, and passes that had to run in Python after a replay or in its place.
    _done: int = 0
    _missed: int = 0
    # Occurrences of captured passes, replayed or not, since the program was last seen to change.
    _uses: int = 0
    # The next pass, where it was replayed before its step.
    _ahead: Ahead | None = None

    @contextmanager
    def alone(self) -> Generator[None]:
        """Hold the lock in which a pass may be replayed and its result is used; then return borrowed memory."""
        with self._one_at_a_time:
            try:
                yield
            finally:
                if self._borrowed is not None:
                    self.workspace.return_to(self._borrowed)
                    self._borrowed = None

    def count(self, rows: int, most: int | None, held: Inventory, batch: Batch) -> int:
        """The number of rows to which a pass over ``rows`` is padded: few numbers occur where passes can be captured,
        whether any is or not.

        ``most``: no padding beyond these.
        """
        if rows < 2:
            return rows
        if self._make is None:
            self._make = capturing_on([tensor for _, tensor in held.tensors()] + leaves_of(batch))
        if self._make is None:
            return rows
        return padded(rows, most)

    def replay(self, batch: Batch, count: int, limit: float, held: Inventory, seed: int) -> Replayed | None:
        """The replayed pass over ``batch``, padded to ``count`` rows, with sums clipped to ``limit``; ``None`` where
        it must run in Python."""
        make = self._make if self.choice.on and count > 1 else None
        ahead, self._ahead = self._ahead, None
        if make is None:
            return None
        self.choice.begin()
        if not self._may_replay(held):
            return None
        key, alike = pass_key(batch, count, held), pass_key(batch, 0, held)
        if key not in self._seen and len(self._seen) >= _SEEN:  # of a model whose memory moves at each step
            self._seen.clear()
        self._seen[key] = self._seen.get(key, 0) + 1
        if self._seen[key] > 1:
            self.choice.note_way(alike, replayed=False)
        captured = self._captured.pop(key, None)
        if captured is None and not self._steady:
            wanted = self.choice.asked is True or self._seen[key] > 1
            self._before = self.checker.kept() if wanted else None
            return None
        if captured is None and not self.choice.pays(key, self._seen[key]):
            return None
        if captured is None or self.workspace.outgrown(captured.block):
            captured = None  # (its memory is given back before more is asked for)
            captured = self._capture(make, batch, count, held, seed)
            self.choice.captured(key, alike)
        if captured is None:
            return None
        self._captured[key] = captured  # the one used last is last
        if len(self._captured) > _MOST:
            del self._captured[next(iter(self._captured))]
        captured.times += 1
        self._uses += 1
        if captured.times % 2 == 0 and self.choice.takes_turns(alike):
            return None
        if not self.choice.measures and is_compared(self._uses):
            return None
        if ahead is not None and ahead.is_of(captured, batch, limit, seed, held):
            found = ahead.found
        elif self.workspace.borrow(captured.block):
            self._borrowed = captured.block
            found = captured.replay(batch, limit, seed)
        else:
            return None  # a `Pass` that is still referenced has it
        self._done += 1
        self.choice.note_way(alike, replayed=True)
        self.checker.memory.assumed.add(REPLAYED)
        return found

    def before_step(self, batch: Batch, count: int, limit: float, held: Inventory, seed: int) -> list[Tensor]:
        """Where the next `replay`, with the same arguments, would replay a pass: do it now, and keep its result for
        that call. Returns what the loss noted (`note_byproducts`); else nothing."""
        self._ahead = None
        captured = self._captured.get(pass_key(batch, count, held))
        if captured is None or not captured.byproducts or self.choice.measures:
            return []
        if is_compared(self._uses + 1) or self.workspace.outgrown(captured.block):
            return []
        if self._kept is None or self._epoch != self.checker.comparison.epoch or why_not_around(held):
            return []
        if any(tensor.is_inference() for tensor in (*leaves_of(batch), *(one for _, one in held.tensors()))):
            return []
        if changed_places(self._kept, self.checker.kept()) or not self.workspace.borrow(captured.block):
            return []
        self._borrowed = captured.block
        self._ahead = Ahead.of(captured, batch, limit, seed, held)
        return self._ahead.found.byproducts

    def _may_replay(self, held: Inventory) -> bool:
        """Whether captured passes may be replayed: unchanged Python state, no autocast, no hooks of all modules."""
        self.checker.comparison.follow_rules()
        if self._epoch != self.checker.comparison.epoch:  # e.g. data were withheld that a pass may read
            self._captured.clear()
            self._epoch = self.checker.comparison.epoch
        if self._kept is not None and (changed := changed_places(self._kept, self.checker.kept())):
            self._captured.clear()
            if self.choice.asked == "auto":  # occurrences are counted anew
                self._seen.clear()
            self._kept, self._uses = None, 0
            self.count_repeat(f"what the program keeps in {changed[0]} changes again and again", capture_choice.CHANGES)
            return False
        if around := why_not_around(held):
            self._stop(around, capture_choice.CANNOT)
        return not around

    def end(self) -> None:
        """Note the end of a pass, replayed or not."""
        self.choice.end()
        if not self.choice.on and self._captured:
            self.forget()

    def forget(self) -> None:
        """Drop the captured passes and their memory; they may be captured again."""
        with self._one_at_a_time:
            self._captured.clear()
            self._ahead = None

    @contextmanager
    def ending(self) -> Generator[None]:
        """Inside, a pass runs in Python: if it is refused, the captured passes are dropped."""
        try:
            yield
        except DecrescendoError:
            self._captured.clear()
            self._seen.clear()
            raise

    def count_repeat(
        self,
        reason: str = "most of what they did had to be done in Python once more",
        why: str = capture_choice.SLOWER,
    ) -> None:
        """Count a pass that had to run in Python after a replay or in its place (a gradient that is not finite, a
        changed constant); stop captures after too many."""
        self._missed += 1
        self.choice.note_repeat()
        few = _MISSED if self.choice.asked is True else _MISSED_UNASKED
        if self._missed > max(few, self._done // 2):
            self._stop(reason, why)

    def compare(self, batch: Batch, held: Inventory, done: Pass) -> None:
        """Stop captures if a pass in Python ran other operations than its capture, or changed the program's Python
        state again and again: a capture is one more pass, which would change it, too."""
        if self._before is not None:
            changed = changed_places(self._before, self.checker.kept())
            self._steady = not changed
            self._before, self._unsteady = None, self._unsteady + 1
            if not self._steady and self._unsteady > _MISSED_UNASKED:
                self._stop(
                    f"the program keeps something else after each pass, in {without_keys(changed[0])}",
                    capture_choice.CHANGES,
                )
        made = self.choice.on and self._captured
        captured = self._captured.get(pass_key(batch, done.tracer.count, held)) if made else None
        if captured is not None and does_otherwise(captured, done.tracer.trace):
            before = f"; at most {self._done} passes of this training were done as the ones before it changed"
            self._stop(
                f"{CHANGES}, by what it does not keep where it can be seen{before if self._done else ''}",
                capture_choice.CHANGES,
                wrong=self._done > 0,
            )

    def _capture(
        self, make: Callable[[], Capture], batch: Batch, count: int, held: Inventory, seed: int
    ) -> Captured | None:
        device = next(iter(held.parameters.values())).device
        if (block := self.workspace.reserved(device)) is None:
            return None  # a `Pass` that is still referenced has it
        first = self.choice.asked == "auto" and not self._captured
        try:
            captured = capture_pass(
                self.checker, make(), batch, count, held, seed, self.workspace, block, self.factors, first=first
            )  # fmt: skip
        except OtherOperations:
            self.count_repeat(CHANGES, capture_choice.CHANGES)
            return None
        except UncomputedStateKept:
            self._stop("a capture was broken off", capture_choice.CANNOT)
            raise
        except Exception as error:
            said, memory = why_broken(error)
        else:
            if captured is not None:
                self._kept = self._kept or self.checker.kept()
            return captured
        if memory:
            release()
        self._stop(said, capture_choice.MEMORY if memory else capture_choice.CANNOT)
        return None

    def _stop(self, reason: str, why: str, *, wrong: bool = False) -> None:
        """Capture no more passes. ``reason``: for a warning; ``why``: for the run's record, which must hold nothing
        of the data. Unless capture=True, only replays that may have been ``wrong`` are warned of."""
        self._captured.clear()
        self.choice.stop(why)
        if wrong or self.choice.asked is True:
            warnings.warn(f"no pass is captured from here on: {reason}", UserWarning, stacklevel=2)
