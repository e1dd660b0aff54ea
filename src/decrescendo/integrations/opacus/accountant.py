"""`Accountant`: the releases of all trainings of one engine, by the names of Opacus' accountants."""

from collections.abc import Mapping
from typing import Any

from decrescendo.accounting import Ledger, Pld, Rdp, Release
from decrescendo.base.assumption import Assumption
from decrescendo.errors import InvalidValue, PlanViolation
from decrescendo.integrations.opacus.loop import READ, RESUMED, Loop

_ACCOUNTANTS = {"prv": Pld, "rdp": Rdp}


class Accountant:
    """What all trainings of an engine released, and their price.

    >>> Accountant("prv").get_epsilon(delta=1e-5)
    0.0
    """

    def __init__(self, mechanism: str) -> None:
        if mechanism not in _ACCOUNTANTS:
            raise InvalidValue(
                f"accountant must be 'prv' or 'rdp', got {mechanism!r}, whose epsilon is an estimate or unknown here. "
                "Take 'prv'"
            )
        self._mechanism = mechanism
        self.loaded = Ledger()
        self.loops: list[Loop] = []

    @property
    def ledger(self) -> Ledger:
        """All releases."""
        return sum((loop.ledger for loop in self.loops), self.loaded)

    def beside(self, training: Loop) -> tuple[Ledger, tuple[Assumption, ...]]:
        """The releases beside those of one training, and what is assumed of them."""
        others = [loop for loop in self.loops if loop is not training]
        found = {one for loop in others if loop.trainer is not None for one in loop.trainer.assumptions}
        found |= {READ} if any(loop.has_read for loop in others) else set()
        found |= {RESUMED} if self.loaded.steps else set()
        return sum((loop.ledger for loop in others), self.loaded), tuple(sorted(found))

    @property
    def history(self) -> list[tuple[float, float, int]]:
        """(noise multiplier, sample rate, steps) of all releases, as Opacus has it."""
        found: list[tuple[float, float, int]] = []
        ledger = self.ledger
        columns = (ledger.noise_multiplier, ledger.sample_rate, ledger.count)
        for noise, rate, count in zip(*(column.tolist() for column in columns), strict=True):
            if found and found[-1][:2] == (noise, rate):
                count += found.pop()[2]
            found.append((noise, rate, count))
        return found

    def get_epsilon(self, delta: float) -> float:
        """The certified upper end of what all releases cost."""
        return self.judge.epsilon(self.ledger, delta).value

    @property
    def judge(self) -> Pld | Rdp:
        """The accountant of this library."""
        return _ACCOUNTANTS[self._mechanism]()

    def mechanism(self) -> str:
        """Its name."""
        return self._mechanism

    def __len__(self) -> int:
        return self.ledger.steps

    def state_dict(self) -> dict[str, Any]:
        """As Opacus' accountants have it."""
        return {"history": self.history, "mechanism": self._mechanism}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Releases of an earlier training, also one of Opacus', in place of those loaded before."""
        if any(loop.trainer is not None for loop in self.loops):
            raise PlanViolation(
                "earlier releases must be loaded before the first batch is drawn, got them after it. Load first"
            )
        try:
            history = [(float(z), float(rate), int(count)) for z, rate, count in state_dict["history"]]
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidValue(
                "a history must be a list of (noise multiplier, sample rate, steps), got another thing. Give an "
                "accountant's state_dict()"
            ) from error
        self.loaded = Ledger([Release(rate, z, count=count) for z, rate, count in history])
