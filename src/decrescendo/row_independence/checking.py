"""`check`: the public function that tests whether output row i of a function depends on input row i only."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from decrescendo.base.assumption import Assumption
from decrescendo.base.batches import Batch, count_rows, leaves_of, map_rows
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.comparison import Comparison
from decrescendo.row_independence.inputs import drawing, labelled_rows
from decrescendo.row_independence.known_memory import Memory
from decrescendo.row_independence.python_state import Numbers, numbers_of
from decrescendo.row_independence.refusals import Refusal, reads_a_number
from decrescendo.row_independence.result import check_own
from decrescendo.row_independence.trace import draws, rejects
from decrescendo.row_independence.tracer import Tracer
from decrescendo.row_independence.unobserved_reads import UnobservedReads

# The most rows that are rerun one at a time if the program has data-dependent branches.
_ALONE = 8


@dataclass(frozen=True, slots=True)
class Independent:
    """Each output row was found to depend only on its own input row.

    Args:
        rows: the batch size checked; sizes 2 and 3 are checked too.
        assumptions: what was assumed, not checked; usually nothing.
    """

    rows: int
    assumptions: tuple[Assumption, ...] = ()


@dataclass(frozen=True, slots=True)
class _Forward:
    """A finished forward pass, as the protocol `program.Done` that `Comparison` uses; it has no scores."""

    losses: Tensor
    tracer: Tracer
    scores: Tensor | None = None


@dataclass(frozen=True, slots=True)
class _Function:
    """A function of a batch, as a `program.Program` that `Comparison` can run."""

    function: Callable[[Batch], Tensor]
    memory: Memory
    devices: Collection[torch.device]
    hint: str = "check calls program(batch), and wants a tensor with one number a row"

    def run(self, rows: Batch, tracer: Tracer) -> _Forward:
        with torch.enable_grad(), tracer, UnobservedReads(tracer):
            losses = self.function(rows)
        if not isinstance(losses, Tensor) or losses.shape != (tracer.count,):
            found = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise UnsupportedModel(
                f"program(batch) must return one number a row, shape ({tracer.count},), got {found}"
            )
        check_own(tracer, losses)
        return _Forward(losses.detach(), tracer)

    def numbers(self) -> Numbers:
        return numbers_of(nn.Module(), self.function)

    def compare(self, batch: Batch, rows: int, small: _Forward, seed: int) -> None:
        """No-op: this check replaces no operation, so there is no second result to compare."""

    def compare_answers(self, batch: Batch, rows: int, done: _Forward, seed: int) -> None:
        """Compare the traced pass, which gave every row the same answer at a branch, with one row at a time.

        A row is rerun with its real branch values, as a batch of one. If the program draws random numbers,
        the row is repeated to the size of the traced pass, so that the copy at its position ``at`` draws the
        same numbers.
        """
        if not done.tracer.reads.asked or rejects(done.tracer.trace):
            return
        copies = done.tracer.count if draws(done.tracer.trace) else 1
        for row in range(min(rows, _ALONE)):
            one, at = map_rows(lambda rows: rows[row : row + 1], batch), min(row, copies - 1)  # noqa: B023
            tracer = Tracer(copies, self.memory, seed, natural=True, replays=done.tracer.trace)
            try:
                with drawing(self.devices, seed), tracer:
                    found = self.function(labelled_rows(one, 1, tracer)).detach()
            finally:
                tracer.end()
            if not torch.allclose(found[at], done.losses[row], rtol=1e-4, equal_nan=True):
                raise UnsupportedModel(reads_a_number(done.tracer.reads.asked[-1]))


def check(
    program: Callable[[Batch], Tensor], batch: Batch, *, declared: tuple[str, ...] = (), seed: int = 0
) -> Independent | Refusal:
    """Whether row i of ``program(batch)`` depends on row i of ``batch`` alone, for any number of rows.

    Every operation is traced over this batch, and over two and three of its rows; the operations must be the
    same at all sizes, and each must treat rows independently. Random generators are restored afterwards. This
    is about one forward pass; `decrescendo.clipping.Engine` follows the backward pass, too, at every step.

    Args:
        program: from a batch to one number per row, shape ``(rows,)``. It runs several times.
        batch: tensors with a first dimension of rows, in any nesting of dicts, lists and tuples.
        declared: lines (``"file.py:12"``) that may read data values; assumed harmless, not checked.
        seed: seeds the random numbers of each pass.

    Raises:
        Exception: whatever the program raises by itself.

    >>> import torch
    >>> x = torch.randn(5, 4)
    >>> check(lambda x: x.square().sum(1), x)
    Independent(rows=5, assumptions=())
    >>> refused = check(lambda x: (x - x.mean(0)).sum(1), x)
    >>> refused.operation, refused.why[-45:]
    ('mean', 'but in mean several examples are put together')
    """
    comparison = Comparison[_Forward](declared)
    devices = {leaf.device for leaf in leaves_of(batch)}
    function, rows = _Function(program, comparison.memory, devices), count_rows(batch)
    try:
        comparison.checked(function, batch, rows, max(rows, 2), seed)
    except UnsupportedModel as error:
        if isinstance(error.refusal, Refusal):
            return error.refusal
        why, _, remedy = str(error).partition(". ")
        return Refusal(why, remedy=remedy)
    return Independent(rows, tuple(sorted(comparison.memory.assumed)))
