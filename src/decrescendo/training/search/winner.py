"""`Winner`: the released result of a search on private data, and its files."""

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save as save_tensors
from torch import Tensor

from decrescendo.accounting import Guarantee
from decrescendo.base.assumption import Assumption, are_independent, assumption_facts, independence
from decrescendo.base.sealed import check_writable, write
from decrescendo.errors import InvalidValue
from decrescendo.plans import Plan
from decrescendo.plans.sampling_refusals import only_constant
from decrescendo.training.search.private_search import PrivateSearch
from decrescendo.training.search.settings import Settings
from decrescendo.training.statement import SEEDED, UNRECORDED

FORMAT, VERSION = "decrescendo-private-search", 1


@dataclass(frozen=True, slots=True, eq=False)
class Winner:
    """Everything released by a search. The number of trials and the results of other trials are not in it.

    Args:
        asked: the search.
        plan: of one trial. Its own guarantee is not the one to show with the weights.
        guarantee: of the whole search: covers weights, settings and score together.
        settings: of the winner, seed 0 in place of its own, which is secret; ``None`` if there was no trial
            (a Poisson number can be 0).
        score: on declared public data, or of what the trial released (`PrivateSearch.ranked_by`). The best of several,
            so a little too good.
        weights: of the winner.
        machine: hardware and software that computed it.
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
                f"score      {self.score:.4g} {self.asked.ranked_by(self.plan)}, which also chose it: a little too "
                "good",
            )
        )


def describe_promise(asked: PrivateSearch, plan: Plan, guarantee: Guarantee) -> str:
    """The guarantee in words, before any data are read."""
    noise = plan.noise_multiplier
    return "\n".join(
        (
            f"guarantee  {guarantee}: the whole search, its winner's weights, settings and score",
            f"trials     {asked.trials}, each with z {noise[0]:.4g} -> {noise[-1]:.4g} over {plan.steps} steps",
            f"ranking    {asked.ranked_by(plan)}",
            "secret     the seed, the number of trials, and so how long the search takes",
        )
    )


def save_winner(path: Path, winner: Winner) -> Path | None:
    """Write the result to ``path`` and the weights beside it; returns the weights' path. A score that is not
    finite is written as null.

    The file is not a run's: a run states the guarantee of one training, and these weights come with the guarantee of
    the whole search.
    """
    weights = weights_path(path)
    content = weights_content(winner.weights)
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
        # (JSON has no NaN and no infinity.)
        "score": winner.score if winner.score is not None and math.isfinite(winner.score) else None,
        "score_is": asked.ranked_by(plan),
        "telemetry": None if asked.telemetry is None else dataclasses.asdict(asked.telemetry),
        "weights_sha256": hashlib.sha256(content).hexdigest() if winner.weights else None,
        "machine": dict(winner.machine),
        "provenance": {
            "random": winner.random, "account": winner.account,
            **assumption_facts(winner.assumptions),
        },
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, FORMAT, VERSION, facts)  # first: weights never lie there without their guarantee
    if winner.weights:
        weights.write_bytes(content)
    return weights if winner.weights else None


def weights_content(weights: Mapping[str, Tensor]) -> bytes:
    # The file format takes contiguous tensors only; models of images may be channels-last.
    return save_tensors({name: value.contiguous() for name, value in weights.items()})


def weights_path(path: Path) -> Path:
    """The path of the weights that belong to the result at ``path``."""
    return path.with_suffix(".safetensors")


def check_fresh(path: Path) -> None:
    """Check that result and weights have different paths, that neither file exists, and that the folder can
    be written to.

    Raises:
        InvalidValue: a file exists, or both paths are the same.
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
