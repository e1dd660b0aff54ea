"""Searches for settings on private data: a random number of random trials, one released winner, one privacy
cost.

Source: Papernot and Steinke 2022, *Hyperparameter Tuning with Renyi Differential Privacy*; see `accounting.Selection`.
"""

import hashlib
import math
import secrets
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from decrescendo.accounting import Guarantee
from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import assumed
from decrescendo.base.rng import Secure, Streams
from decrescendo.clipping import Telemetry
from decrescendo.errors import InvalidType, InvalidValue, check_instance
from decrescendo.plans import Plan, Schedule
from decrescendo.plans.curves import evaluate
from decrescendo.training.processes.bits import fingerprint
from decrescendo.training.run import Run, cpu_weights
from decrescendo.training.search.private_search import PrivateSearch
from decrescendo.training.search.settings import Settings
from decrescendo.training.search.tuning import machine, train_with
from decrescendo.training.search.winner import Winner, describe_promise, weights_content
from decrescendo.training.statement import SECURE, SEEDED, UNRECORDED
from decrescendo.training.steering.reading import smoothed
from decrescendo.training.store import Account, Store
from decrescendo.training.tasks.task import Task, first_of

ATTEMPTED = assumed("own-attempt")


@dataclass(frozen=True, slots=True)
class Tried:
    """The result of a trial: its weights, their score on declared public data or of what the trial released, and its
    assumptions (`training.run.Run.assumptions`)."""

    score: float
    weights: Mapping[str, Tensor]
    assumptions: tuple[Assumption, ...] = (UNRECORDED,)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "score", float(self.score))
        except (TypeError, ValueError):
            raise InvalidType(f"the score of a trial must be a number, got {self.score!r}") from None


Attempt = Callable[[Settings, Plan], Tried]


def search_privately(
    asked: PrivateSearch,
    seed: int | Secure,
    *,
    attempt: Attempt | None = None,
    announce: Callable[[str], None] | None = None,
    store: Store | None = None,
) -> Winner:
    """Draw the number of trials, run each with its own settings and noise, keep the best and discard the
    rest.

    Nothing is written, printed, warned of or counted before the end: the number of trials must stay secret, and so
    must everything that reveals it. One trial runs after the other, in this process.

    Args:
        asked: what to search.
        seed: `Secure()` for weights that are published: nobody knows the number of trials, and each has noise and
            batches keyed by the operating system. Or a whole number >= 0, secret and unguessable: it reveals the
            number of trials and all their noise. The number is drawn from the stream "selection" before anything
            else. Trial i gets the streams of its ``i``-th child (`Streams.child`): settings, initial weights, batches
            and noise are new and independent in every trial.
        attempt: runs one trial; `train_and_score` by default.
        announce: called with the guarantee as text, before the private data are opened and the number is drawn.
        store: the ledger of the data set, in which the whole search is recorded as spent before the data are
            opened, so that an error gives nothing back. Its composition must be ``sum``.

    Guarantee:
        that of `accounting.Selection` at the ledger of the plan, which is the ledger of every trial to the bit.
        It assumes that the seed and the time that the search took stay secret, that the task's test rows (where trials
        are ranked by its score) are public,
        and that nothing else of the process (its memory, its temperature, the time of an interruption) is observed.
        It does not cover an error in a trial that depends on the data (a batch too large for the memory): the error
        is seen, and more trials make it likelier. Settings that fail on any data are refused before the data are
        opened.

    Edge cases:
        equal scores: the smaller SHA-256 of the weights loses, so that the order of outputs is total, as in the
            theorem.
        a model that diverged: its score counts, as bad as it is; NaN is below all numbers: otherwise the winner would
            depend on the order of trials.
        trials whose initial weights depend on earlier trials (a model that goes on from the best so far): an error.
            Other state that a task keeps between trials (a loss that its score changes) is not checked.
        an error in a trial: ends the search, and there is no winner. Not covered: see above.
        trials with different assumptions: an error after the last trial, not covered either.
        no trial at all (Poisson): a `Winner` without settings, which says so.
    """
    check_instance("asked", asked, PrivateSearch)
    if attempt is not None and asked.telemetry is not None:
        raise InvalidValue("attempt must be omitted with telemetry, got both: an attempt has a score of its own")
    secure = isinstance(seed, Secure)
    _check_store(store, seed)
    secret = Streams(secrets.randbits(128) if isinstance(seed, Secure) else seed)
    plan, guarantee = asked.calibrated()
    if attempt is None and asked.telemetry is None:  # a score that fails must fail before the budget is spent
        first_of(asked.task.scores(asked.task.fresh(0), None if asked.task.loads else asked.task.data))
    if announce is not None:
        announce(describe_promise(asked, plan, guarantee))
    # All drawn here: a number drawn, or changed, after a trial was seen would not be covered.
    trials = _drawn_trials(asked, secret)
    starts = [_start(asked.task, settings) for settings in trials] if attempt is None else []
    # Recorded before the first trial: a search that has begun gives nothing back.
    account = None if store is None else _spent_in(store, asked, plan, guarantee)
    data = asked.task.load() if attempt is None else None  # once: the number of loads would reveal it
    best: tuple[tuple[float, str], Settings, Tried] | None = None
    met: set[tuple[Assumption, ...]] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning in each trial would reveal their number
        for number, settings in enumerate(trials):
            if attempt is None:
                _check_start(asked.task, settings, starts[number])
            own_plan = _with_clip_of(plan, settings, asked.task.count)
            if attempt is None:
                own_seed = seed if isinstance(seed, Secure) else None
                tried = train_and_score(asked.task, settings, own_plan, data, own_seed, asked.telemetry)
            else:
                tried = attempt(settings, own_plan)
            check_instance("what a trial gives", tried, Tried)
            met.add(tried.assumptions)
            rank = _rank(tried)
            if best is None or rank > best[0]:
                best = (rank, settings.seeded(0), tried)
    _check_alike(met)
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
    assumptions = tuple(sorted({*tried.assumptions, *whole.assumptions}))
    return replace(whole, settings=settings, score=tried.score, weights=tried.weights, assumptions=assumptions)


def _check_store(store: Store | None, seed: int | Secure) -> None:
    if store is not None:
        check_instance("store", store, Store)
        if not isinstance(seed, Secure):
            raise InvalidValue(
                "seed must be Secure() with a store, got a number: two searches with one seed draw the same noise, "
                "and what a store adds up is drawn independently"
            )


def _drawn_trials(asked: PrivateSearch, secret: Streams) -> list[Settings]:
    """The settings of every trial, each with its own seed; the number of trials is drawn first."""
    number = asked.trials.draw(secret.numpy("selection"))
    drawn = [asked.settings(asked.space.draw(secret.child(index).numpy("selection"))) for index in range(number)]
    return [settings.seeded(secret.child(index).seed) for index, settings in enumerate(drawn)]


def _start(task: Task, settings: Settings) -> bytes:
    """The fingerprint of a trial's initial weights. The accounting assumes independent trials: a model that
    continued from the best trial so far would make them one long training."""
    model = task.fresh(settings.seed)
    return fingerprint(*model.parameters(), *model.buffers())


def _check_start(task: Task, settings: Settings, before: bytes) -> None:
    if _start(task, settings) != before:
        raise InvalidValue(
            "a trial's initial weights must follow from its seed, got others than before the first trial. Each trial "
            "must be a training of its own: build the model from its seed alone, and load nothing that an earlier "
            "trial left"
        )


def _spent_in(store: Store, asked: PrivateSearch, plan: Plan, guarantee: Guarantee) -> Account:
    """Record the search in ``store`` as one release that has happened."""
    account = store.start(asked.agreed(guarantee), label="private search")
    noise, digest = float(plan.noise_multiplier.min()), hashlib.sha256(plan.sha256.encode()).digest()
    account.record(0, plan.sampling.at(0).release(noise), digest)
    return account


def _check_alike(met: set[tuple[Assumption, ...]]) -> None:
    if len(met) > 1:
        raise InvalidValue(
            "every trial must have the same assumptions, got trials that do not: nothing would tell those of the "
            "trials behind the winner. Train without a search and look at the run's assumptions"
        )


def _rank(tried: Tried) -> tuple[float, str]:
    """The sort key of trials: the score, then the digest of the weights."""
    return (
        -math.inf if math.isnan(tried.score) else tried.score,
        hashlib.sha256(weights_content(tried.weights)).hexdigest(),
    )


def train_and_score(
    task: Task,
    settings: Settings,
    plan: Plan,
    data: object,
    seed: Secure | None = None,
    telemetry: Telemetry | None = None,
) -> Tried:
    """One trial: train by ``plan`` on the private rows ``data``, score on public data or by what ``telemetry`` has
    released. Random streams come from the settings' seed; or only the initial weights from it, and the rest from
    ``seed``."""
    run, tested = train_with(task, settings, plan, data, seed, telemetry=telemetry)
    if run.ledger != plan.ledger:
        raise InvalidValue("every trial must spend what was planned, got another ledger")
    weights = cpu_weights(tested)  # before the score, which might write into them what it knows of others
    score = task.first_score(tested) if telemetry is None else _released_score(run)
    return Tried(score, weights, run.assumptions)


def _released_score(run: Run) -> float:
    """The mean accuracy that the last steps released, or minus the loss. Post-processing of the trial's release."""
    accuracy, loss = smoothed(run.telemetry, "accuracy"), smoothed(run.telemetry, "loss")
    if accuracy is not None:
        return accuracy.value
    assert loss is not None
    return -loss.value


def _with_clip_of(plan: Plan, settings: Settings, rows: int) -> Plan:
    """A plan with the clip norms of ``settings`` and the noise multipliers of ``plan``, so that its privacy
    cost is the same."""
    clips = evaluate("clip", settings.curves(rows)[1], plan.steps)
    return replace(plan, schedule=Schedule(plan.noise_multiplier, clips))
