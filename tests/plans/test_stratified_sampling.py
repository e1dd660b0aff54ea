"""Strata with rates of their own: who is drawn, what is judged, divided by and said."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import decrescendo as dc
from decrescendo.accounting import Pld
from decrescendo.base.rng import SecureStream
from decrescendo.errors import FileRefused, InvalidValue
from decrescendo.plans import Plan, StratifiedPoissonSampling, calibrate

SAMPLING = StratifiedPoissonSampling({"common": (90, 9), "rare": (10, 4)})
NAMES = ["rare" if row % 10 == 3 else "common" for row in range(100)]
BUDGET = dc.Budget(2.0, 1e-4)


@pytest.mark.parametrize("secure", [False, True])
def test_each_record_is_drawn_at_its_own_rate_and_independently(secure: bool) -> None:
    rng = SecureStream.fresh() if secure else np.random.default_rng(0)
    steps, members = 3_000, SAMPLING.members(NAMES)
    found = np.zeros((steps, 100))
    for step, batch in enumerate(SAMPLING.batches(steps, rng, members)):
        assert (np.diff(batch) > 0).all()
        found[step, batch] = 1
    rates = np.where([name == "rare" for name in NAMES], 0.4, 0.1)
    deviation = np.sqrt(rates * (1 - rates) / steps)
    assert (np.abs(found.mean(0) - rates) < 5 * deviation).all()  # 3 % off shows in the sums below
    for name, rate, count in (("rare", 0.4, 10), ("common", 0.1, 90)):
        mine = found[:, [one == name for one in NAMES]].sum(1)
        assert abs(mine.mean() - count * rate) < 5 * np.sqrt(count * rate * (1 - rate) / steps)
        assert abs(mine.var() / (count * rate * (1 - rate)) - 1) < 0.15  # independent: a binomial number of them


def test_the_largest_rate_is_judged_and_the_declared_sum_divides() -> None:
    plan = calibrate(BUDGET, SAMPLING, steps=20, clip=1.0)
    assert (plan.ledger.sample_rate == 0.4).all()
    assert (plan.batch_size == 13).all()
    one_rate = calibrate(BUDGET, dc.PoissonSampling(100, 40), steps=20, clip=1.0)
    assert np.array_equal(plan.noise_multiplier, one_rate.noise_multiplier)
    # A record of a smaller rate is protected at least as well.
    less = dc.Ledger.of(plan.noise_multiplier, 0.1)
    assert Pld().bracket(less, BUDGET.delta)[1] < plan.guarantee.epsilon
    assert "common 0.1, rare 0.4" in plan.describe()


def test_a_plan_is_read_back_and_an_edited_one_is_not() -> None:
    plan = calibrate(BUDGET, SAMPLING, steps=5, clip=1.0)
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.sha256 == plan.sha256
    assert hash(again.sampling) == hash(SAMPLING)
    with pytest.raises(FileRefused):
        Plan.from_json(plan.to_json().replace("90", "80"))


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def test_a_training_draws_by_strata_and_its_statement_has_their_rates() -> None:
    torch.manual_seed(0)
    data = torch.randn(100, 3), torch.randint(2, (100,))
    model = nn.Linear(3, 2)
    plan = calibrate(BUDGET, SAMPLING, steps=4, clip=1.0)
    given = (model, loss, data, plan, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(InvalidValue, match="strata=None"):
        dc.train(*given, seed=0)
    run = dc.train(*given, seed=0, strata=np.array(NAMES))
    assert run.guarantee.epsilon <= 2.0
    assert "common 0.1, rare 0.4" in str(run.statement())


WRONG = {
    "another number": (["rare", *NAMES[1:]], "rows that were declared"),
    "another name": (["odd", *NAMES[1:]], "must be in one of"),
    "several names": ([["rare"], ["common", "odd"], *NAMES[2:]], "must be in one of"),
}


@pytest.mark.parametrize("name", WRONG)
def test_other_strata_than_declared_are_refused(name: str) -> None:
    names, why = WRONG[name]
    with pytest.raises(InvalidValue, match=why):
        SAMPLING.members(names)


@pytest.mark.parametrize("strata", [{}, {"a": (10, 11)}, {"a": (0, 1)}, {"a": (10, 0)}])
def test_numbers_out_of_range_are_refused(strata: dict[str, tuple[int, float]]) -> None:
    with pytest.raises(InvalidValue):
        StratifiedPoissonSampling(strata)


def test_what_has_no_theorem_is_refused() -> None:
    people = dc.Budget(2.0, 1e-4, dc.Unit.PERSON, examples_per_person=3)
    with pytest.raises(InvalidValue, match="one sample rate"):
        calibrate(people, SAMPLING, steps=5, clip=1.0)
    with pytest.raises(InvalidValue, match="one expected size"):
        calibrate(BUDGET, SAMPLING, steps=5, clip=1.0, batch=dc.curves.linear(5, 10))


def test_strata_of_a_plan_without_any_are_refused() -> None:
    """They were not looked at: rare classes were drawn like all."""
    model = nn.Linear(3, 2)
    data = torch.randn(100, 3), torch.arange(100) % 2
    plan = calibrate(BUDGET, dc.PoissonSampling(100, 10), steps=2, clip=1.0)
    with pytest.raises(InvalidValue, match="strata must come with a plan by StratifiedPoissonSampling"):
        dc.train(model, loss, data, plan, torch.optim.SGD(model.parameters(), lr=0.1), seed=0, strata=NAMES)


def test_a_run_says_what_it_takes_strata_for() -> None:
    plan, model = calibrate(BUDGET, SAMPLING, steps=2, clip=1.0), nn.Linear(3, 2)
    data = torch.zeros(100, 3), torch.zeros(100).long()
    run = dc.train(model, loss, data, plan, torch.optim.SGD(model.parameters(), lr=0.1), seed=0, strata=NAMES)
    assert [assumption.code for assumption in run.assumptions] == ["own-strata"]
