"""A mistake on one rank is one clear error on every rank, soon, and before anything more is released."""

import re

import pytest
from often import some
from ranks import Outcome, run_ranks

# The mistake (rank_life.mistaken), and what every rank's error must say.
MISTAKES = {
    "another plan": "PlanViolation .*same plan, got others on rank 1 than on rank 0",
    "another filter": "PlanViolation .*same plan",
    "another number of rows": "InvalidValue .*data must have the plan's 40 rows, got 20",
    "other rows": "PlanViolation .*same rows of the data",
    "rows that are sharded": "InvalidValue .*data must have the plan's 40 rows, got 20",
    "a loader that is sharded": "InvalidType .*data must .*DataLoader",
    "other weights": "PlanViolation .*same weights",
    "another width": "PlanViolation .*same names, shapes and kinds of parameters",
    "other frozen parameters": "PlanViolation .*same names, shapes and kinds",
    "another dtype": "PlanViolation .*same names, shapes and kinds",
    "evaluation mode on one": "PlanViolation .*same model, got Cnn in training .*evaluation",
    "another step length": "PlanViolation .*same settings of the optimizer",
    "another optimiser": "PlanViolation .*same optimizer, got SGD on rank 0 and Adam on rank 1",
    "another version": "PlanViolation .*same version of torch, got .* on rank 0 and 1.0.0 on rank 1",
    "other engine settings": "PlanViolation .*same settings of the engine, got None on rank 0",
    "another kind of seed": "PlanViolation .*same kind of seed, got int on rank 0 and Secure on rank 1",
    "checkpoints on one": "PlanViolation .*same use of checkpoints",
    "DDP": "UnsupportedModel .*DistributedDataParallel.*nobody clipped.*module",
    "DDP on one": "UnsupportedModel .*DataParallel",
    "tensor parallelism": "UnsupportedModel .*got layers.8.weight with .*Tensor parallelism is not supported",
    "parts in another precision": "UnsupportedModel .*used as they are held, got the model with mp_policy",
    "a tied parameter cut in two": "UnsupportedModel .*must stay one, got layers.(9|10).weight, (of which|which has)",
    "alike, in an old torch": "UnsupportedModel .*must stay one, got layers.10.weight, which has the numbers",
    "parts made after the optimiser": "InvalidValue .*must hold parameters of this model only, got 8 others",
    "parts in another order": "UnsupportedModel .*in their order",
    "cut on one rank": "PlanViolation .*same model, got FSDPCnn in training on rank 0 and Cnn in",
    "other weights in copies": "PlanViolation .*same weights of part 0 of 1, got others on rank 1 than on rank 0",
    "frozen on one": "PlanViolation .*same parameters with the same clip norm, got others on rank 1",
    "frozen on one, in parts": "PlanViolation .*same parameters with the same clip norm, got others on rank 1",
    "no world": "InvalidValue .*must be given its world",
    "no world, in parts": "InvalidValue .*must be given its world",
    "an error in the loss": "(ZeroDivisionError|RankLost) .*a mistake in the loss",
    "an error in the loss, in parts": "(ZeroDivisionError|RankLost) .*a mistake in the loss",
    "a loss that mixes examples": "UnsupportedModel ",
    "a disk that fails": "(OSError|RankLost) .*a disk that fails",
    "an error in the callback": "(KeyError|RankLost) .*nothing of that name",
    "an error in the callback, in parts": "(KeyError|RankLost) .*nothing of that name",
    "rows left out": "PlanViolation .*batch just drawn",
    "a batch not given": "PlanViolation .*every drawn batch must be given",
    "an end of its own": "PlanViolation .*same steps, got rank 0 drawing a batch, rank 1 comparing what they have",
    "an end of its own, in parts": "PlanViolation .*same steps, got rank 0 gathering parts, rank 1 comparing",
    "an end of its own loop": "PlanViolation .*same steps",
    "trainings in another order": "PlanViolation .*at the same training, got rank 0 training .*, rank 1 training ",
    "weights changed by hand": "PlanViolation .*same weights",
    "another code of the loss": "PlanViolation .*same code of the loss",
    "trainings in another order, when finished": "PlanViolation .*at the same training",
}
# Ranks that are gone can say nothing, and the group with them.
GONE = {
    "an error in an evaluation, in parts": "(RankLost|RuntimeError) .*every rank must go on, got KeyError on rank 1",
    "killed in a step": "RankLost .*every rank must go on, got one that ended",
    "killed in a step, in parts": "RankLost .*every rank must go on, got one that ended",
    "Alone on one": "RankLost .*every rank must go on, got one that ended",
    "something else as world": "RankLost .*every rank must go on, got one that ended",
}
# Ranks wait a minute for one that is silent; a machine with other work takes some seconds to end both.
SECONDS = 40.0


@pytest.mark.parametrize("mistake", some(MISTAKES, 8))
def test_a_mistake_is_one_clear_error_on_every_rank(mistake: str) -> None:
    outcomes, seconds = run_ranks("mistaken", 2, mistake=mistake)
    for rank, outcome in enumerate(outcomes):
        assert re.search(MISTAKES[mistake], f"{outcome.error} {outcome.message}", re.DOTALL), (rank, outcome)
    assert seconds < SECONDS


def test_without_a_mistake_there_is_no_error() -> None:
    outcomes, _ = run_ranks("mistaken", 2, mistake="none")
    assert [outcome.error for outcome in outcomes] == ["", ""], outcomes


@pytest.mark.slow
@pytest.mark.parametrize("mistake", GONE)
def test_a_rank_that_is_gone_ends_the_others(mistake: str) -> None:
    outcomes, seconds = run_ranks("mistaken", 2, mistake=mistake)
    assert re.search(GONE[mistake], f"{outcomes[0].error} {outcomes[0].message}"), outcomes
    assert seconds < SECONDS
    said = {
        "an error in an evaluation, in parts": "nothing of that name",
        "Alone on one": "must be given its world",
        "something else as world": "world must be .* got str",
    }
    assert outcomes[1].gone is (mistake not in said)
    assert outcomes[1].gone or re.search(said[mistake], outcomes[1].message), outcomes


@pytest.mark.slow
def test_a_rank_that_never_comes_is_not_waited_for_longer_than_said() -> None:
    outcomes, seconds = run_ranks("mistaken", 3, started=2, mistake="a rank that never comes")
    for outcome in outcomes:
        assert outcome.error == "RankLost", outcome
        assert "all 3 ranks must come within timeout=3 s" in outcome.message
    assert seconds < SECONDS


@pytest.mark.slow
def test_an_outcome_that_hangs_would_be_seen() -> None:
    outcomes, _ = run_ranks("waits", 1, within=3.0)
    assert outcomes == [Outcome(error="hangs")]
