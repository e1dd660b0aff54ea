"""What the clipping saw at each step of a run."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class History:
    """What the clipping saw at each step. These numbers come from private data and are covered by no
    guarantee:
    they are for whoever holds the data, and are saved only on request.

    Args:
        examples: realised batch size.
        nonfinite: examples whose gradient was not finite and counted as zero.
        clipped: examples whose gradient was longer than the clip norm.
        loss_sum: sum of the losses.
    """

    examples: tuple[int, ...] = ()
    nonfinite: tuple[int, ...] = ()
    clipped: tuple[int, ...] = ()
    loss_sum: tuple[float, ...] = ()
