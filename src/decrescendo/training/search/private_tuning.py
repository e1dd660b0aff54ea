"""Search for settings on the private data themselves: a random number of random trials, one winner, one price.

Source: Papernot and Steinke 2022, *Hyperparameter Tuning with Renyi Differential Privacy*; see `accounting.Selection`.

One file, though long: the mechanism and what may be shown of it are to be read together.

Longer than most files: the draw, the trials, the winner and their one price are one algorithm.
"""

import hashlib
import itertools
import math
import secrets
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors.torch import save as save_tensors
from torch import Tensor

from decrescendo.accounting import Budget, Guarantee, Trials
from decrescendo.base.assumption import Assumption, are_independent, assumption_facts, independence
from decrescendo.base.assumptions import assumed
from decrescendo.base.rng import Secure, Streams
from decrescendo.base.sealed import check_writable, write
from decrescendo.clipping.clipped import check_clip_norm
from decrescendo.errors import InvalidValue, check_instance, check_real
from decrescendo.plans import AdaptivePlan, Plan, PoissonSampling, Schedule, calibrate_selection
from decrescendo.plans.curves import evaluate
from decrescendo.plans.sampling_refusals import only_constant
from decrescendo.training.run import cpu_weights
from decrescendo.training.search.settings import Settings
from decrescendo.training.search.space import Space, Value
from decrescendo.training.search.trial_starts import TrialStarts
from decrescendo.training.search.tuning import machine, train_with
from decrescendo.training.statement import SECURE, SEEDED, UNRECORDED
from decrescendo.training.store import Store
from decrescendo.training.tasks.task import Task

FORMAT, VERSION = "decrescendo-private-search", 1

# What may differ from trial to trial: none of it changes the noise over the clip norm, or the sampling.
FREE = (
    "clip", "rho_c", "learning_rate", "stride", "momentum", "lr_decay", "averaging", "optimizer",
)  # fmt: skip

ATTEMPTED = assumed("own-attempt")
LAWS = {"geometric": 1.0, "logarithmic": 0.0, "poisson": math.inf}


@dataclass(frozen=True, slots=True)
class Tried:
    """What one trial gives: the weights that were tested, their score on declared public data, and what was
    assumed (`training.run.Run.assumptions`)."""

    score: float
    weights: Mapping[str, Tensor]
    assumptions: tuple[Assumption, ...] = (UNRECORDED,)


Attempt = Callable[[Settings, Plan], Tried]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateSearch:
    """A search on private data. Every value in it is a public fact.

    The settings of a trial are drawn at random, each time anew. An optimiser that looks at earlier scores (as Optuna's
    does) would be better at guessing, but what it asks next depends on the data through every trial before, and the
    theorem is about trials that know nothing of each other.

    Args:
        task: what is trained; it must have a score, and no people: a guarantee for people is not proven of a search.
        epsilon: of the whole search, winner and all.
        delta: of the whole search; default: the task's.
        space: what moves, of `FREE` only. Batch, steps, schedule and rho_mu are fixed: they decide the noise, and all
            trials must spend the same.
        trials: the law of their number.

    Raises:
        InvalidType: a fixed number of trials.
        InvalidValue: a setting moves that changes what a trial spends, or that no run could have; a task of people.
    """

    task: Task
    epsilon: float
    space: Space
    trials: Trials
    delta: float | None = None

    def __post_init__(self) -> None:
        check_instance("task", self.task, Task)
        if self.task.score is None:
            raise InvalidValue("task must have a score, got none. It is what trials are compared by")
        if self.task.people is not None:
            raise InvalidValue(
                "a private search must be of examples, got a task with people: what is proven of the best of many "
                "trials is for one example, and a person has several. Take a task without people, or search on public "
                "data (tune)"
            )
        check_real("epsilon", self.epsilon, above=0)
        check_instance("space", self.space, Space)
        check_instance("trials", self.trials, Trials, _WHY_RANDOM)
        schedule = self.space.fixed.get("schedule", "dynamic")
        for name in self.space.moving:
            if name not in FREE:
                raise InvalidValue(
                    f"with private data only {', '.join(FREE)} may move, got {name}: it changes what a trial spends, "
                    "and all trials must spend the same. Fix it"
                )
        if schedule == "optimal" and "rho_c" in self.space.moving:
            raise InvalidValue(
                "rho_c must be fixed with the schedule optimal, whose noise follows it, got a range"
            )
        # An error in the middle of a search would tell that it had come so far, and waste it.
        for values in itertools.chain(self.space.corners(), self.space.pairs()):
            settings = self.settings(values)
            settings.check(self.task)
            check_clip_norm("clip", settings.clip / max(settings.rho_c, 1.0))

    def settings(self, values: Mapping[str, Value]) -> Settings:
        """The run of a trial with these values, but for its seed and its noise, which is that of `calibrated`."""
        return self.space.settings(self.task, values)

    def calibrated(self) -> tuple[Plan, Guarantee]:
        """The plan whose noise every trial has, and the guarantee of the whole search; no data are touched."""
        settings = self.settings(next(self.space.corners()))
        sampling = PoissonSampling(self.task.count, settings.batch)
        privacy, clip = settings.curves(self.task.count)
        return calibrate_selection(
            Budget(self.epsilon, self.task.delta if self.delta is None else self.delta), sampling,
            steps=settings.steps, privacy=privacy, clip=clip, trials=self.trials,
        )  # fmt: skip

    def agreed(self, guarantee: Guarantee) -> AdaptivePlan:
        """The whole search as a store counts it: one release, at the price of ``guarantee``, that of `calibrated`."""
        settings = self.settings(next(self.space.corners()))
        return AdaptivePlan(
            Budget(guarantee.epsilon, guarantee.delta, guarantee.unit),
            PoissonSampling(self.task.count, settings.batch), guarantee.accountant, steps=1,
            policy=f"a private search, the best of {self.trials}; its one release is the winner",
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Winner:
    """All that is released of a search. How many trials there were, and what came of the others, is not in it.

    Args:
        asked: the search.
        plan: of one trial. Its own guarantee is not the one to show with the weights.
        guarantee: of the whole search: covers weights, settings and score together.
        settings: of the winner, seed 0 in place of its own, which is secret; ``None`` if there was no trial
            (a Poisson number can be 0).
        score: on declared public data. The best of several, so a little too good.
        weights: of the winner.
        machine: where it ran, and with what versions.
        assumptions: what must be true for the guarantee to hold, in every trial alike; see
            `training.run.Run.assumptions`.
        random: ``secure`` or ``seeded``: where the noise of the trials came from.
        account: data set and id of the search in a `Store`; empty: in none.
    """

    asked: PrivateSearch
    plan: Plan
    guarantee: Guarantee
    settings: Settings | None = None
    score: float | None = None
    weights: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    machine: Mapping[str, str] = field(default_factory=dict[str, str])
    assumptions: tuple[Assumption, ...] = (UNRECORDED,)
    random: str = SEEDED
    account: str = ""

    @property
    def rows_independent(self) -> bool:
        """Whether every pass of every trial was shown to keep rows independent."""
        return are_independent(self.assumptions)

    def describe(self) -> str:
        """A few lines for people."""
        lines = describe_promise(self.asked, self.plan, self.guarantee)
        lines += f"\nrows independent   {independence(self.assumptions)}"
        lines += "".join(f"\n{assumption}" for assumption in self.assumptions)
        if self.settings is None or self.score is None:
            return lines + "\nwinner     none: the number of trials happened to be 0, as a Poisson number may"
        return "\n".join(
            (
                lines,
                f"winner     {self.settings.describe()}",
                f"score      {self.score:.4g} on declared public data, which also chose it: a little too good",
            )
        )


def describe_promise(asked: PrivateSearch, plan: Plan, guarantee: Guarantee) -> str:
    """What is promised, before any data are touched."""
    noise = plan.noise_multiplier
    return "\n".join(
        (
            f"guarantee  {guarantee}: the whole search, its winner's weights, settings and score",
            f"trials     {asked.trials}, each with z {noise[0]:.4g} -> {noise[-1]:.4g} over {plan.steps} steps",
            "secret     the seed, the number of trials, and so how long the search takes",
        )
    )


def search_privately(
    asked: PrivateSearch,
    seed: int | Secure,
    *,
    attempt: Attempt | None = None,
    announce: Callable[[str], None] | None = None,
    store: Store | None = None,
) -> Winner:
    """Draw the number of trials, run each with settings and noise of its own, keep the best, forget the rest.

    Nothing is written, printed, warned of or counted on the way: the number of trials must stay secret, and so must
    whatever tells it. One trial runs after the other, in this process.

    Args:
        asked: what to search.
        seed: `Secure()` for weights that leave the house: nobody knows the number of trials, and each has noise and
            batches keyed by the operating system. Or a whole number >= 0, secret and unguessable: it tells the number
            of trials and all their noise. The number is drawn from the stream "selection" before anything else. Trial
            i gets the streams of its ``i``-th child (`Streams.child`): settings, initial weights, batches and noise are
            new and independent in every trial.
        attempt: one trial; `train_and_score` by default.
        announce: told what is promised, before the private data are opened and the number is drawn.
        store: the ledger of the data set, in which the whole search is written down as spent before the data are
            opened, so that an error on the way gives nothing back. Of composition ``sum``.

    Guarantee:
        that of `accounting.Selection` at the ledger of the plan, which is the ledger of every trial to the bit.
        It supposes that the seed and the time that the search took stay secret, that the task's test rows are public,
        and that nothing else of the process (its memory, its temperature, an interruption's moment) is watched.
        It does not cover an error in a trial that comes from the data (a batch too large for the memory): that there
        was one is seen, and it is the likelier the more trials there are. What settings alone can break is refused
        before the data are opened.

    Edge cases:
        equal scores: the smaller SHA-256 of the weights loses, so that any two outputs have an order of their own
            and the theorem's order is total.
        a model that diverged: its score counts, as bad as it is; one that is no number is below all numbers, or whether
            it loses would hang on when it was tried.
        trials that reach each other by their initial weights (a model that goes on from the best so far): an error.
            What else a task keeps of a trial (a loss that its score changes) is not looked at.
        an error in a trial: ends the search, and there is no winner. Not covered: see above.
        trials with different assumptions: an error, after the last one, likewise.
        no trial at all (Poisson): no winner, said so.
    """
    check_instance("asked", asked, PrivateSearch)
    secure = isinstance(seed, Secure)
    if store is not None:
        check_instance("store", store, Store)
    if store is not None and not secure:
        raise InvalidValue(
            "seed must be Secure() with a store, got a number: two searches with one seed draw the same noise, and "
            "what a store adds up is drawn independently"
        )
    secret = Streams(secrets.randbits(128) if isinstance(seed, Secure) else seed)
    plan, guarantee = asked.calibrated()
    starts = None if attempt is not None else TrialStarts(asked.task)
    if announce is not None:
        announce(describe_promise(asked, plan, guarantee))
    # A number that were drawn, or changed, after a trial was seen would not be covered.
    number = asked.trials.draw(secret.numpy("selection"))
    drawn = [
        asked.settings(asked.space.draw(secret.child(index).numpy("selection"))) for index in range(number)
    ]
    trials = [settings.seeded(secret.child(index).seed) for index, settings in enumerate(drawn)]
    if starts is not None:
        starts.note(settings.seed for settings in trials)
    account = None if store is None else store.start(asked.agreed(guarantee), label="private search")
    if account is not None:  # before the first trial: of what was begun nothing can be given back
        noise, digest = float(plan.noise_multiplier.min()), hashlib.sha256(plan.sha256.encode()).digest()
        account.record(0, plan.sampling.at(0).release(noise), digest)
    data = asked.task.load() if attempt is None else None  # once: who counts how often would know the number
    best: tuple[tuple[float, str], Settings, Tried] | None = None
    met: set[tuple[Assumption, ...]] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one a trial would tell their number
        for settings in trials:
            if starts is not None:
                starts.check(settings.seed)
            own_plan = _with_clip_of(plan, settings, asked.task.count)
            tried = (
                train_and_score(
                    asked.task, settings, own_plan, data, seed if isinstance(seed, Secure) else None
                )
                if attempt is None
                else attempt(settings, own_plan)
            )
            check_instance("what a trial gives", tried, Tried)
            met.add(tried.assumptions)
            rank = (
                -math.inf if math.isnan(tried.score) else tried.score,
                hashlib.sha256(_content(tried.weights)).hexdigest(),
            )
            if best is None or rank > best[0]:
                best = (rank, settings.seeded(0), tried)
    if len(met) > 1:
        raise InvalidValue(
            "every trial must have the same assumptions, got trials that do not: nothing would tell those of the "
            "trials behind the winner. Train without a search and look at the run's assumptions"
        )
    if account is not None:
        account.finish()
    whole = Winner(
        asked, plan, guarantee, machine=machine(), assumptions=() if attempt is None else (ATTEMPTED,),
        random=SECURE if secure and attempt is None else SEEDED,
        account="" if account is None else f"{account.store.dataset}, run {account.id}",
    )  # fmt: skip
    if best is None:
        return whole
    _, settings, tried = best
    return replace(
        whole,
        settings=settings,
        score=tried.score,
        weights=tried.weights,
        assumptions=tuple(sorted({*tried.assumptions, *whole.assumptions})),
    )


def train_and_score(
    task: Task, settings: Settings, plan: Plan, data: object, seed: Secure | None = None
) -> Tried:
    """One trial: trained on the private rows ``data`` by ``plan``, scored on the public ones; with the streams of the
    settings' seed, or initial weights alone from it, and the rest from ``seed``."""
    run, tested = train_with(task, settings, plan, data, seed)
    if run.ledger != plan.ledger:
        raise InvalidValue("every trial must spend what was planned, got another ledger")
    weights = cpu_weights(tested)  # before the score, which might write to them what it knows of others
    return Tried(task.first_score(tested), weights, run.assumptions)


def save_winner(path: Path, winner: Winner) -> Path | None:
    """Write what is released: ``path`` and, beside it, the weights; the path of those. A score that is no finite number
    is written as null.

    The file is not a run's: a run states the guarantee of one training, and these weights come with the guarantee of
    the whole search.
    """
    weights = weights_path(path)
    content = _content(winner.weights)
    asked, plan, found = winner.asked, winner.plan, winner.guarantee
    facts: dict[str, Any] = {
        "guarantee": {
            "of": "the whole search: weights, settings and score of the winner",
            "epsilon": found.epsilon, "delta": found.delta, "unit": str(found.unit),
            "accountant": found.accountant, "kind": found.kind,
        },
        "trials": {"mean": asked.trials.mean, "law": str(asked.trials)},
        "one_trial": {
            "dataset_size": plan.sampling.dataset_size,
            "expected_batch_size": only_constant(plan.sampling, "a private search").expected_batch_size,
            "noise_multiplier": plan.noise_multiplier.tolist(),
        },
        "space": asked.space.describe(),
        "settings": None if winner.settings is None else winner.settings.written(),
        # (JSON has no other numbers.)
        "score": winner.score if winner.score is not None and math.isfinite(winner.score) else None,
        "weights_sha256": hashlib.sha256(content).hexdigest() if winner.weights else None,
        "machine": dict(winner.machine),
        "provenance": {
            "random": winner.random, "account": winner.account,
            **assumption_facts(winner.assumptions),
        },
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, FORMAT, VERSION, facts)  # first: no weights lie there without what they cost
    if winner.weights:
        weights.write_bytes(content)
    return weights if winner.weights else None


def _content(weights: Mapping[str, Tensor]) -> bytes:
    # The file format refuses other memory layouts, and models of images come in one.
    return save_tensors({name: value.contiguous() for name, value in weights.items()})


def weights_path(path: Path) -> Path:
    """Where the weights are, beside the file ``path``."""
    return path.with_suffix(".safetensors")


def check_fresh(path: Path) -> None:
    """There are two names for the result and its weights, neither file is there yet, and the folder can be written to.

    Raises:
        InvalidValue: one is there, or the names are one.
        OSError: the folder cannot be made or written to.
    """
    check_writable(path.parent)
    if path == weights_path(path):
        raise InvalidValue(
            f"the result of a private search must not end in .safetensors, got {str(path)!r}. That is the name of the "
            "weights beside it: use .json"
        )
    for there in (path, weights_path(path)):
        if there.exists():
            raise InvalidValue(
                f"the result of a private search must be a new file, got {str(there)!r}, which exists. A second search "
                "on the same data spends its epsilon on top of the first one's: choose another name to do so"
            )


def parse_trials(text: str) -> Trials:
    """``geometric:10``, ``logarithmic:10``, ``poisson:10``, or a negative binomial by its shape, ``0.5:10``.

    Raises:
        InvalidValue: a fixed number, an unknown law, a mean out of range.

    >>> print(parse_trials("geometric:10"))
    10 expected trials (geometric)
    """
    law, colon, mean = text.partition(":")
    if not colon:
        raise InvalidValue(
            f"trials on private data must be random, like geometric:10, got {text!r}. {_WHY_RANDOM}"
        )
    try:
        return Trials(mean=float(mean), shape=LAWS[law] if law in LAWS else float(law))
    except ValueError as error:
        if isinstance(error, InvalidValue):
            raise
        raise InvalidValue(
            f"trials must be a law and a mean, like {', '.join(f'{name}:10' for name in LAWS)} or 0.5:10 (a negative "
            f"binomial's shape), got {text!r}"
        ) from None


_WHY_RANDOM = (
    "When the number is known, the best of them tells how it fared against so many others: each trial adds to the "
    "price. A secret random number hides the others, at about the price of a few"
)


def _with_clip_of(plan: Plan, settings: Settings, rows: int) -> Plan:
    """The clip norms of ``settings`` with the noise multipliers of ``plan``: what is spent stays the same."""
    clips = evaluate("clip", settings.curves(rows)[1], plan.steps)
    return Plan(plan.budget, plan.sampling, Schedule(plan.noise_multiplier, clips), plan.guarantee)
