"""`Provenance`: how a training was run, as far as the library can see."""

from dataclasses import dataclass

from decrescendo.base.assumption import Assumption, are_independent
from decrescendo.base.assumptions import assumed
from decrescendo.errors import InvalidValue, check_instance, check_integer, check_real

SEEDED, SECURE = "seeded", "secure"
FLOAT32, FLOAT64 = "float32", "float64"
UNRECORDED = assumed("rows-unrecorded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """How a training was run. You may publish everything in it.

    Args:
        random: ``secure`` (keyed by the operating system, kept by nobody) or ``seeded`` (whoever knows the seed knows
            the noise).
        resumed: the steps after which it resumed from a checkpoint, as far as its checkpoints tell.
        model: class and number of trained parameters.
        optimizer: class and settings at the start.
        device: of the model.
        accumulate: dtype of the clipped sums: ``float64`` if one example provably changes the whole sum by at most C
            (`clipping.EngineSettings`), else ``float32``.
        gamma: of automatic clipping (`clipping.EngineSettings`); 0: gradients were clipped.
        passes: of older runs, whether passes were captured and replayed. Empty now: whether a pass came again tells
            of the records' lengths.
        telemetry: text about what was released of each batch beside its gradients; empty: nothing.
        trust: who sees raw data or updates; empty: whoever runs the training.
        account: data set and id of the run in a `Store`; empty: in none.
        assumptions: what must be true for the guarantee to hold, and was not checked, or not fully. Empty: nothing
            beyond what every run assumes.

    Raises:
        InvalidValue: ``random`` or ``accumulate`` of another name, a step or a gamma below 0.
        InvalidType: an entry of ``assumptions`` that is no `Assumption`.

    >>> Provenance(random="secure").resumed, Provenance(random="secure", assumptions=()).rows_independent
    ((), True)
    """

    random: str
    resumed: tuple[int, ...] = ()
    model: str = ""
    optimizer: str = ""
    device: str = ""
    accumulate: str = FLOAT32
    gamma: float = 0.0
    passes: str = ""
    telemetry: str = ""
    trust: str = ""
    account: str = ""
    assumptions: tuple[Assumption, ...] = (UNRECORDED,)

    @property
    def rows_independent(self) -> bool:
        """Whether every pass was checked to keep rows independent, with no assumption about it."""
        return are_independent(self.assumptions)

    def __post_init__(self) -> None:
        if self.accumulate not in (FLOAT32, FLOAT64):
            raise InvalidValue(f"accumulate must be {FLOAT32} or {FLOAT64}, got accumulate={self.accumulate!r}")
        if self.random not in (SEEDED, SECURE):
            raise InvalidValue(f"random must be {SEEDED} or {SECURE}, got random={self.random!r}")
        object.__setattr__(self, "gamma", check_real("gamma", self.gamma, at_least=0))
        for name in ("model", "optimizer", "device", "passes", "telemetry", "trust", "account"):
            check_instance(name, getattr(self, name), str)
        object.__setattr__(self, "resumed", tuple(check_integer("resumed", step) for step in self.resumed))
        check_instance("assumptions", self.assumptions, tuple)
        for assumption in self.assumptions:
            check_instance("an assumption", assumption, Assumption)
