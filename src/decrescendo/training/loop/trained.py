"""Which parameters are trained (``requires_grad``), and whether the user's loop froze or unfroze some between steps."""

from typing import final

from torch import nn

from decrescendo.base.assumption import Assumption
from decrescendo.training.loop.assumptions import TRAINED_SET, named


@final
class TrainedSet:
    """Compares which parameters have ``requires_grad`` with the step before.

    >>> model = nn.Linear(2, 1)
    >>> trained = TrainedSet(model)
    >>> trained.compare()
    >>> _ = model.bias.requires_grad_(False)
    >>> trained.compare().sentence
    'Assumed: only ... decided which parameters are trained; during the run bias was frozen by code outside of ...'
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        # In the order in which they were, each once.
        self._frozen, self._unfrozen = dict[str, None](), dict[str, None]()
        self.note()

    def note(self) -> None:
        """As it is now."""
        self._before = {name: value.requires_grad for name, value in self._model.named_parameters()}

    def compare(self) -> Assumption | None:
        """What is assumed of all changes found so far; `None` where there were none. New parameters are none."""
        for name, value in self._model.named_parameters():
            if self._before.get(name, value.requires_grad) is not value.requires_grad:
                (self._unfrozen if value.requires_grad else self._frozen)[name] = None
        found = {"frozen": self._frozen, "unfrozen": self._unfrozen}
        what = " and ".join(
            f"{named(names)} {'was' if len(names) == 1 else 'were'} {how}"
            for how, names in found.items()
            if names
        )
        return TRAINED_SET.format(what) if what else None
