"""How much of a budget a ledger has spent after so many releases, cheaply enough for a progress bar."""

from typing import final

import numpy as np
from jaxtyping import Float, Int

from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.pld import Pld
from decrescendo.accounting.truncated import Truncated
from decrescendo.errors import check_integer, check_real

# Relative width of the bracket at all checkpoints but the last: a few times cheaper than the default.
QUICK = 1e-2


@final
class EpsilonCurve:
    """Certified epsilon after each of a few checkpoints of a ledger, each computed when first asked for.

    Between checkpoints nothing is interpolated: the value is the next checkpoint's, and so an upper bound.

    Args:
        ledger: the releases in order, one row a step; of records that take part once an epoch whole epochs, at whose
            ends the checkpoints then are.
        delta: in (0, 1).
        checkpoints: how many, evenly spaced, the last at the end; >= 1.
        group: how many records come and go together; see `Pld`.

    Raises:
        InvalidValue: a number outside its range.
        AccountingError: (when asked) a release the accountant cannot judge.

    >>> curve = EpsilonCurve(Ledger.of([2.0] * 10, 0.01), delta=1e-5, checkpoints=5)
    >>> curve.steps.tolist()
    [2, 4, 6, 8, 10]
    >>> curve.at_step(0)
    0.0
    >>> curve.at_step(3) == curve.at_step(4) < curve.at_step(5)
    True
    """

    __slots__ = ("_delta", "_group", "_known", "_ledger", "_steps")

    def __init__(self, ledger: Ledger, delta: float, *, checkpoints: int = 20, group: int = 1) -> None:
        wanted = check_integer("checkpoints", checkpoints, at_least=1)
        self._ledger, self._delta = ledger, check_real("delta", delta, above=0, below=1)
        self._group = check_integer("group", group, at_least=1)
        points = np.ceil(np.linspace(0, len(ledger), min(wanted, len(ledger)) + 1)).astype(np.int64)
        if ledger.is_allocated:
            each = np.maximum(ledger.steps_per_epoch[points[1:] - 1], 1)
            points = np.minimum(-(-points[1:] // each) * each, len(ledger))
        self._steps = np.unique(points[points > 0])
        self._known: dict[int, float] = {}

    @property
    def steps(self) -> Int[np.ndarray, " checkpoints"]:
        """The checkpoints, as numbers of releases."""
        return self._steps

    def at_step(self, step: int) -> float:
        """Epsilon spent by the first ``step`` releases, or by a few more: the upper end at the next
        checkpoint."""
        wanted = check_integer("step", step)
        if wanted == 0:
            return 0.0
        at = int(self._steps[np.searchsorted(self._steps, min(wanted, len(self._ledger)))])
        if at not in self._known:
            end = int(self._steps[-1])
            judge = Truncated(Pld(group=self._group) if at == end else Pld(QUICK, self._group))
            own = judge.epsilon(self._ledger.first(at), self._delta).value
            # Fewer releases never cost more: the sharper value of the end bounds the quick ones.
            self._known[at] = own if at == end else min(own, self.at_step(end))
        return self._known[at]

    def curve(self) -> Float[np.ndarray, " checkpoints"]:
        """Epsilon at every checkpoint."""
        return np.array([self.at_step(int(step)) for step in self._steps])
