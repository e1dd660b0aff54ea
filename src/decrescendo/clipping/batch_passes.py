"""Passes over one micro-batch, checked or replayed: its norms, and its clipped sums."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

from jaxtyping import Float
from torch import Tensor

from decrescendo.base.batches import count_rows
from decrescendo.base.precision import full_precision
from decrescendo.clipping.capture import Captures
from decrescendo.clipping.checker import Checker
from decrescendo.clipping.clipped import Batch
from decrescendo.clipping.factors import Factors, PassNumbers, joint_norms, seen_of
from decrescendo.clipping.inventory import Inventory
from decrescendo.clipping.memory import is_out_of_memory, release
from decrescendo.clipping.one_example import kept_by
from decrescendo.clipping.passes import Pass
from decrescendo.clipping.workspace import Workspace
from decrescendo.errors import OutOfMemory


@final
@dataclass(frozen=True, slots=True)
class BatchPasses:
    """The passes of an engine over its micro-batches.

    Args:
        checker: runs a pass in Python, checked.
        workspace: memory for kept gradients.
        captures: replays of earlier passes.
        factors: computes clip factors from norms (`factors_of`).
        seeds: gives the seed of the random numbers of each pass; `no_seed` where passes draw none.
        keep: see `Engine`.
    """

    checker: Checker
    workspace: Workspace
    captures: Captures
    factors: Callable[..., Factors]
    seeds: Callable[[], int]
    keep: Callable[[str, Tensor], Tensor] | None
    _drawn: list[int] = field(default_factory=list[int], init=False)

    def checked_pass(self, batch: Batch, held: Inventory) -> Pass:
        """One pass in Python, with a seed of its own."""
        return self.checker.run(batch, count_rows(batch), 0, held, self._seed(), self.workspace)

    def norms(self, batch: Batch, rows: int, held: Inventory) -> Float[Tensor, " batch"]:
        """|g_i| of each row."""
        done = self.checked_pass(batch, held)
        with full_precision():
            return joint_norms(done)[:rows]

    def _seed(self) -> int:
        """That of the next pass, which `before_step` may have drawn already."""
        return self._drawn.pop() if self._drawn else self.seeds()

    def before_step(self, batch: Batch, rows: int, held: Inventory, limit: float, most: int | None) -> list[Tensor]:
        """`Captures.before_step` for the pass that `clipped` would do of these rows."""
        count = self.captures.count(rows, most, held, batch)
        if not self._drawn:
            self._drawn.append(self.seeds())
        try:
            with self.captures.alone():
                return self.captures.before_step(batch, count, limit, held, self._drawn[0])
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        self.captures.forget()  # `clipped` will be given fewer rows
        release()
        return []

    def clipped(
        self, batch: Batch, rows: int, held: Inventory, limit: float, most: int | None, *, metered: bool
    ) -> tuple[dict[str, Tensor], PassNumbers]:
        """The clipped sums of the rows by parameter, and their diagnostics and telemetry.

        Args:
            most: the most rows of a pass, padding included; ``None`` for no limit.
            metered: whether the memory that the pass takes is measured: then it is not replayed.
        """
        seed, count = self._seed(), self.captures.count(rows, most, held, batch)
        with self.captures.alone():
            replayed = None if metered else self.captures.replay(batch, count, limit, held, seed)
            if replayed is not None:
                found, finite = seen_of(replayed.numbers, rows)
                if finite:
                    return kept_by(self.keep, replayed.sums), found
                self.captures.count_repeat()
        with self.captures.ending():
            done = self.checker.run(batch, rows, count, held, seed, self.workspace)
        self.captures.compare(batch, held, done)
        with full_precision():
            measured = done.measured
            factors = self.factors(done, joint_norms(done), rows, limit)
            found, finite = seen_of(factors.numbers, rows)
            if metered or not finite:
                # (Also where memory is measured: the most that can be needed, so that sizes do not depend on values.)
                # 0 times infinity is NaN: gradients that are not finite are set to zero, not multiplied by zero.
                measured = measured.without_rows(~factors.counted)
            try:
                return measured.scaled_sums(factors.factors, self.keep), found
            except Exception as error:
                if self.keep is None or not is_out_of_memory(error):
                    raise
                what = str(error)
            # ``keep`` may have got some of the sums: a second pass over these examples would hand them on again.
            raise OutOfMemory(f"all sums of a micro-batch must fit into memory, got: {what}. Set microbatch_size")


def no_seed() -> int:
    """Where no stream gives seeds."""
    return -1
