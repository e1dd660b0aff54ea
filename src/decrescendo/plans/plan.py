"""`Plan`: all decisions before a run starts, frozen, with their guarantee, as one small file."""

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from jaxtyping import Float

from decrescendo.accounting.budget import Budget, Guarantee
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.protocol import Accountant
from decrescendo.accounting.release import Release
from decrescendo.accounting.truncated import Truncated
from decrescendo.accounting.verify import Verification, verify_epsilon
from decrescendo.errors import InvalidValue
from decrescendo.plans.confirming import confirmed, held_up
from decrescendo.plans.curves import evaluate
from decrescendo.plans.passes import steps_of
from decrescendo.plans.plan_checks import check_parts, check_run
from decrescendo.plans.plan_file import bare_parts, plan_of, text_in, text_of, write_plan
from decrescendo.plans.plan_words import described, line_of
from decrescendo.plans.progress import CurveOrValues
from decrescendo.plans.sampling import PoissonSampling, Sampling, planned
from decrescendo.plans.sampling_refusals import check_sampling
from decrescendo.plans.schedule import Schedule
from decrescendo.plans.strategy import Strategy


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """Budget, sampling, schedule and guarantee of one run. Every value in it is a public fact.

    Made by `calibrate`; taken by `train`, which runs exactly this schedule. The fixed form of an `Agreement`.

    ``correlation``: the strategy, where the noises of different steps are correlated (`calibrate` with ``bands``).

    Raises:
        InvalidValue: the guarantee exceeds the budget, or speaks of another delta or unit; noise and clip norms that do
            not go together with a budget without limit.

    >>> from decrescendo.accounting.budget import Unit
    >>> plan = Plan(
    ...     Budget(1.0, 1e-5),
    ...     PoissonSampling(1_000, 10),
    ...     Schedule([2.0, 1.0], [1.0, 0.5]),
    ...     Guarantee(0.99, 1e-5, Unit.EXAMPLE, "Pld", "upper"),
    ... )
    >>> print(plan)
    (0.99, 1e-05)-DP per example, Pld upper bound · z 2 -> 1 · C 1 -> 0.5 · 2 steps
    """

    budget: Budget
    sampling: Sampling
    schedule: Schedule
    guarantee: Guarantee
    correlation: Strategy | None = None

    def __post_init__(self) -> None:
        check_parts(self)

    @classmethod
    def without_privacy(
        cls,
        sampling: Sampling,
        *,
        steps: int | None = None,
        epochs: float | None = None,
        clip: CurveOrValues = math.inf,
    ) -> "Plan":
        """Plain SGD, to compare with: no noise, no budget, **no privacy**; everything made of it says so in words.

        Args:
            sampling: how batches are drawn; sample_rate 1 for full batches.
            steps: number of steps T >= 1.
            epochs: in place of ``steps``: expected passes over the data.
            clip: C_t of every step, a number, a curve or an array; infinite: gradients are not clipped.

        Guarantee: none. Its guarantee has epsilon infinity.

        >>> print(Plan.without_privacy(PoissonSampling(1_000, 10), steps=3))
        NO PRIVACY for an example: epsilon is infinite at delta 1e-06, says Pld · z 0 · C inf · 3 steps
        """
        check_sampling(sampling)
        count = steps_of(sampling, steps, epochs)
        flat = isinstance(clip, int | float)
        return cls(*bare_parts(sampling, np.full(count, float(clip)) if flat else evaluate("clip", clip, count)))

    @property
    def private(self) -> bool:
        """Whether the plan promises privacy: false for `without_privacy` only."""
        return math.isfinite(self.budget.epsilon)

    @property
    def steps(self) -> int:
        """Number of steps T."""
        return self.schedule.steps

    @property
    def noise_multiplier(self) -> Float[np.ndarray, " steps"]:
        """z_t, one a step."""
        return self.schedule.noise_multiplier

    @property
    def bands(self) -> int:
        """How many bands the strategy of the noise has; 1: the noises of all steps are independent."""
        return 1 if self.correlation is None else self.correlation.bands

    @property
    def strategy(self) -> Float[np.ndarray, "bands steps"]:
        """S of the noise S^-1 xi: row k, column t has S[t + k, t], 0 past the last step; column norms are 1/z_t."""
        if self.correlation is not None:
            return self.correlation.matrix
        with np.errstate(divide="ignore"):
            return 1 / self.noise_multiplier[None]

    def noise_coefficients(self, step: int) -> Float[np.ndarray, " bands_less_1"]:
        """w_k, k = 1 .. b - 1, of step t from 0: on a sum of sensitivity 1 n_t = `noise_scale` xi_t - sum_k w_k
        n_{t-k}, xi_t standard normal. Multiples of 2^-12; none with one band."""
        return np.zeros(0) if self.correlation is None else self.correlation.weights(step)

    def noise_scale(self, step: int) -> float:
        """1/S[t, t] of step t, from 0: z_t with one band. See `noise_coefficients`."""
        return float(self.noise_multiplier[step]) if self.correlation is None else self.correlation.scale(step)

    @property
    def noise_std(self) -> Float[np.ndarray, " steps"]:
        """Standard deviation of the noise on the clipped sum, one a step: z_t C_t with one band."""
        return self.schedule.noise_std if self.correlation is None else self.clip_norm * self.correlation.noise_std()

    @property
    def clip_norm(self) -> Float[np.ndarray, " steps"]:
        """C_t, one a step."""
        return self.schedule.clip_norm

    @property
    def batch_size(self) -> Float[np.ndarray, " steps"]:
        """B_t, the expected batch size, one a step: what each noisy sum is divided by."""
        return self.sampling.sizes(self.steps)

    @property
    def ledger(self) -> Ledger:
        """What the whole run will release."""
        return planned(self.sampling, self.noise_multiplier)

    @property
    def kind(self) -> Literal["plan"]:
        """The fixed form of an `Agreement`."""
        return "plan"

    @property
    def planned(self) -> Ledger:
        """What the whole run will release, as `ledger`."""
        return self.ledger

    @property
    def decided(self) -> str:
        """When noise and clipping were decided."""
        return "before the start"

    def price(self, judge: Accountant) -> Guarantee:
        """What ``judge`` certifies of the whole run, whatever `guarantee` says."""
        return Truncated(judge).certify(self.ledger, self.budget)

    def covered(self, ledger: Ledger) -> Ledger:
        """``ledger``, or the whole plan's if the run ended early: when to end may have depended on the releases."""
        return ledger if ledger.steps == self.steps else self.ledger

    def allows(self, position: int, release: Release) -> bool:
        """Whether ``release`` is the plan's at ``position``, from 0."""
        if position >= self.steps:
            return False
        return release == self.sampling.at(position).release(float(self.noise_multiplier[position]))

    def begins(self, ledger: Ledger) -> bool:
        """Whether ``ledger`` is the beginning of the plan's."""
        return len(ledger) <= self.steps and ledger == self.ledger.first(len(ledger))

    def check(self, ledger: Ledger, guarantee: Guarantee) -> None:
        """Refuse a ledger that is not the beginning of the plan's, and a guarantee of another delta or unit, or below
        what is known of the true epsilon; `confirm` judges it again."""
        check_run(self, ledger, guarantee)

    def replay(self, ledger: Ledger) -> None:
        """No filter: the noise was fixed before."""
        del ledger

    def clip_norms(self, decided: Sequence[float], steps: int) -> list[float]:
        """C_t of the first ``steps`` steps, from the schedule; where they followed the gradients, ``decided``."""
        if decided and len(decided) != steps:
            raise InvalidValue(f"clip_norm must have one number a step taken, got {len(decided)} for {steps} steps")
        return list(decided) if decided else self.clip_norm[:steps].tolist()

    def spread(self, noise_multiplier: Sequence[float]) -> list[float]:
        """The standard deviations of the noise for sensitivity 1: z_t; the strategy's if noise is correlated."""
        own = noise_multiplier if self.correlation is None else self.correlation.noise_std().tolist()
        return list(own)[: len(noise_multiplier)]

    def taken(self, steps: int) -> str:
        """The end of a sentence about ``steps`` steps: of how many; empty if all were taken."""
        return "" if steps == self.steps else f" of {self.steps} planned, which the guarantee covers"

    def confirm(self, ledger: Ledger, guarantee: Guarantee | None = None) -> Iterator[str]:
        """Account for the whole plan again, here and by an independent library, whatever part of it ``ledger`` has; the
        run's own guarantee is compared with the results, too. Yields a report by lines."""
        del ledger
        yield from confirmed(self, guarantee)

    def held_up(self, certified: Guarantee, guarantee: Guarantee | None = None) -> list[str]:
        """Compare the plan's guarantee, and a run's own, with ``certified``, the exact accountant's `price`, and with
        the accountants that they name.

        Raises:
            AccountingError: an epsilon is below what is certified and is not called an estimate, or below its own
                accountant's; a lower end is above what is certified; a guarantee is called what it is not.
        """
        return held_up(self, certified, guarantee)

    def gap(self, ledger: Ledger) -> str:
        """Nothing was decided during the run."""
        del ledger
        return ""

    @property
    def sha256(self) -> str:
        """SHA-256 of the plan's file, as ``sha256sum`` prints it: two plans with the same are the same."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def __str__(self) -> str:
        return line_of(self)

    def describe(self) -> str:
        """The plan in a few lines of words, for people.

        >>> print(Plan.from_json(_EXAMPLE).describe())  # doctest: +ELLIPSIS
        Promise    (1, 1e-05)-DP for adding or removing one example
        Certified  (0.99, 1e-05)-DP per example, Pld upper bound
        Sampling   each of 1000 examples with probability 0.01 a step (10 expected a batch)
        Steps      2
        Noise      z_t 2 -> 1 (multiplier); z_t C_t 2 -> 0.5 on the sum; 0.2 -> 0.05 on the mean
        Clipping   C_t 1 -> 0.5
        """
        return described(self)

    def to_json(self) -> str:
        """The plan as text; `from_json` gives an equal plan, bit for bit."""
        return text_of(self)

    @classmethod
    def from_json(cls, text: str, *, source: str = "the text") -> "Plan":
        """A plan from `to_json`'s text; ``source`` names it in errors."""
        return plan_of(cls, text, source)

    def verify(self, *, values: int = 16) -> Verification:
        """Judge this plan's releases again with an independent library (dp-accounting), between two roundings; of
        records that take part once an epoch, which it does not judge, a closed form gives the lower end alone.

        Args:
            values: noise multipliers are rounded down, and up, onto this many values, because that library needs
                about half a second for each; more of them, closer ends.

        Returns:
            The two ends, and whether the guarantee is consistent with them.
        """
        return verify_epsilon(self.ledger, self.guarantee, values=values)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON, all or nothing: a crash leaves the old file or none, never half of one."""
        write_plan(path, text_of(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Plan":
        """Read a plan that `save` wrote.

        Raises:
            FileRefused: damaged, foreign, newer, or with a key or value that does not belong.
        """
        return plan_of(cls, text_in(path), str(path))


_EXAMPLE = Plan(
    Budget(1.0, 1e-5),
    PoissonSampling(1_000, 10),
    Schedule([2.0, 1.0], [1.0, 0.5]),
    Guarantee(0.99, 1e-5, Budget(1, 0.5).unit, "Pld", "upper"),
).to_json()
