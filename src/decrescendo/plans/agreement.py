"""`Agreement`: the decisions before a run starts, in two forms; code that runs or checks a run treats both alike.

========  ==============  =====================================  =====================================
form      class           noise of each step                     price
========  ==============  =====================================  =====================================
fixed     `Plan`          in the plan                            what an accountant certifies of it
adaptive  `AdaptivePlan`  decided during the run, asked of a filter  the filter's whole budget, whatever is
                                                                 spent of it
========  ==============  =====================================  =====================================
"""

from collections.abc import Iterator, Sequence
from typing import Literal, Protocol, runtime_checkable

from decrescendo.accounting.budget import Budget, Guarantee
from decrescendo.accounting.filters import Filter
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.protocol import Accountant
from decrescendo.accounting.release import Release
from decrescendo.plans.adaptive_plan import AdaptivePlan
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import Sampling

Kind = Literal["plan", "adaptive_plan"]


@runtime_checkable
class Agreement(Protocol):
    """The decisions before a run: frozen, public, one small file; `Plan` and `AdaptivePlan` are its two forms."""

    @property
    def kind(self) -> Kind:
        """The name of the form, in files and stores."""
        ...

    @property
    def budget(self) -> Budget:
        """What the run may spend."""
        ...

    @property
    def sampling(self) -> Sampling:
        """How batches are drawn."""
        ...

    @property
    def steps(self) -> int:
        """The most steps the run may take."""
        ...

    @property
    def guarantee(self) -> Guarantee:
        """What the run may promise."""
        ...

    @property
    def planned(self) -> Ledger | None:
        """The releases of the whole run; ``None`` where they are decided during the run."""
        ...

    @property
    def decided(self) -> str:
        """When noise and clipping are decided, and by what, in words."""
        ...

    def price(self, judge: Accountant) -> Guarantee:
        """The cost of the whole run by an accountant, whatever its guarantee says."""
        ...

    def covered(self, ledger: Ledger) -> Ledger:
        """The releases that the guarantee of a run with this ``ledger`` covers."""
        ...

    def allows(self, position: int, release: Release) -> bool:
        """Whether ``release`` may be the run's at ``position``, from 0."""
        ...

    def begins(self, ledger: Ledger) -> bool:
        """Whether ``ledger`` may be what the run has released so far."""
        ...

    def check(self, ledger: Ledger, guarantee: Guarantee) -> None:
        """Raise `AccountingError` if ``ledger`` and ``guarantee`` cannot be of a run under this agreement."""
        ...

    def replay(self, ledger: Ledger) -> Filter | None:
        """A fresh filter that granted all of ``ledger``, to be asked for what follows; ``None`` where noise was fixed
        before, or by a filter that is not of this package. `AccountingError` where it refuses."""
        ...

    def clip_norms(self, decided: Sequence[float], steps: int) -> list[float]:
        """C_t of the first ``steps`` steps; ``decided`` has those that were decided during the run."""
        ...

    def spread(self, noise_multiplier: Sequence[float]) -> list[float]:
        """The standard deviation of the noise of the first steps on a sum of sensitivity 1, from their z_t."""
        ...

    def taken(self, steps: int) -> str:
        """Of how many steps ``steps`` were taken, as the end of a sentence."""
        ...

    def confirm(self, ledger: Ledger, guarantee: Guarantee | None = None) -> Iterator[str]:
        """Account for the run's ``ledger`` again and yield a report by lines; `AccountingError` if it contradicts the
        agreement's guarantee, or the run's own ``guarantee``."""
        ...

    def held_up(self, certified: Guarantee, guarantee: Guarantee | None = None) -> list[str]:
        """Compare this guarantee, and a run's own ``guarantee``, with the ``certified`` one of all planned releases and
        with the accountants that they name, a line each; `AccountingError` where they claim a smaller epsilon."""
        ...

    def gap(self, ledger: Ledger) -> str:
        """The cost of deciding noise during the run, in words; empty if nothing was decided so."""
        ...

    @property
    def sha256(self) -> str:
        """SHA-256 of the file."""
        ...

    def to_json(self) -> str:
        """The file."""
        ...


def read_agreement(kind: str, text: str, *, source: str) -> Agreement:
    """An agreement of the form ``kind`` from `Agreement.to_json`'s text.

    Raises:
        FileRefused: damaged, foreign, newer, or of the other form.
    """
    return (Plan if kind == "plan" else AdaptivePlan).from_json(text, source=source)
