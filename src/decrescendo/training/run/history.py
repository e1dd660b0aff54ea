"""Private diagnostics of the clipping at each step of a run."""

import json
from dataclasses import asdict, dataclass
from typing import Any, cast

from decrescendo.errors import FileRefused


@dataclass(frozen=True, slots=True)
class History:
    """Diagnostics of the clipping at each step. These numbers come from private data and are covered by no
    guarantee: they are for the data's holder, and are saved only on request.

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

    def to_json(self) -> str:
        """The columns as JSON; losses may be infinite."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes, *, source: str) -> "History":
        """Columns from `to_json`'s text; ``source`` names it in errors.

        Raises:
            FileRefused: not columns of numbers, or of different lengths.
        """
        try:
            columns: Any = json.loads(text)
            history = cls(**{name: _column(name, column) for name, column in columns.items()})
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise FileRefused(f"{source} must hold diagnostics, got {error}") from None
        if len({len(column) for column in asdict(history).values()}) > 1:
            raise FileRefused(f"{source} must have columns of one length, got different lengths")
        return history


def _column(name: str, values: Any) -> tuple[Any, ...]:
    kinds = (int, float) if name == "loss_sum" else (int,)
    if not isinstance(values, list) or not all(type(value) in kinds for value in cast("list[Any]", values)):
        raise TypeError(f"something else than a list of numbers under {name!r}")
    return tuple(cast("list[Any]", values))
