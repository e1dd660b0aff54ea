"""Checks the result of a pass: by its label, loss i must depend on row i of the batch only."""

from torch import Tensor

from decrescendo.base.storages import is_hollow
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.labels import RowLayout, constant_of, is_data
from decrescendo.row_independence.row_layout import Public
from decrescendo.row_independence.tracer import Tracer


def check_own(tracer: Tracer, losses: Tensor) -> None:
    """Refuse losses of which one may depend on another row."""
    if is_hollow(losses):
        raise UnsupportedModel(
            f"losses must be a tensor that has memory of its own, got a {type(losses).__name__}, which wraps others. "
            "Return the plain tensor inside of it"
        )
    label = tracer.label(losses)
    tracer.consume("the losses", losses)
    if tracer.refusal:
        raise UnsupportedModel(tracer.refusal)
    check_raised(tracer)
    if constant_of(label) is not Public.FILL and not is_by_row(tracer, losses):
        tracer.blame(label, "loss")


def is_by_row(tracer: Tracer, tensor: Tensor) -> bool:
    """Whether row i along dimension 0 depends on row i of the batch alone."""
    label = tracer.label(tensor)
    return is_data(label) and RowLayout(0).same(label)


def check_raised(tracer: Tracer) -> None:
    """Refuse a pass in which the program caught an operation's error: the error may depend on the data."""
    if tracer.raised:
        raise UnsupportedModel(
            f"no error of an operation may steer the pass, but {tracer.raised}, which the program caught. Use "
            "operations that do not raise (torch.linalg.cholesky_ex), or torch.where"
        )
