from copy import deepcopy
from typing import Any

from decrescendo.accounting import Ledger, Rdp, Release


class IAccountant:
    def __init__(self) -> None:
        self.history: list[tuple[float, float, int]] = []

    def load_state_dict(self, state_dict: Any) -> None:
        self.history = state_dict["history"]

    def state_dict(self) -> Any:
        return {"history": deepcopy(self.history), "mechanism": self.mechanism()}

    def mechanism(self) -> str:
        return "rdp"


class RDPAccountant(IAccountant):
    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        last = self.history[-1] if self.history else (None, None, 0)
        if last[:2] == (noise_multiplier, sample_rate):
            self.history.pop()
            self.history.append((noise_multiplier, sample_rate, last[2] + 1))
        else:
            self.history.append((noise_multiplier, sample_rate, 1))

    def get_epsilon(self, delta: float) -> float:
        return Rdp().epsilon(Ledger(Release(q, z, count=n) for z, q, n in self.history), delta).value
