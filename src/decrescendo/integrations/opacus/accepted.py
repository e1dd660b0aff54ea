"""`Accepted`: once a loop has read anything of a batch, its program must equal one that was recorded before that."""

from decrescendo.errors import PlanViolation, UnsupportedModel
from decrescendo.integrations.opacus.checks import is_plain
from decrescendo.integrations.opacus.constants import Knowledge
from decrescendo.integrations.opacus.program import Program


class Accepted:
    """The program in which nothing can be that the loop read of a batch: it was recorded before it read anything.

    The same calls with the same numbers, and constants with the same bits, hold nothing of it either. It is the last
    one: which of several it is, a loop may choose by what it read.

    Args:
        alone: whether the engine passes one example at a time, where a tensor with a place for each row of the batch
            would meet each example with all of its places.
    """

    def __init__(self, *, alone: bool) -> None:
        self._alone = alone
        self._clean: Program | None = None
        self.other_modes = False  # the model is called in other modes than before, since a number of a batch was read

    def of(self, program: Program, seen: Knowledge, *, is_first: bool) -> Program:
        """The program to compute: the one that is kept, where this is equal to it.

        Args:
            program: of the batch, or part, that was just recorded.
            seen: what the loop may know.
            is_first: whether it is the first part of its batch.

        Raises:
            UnsupportedModel: something that the loop read may be in it.
            PlanViolation: another program than that of the first part.
        """
        kept = self._clean
        difference = "" if kept is None else program.differs(kept)
        if (seen.read or seen.counted) and (where := program.changed):
            raise UnsupportedModel(
                "once a loop has read anything of a batch, an object that it gives to the model or a function must "
                f"stay as it is until optimizer.step(), got another number in it ({where}). Give an object without "
                "counters and histories"
            )
        self.other_modes = seen.read and kept is not None and not program.has_modes_of(kept)
        if kept is not None and not difference:
            return program if program.moves_on(kept) else kept
        if not is_first:
            raise PlanViolation(
                f"all parts of a batch must compute the same loss, got {difference} than in the first part. Leave "
                "numbers that change from part to part out of it"
            )
        if difference and (program.late or seen.counted):
            what = "numbers" if seen.read else "the number of rows"
            raise UnsupportedModel(
                f"after a loop has read {what} of a batch, its loss must be the one that it had before, got "
                f"{difference}, which may be made of that. Take numbers that change from a tensor made before the "
                "loop, by the number of the step (weights[step] * loss), constants from before the loop, and give the "
                "model objects without counters and histories"
            )
        own = [call for call in program.late if not is_plain(call)]
        if own:
            raise UnsupportedModel(
                "in the first step the loss must be computed before the loop reads anything of the batch (item, print, "
                f"NumPy), got {own[0].name} with a number or tensor of the loop's own after it. Compute the "
                "loss first, or what it needs of a batch in each example's own loss"
            )
        if self._alone and seen.counted and program.sized:
            raise UnsupportedModel(
                "a loss must be computed from tensors of any number of rows where each example is passed by itself, "
                f"got {program.sized} with a tensor that the loop made for the {program.rows} rows of this batch. Make "
                "it from a tensor of the batch: x.new_zeros(x.shape[0]), torch.ones_like"
            )
        self._clean = program
        return program
