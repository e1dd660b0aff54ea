"""What both forms of an `Agreement` keep: the fixed one (`Plan`) and the adaptive one (`AdaptivePlan`)."""

from dataclasses import FrozenInstanceError

import pytest
from fuzzing import seeds

from decrescendo.accounting import Pld
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.release import Release
from decrescendo.errors import AccountingError, InvalidValue
from decrescendo.plans import Agreement, Plan, PoissonSampling
from decrescendo.plans.agreement import read_agreement

CASES = [
    pytest.param(seeds.plan(), id="fixed"),
    pytest.param(seeds.adaptive_plan(), id="adaptive"),
    pytest.param(Plan.without_privacy(PoissonSampling(500, 10), steps=4), id="without-privacy"),
]
GRANTED = Release(10 / 500, 4.0)  # little enough for the filter of the adaptive case


def first_releases(agreed: Agreement, count: int) -> Ledger:
    return Ledger([GRANTED] * count) if agreed.planned is None else agreed.planned.first(count)


@pytest.mark.parametrize("agreed", CASES)
class TestBothForms:
    def test_it_is_an_agreement_that_nobody_changes(self, agreed: Agreement) -> None:
        assert isinstance(agreed, Agreement)
        with pytest.raises((FrozenInstanceError, AttributeError)):
            agreed.budget = None  # type: ignore[misc]

    def test_its_file_is_read_back_by_its_kind(self, agreed: Agreement) -> None:
        again = read_agreement(agreed.kind, agreed.to_json(), source="here")
        assert again == agreed
        assert (again.to_json(), again.sha256) == (agreed.to_json(), agreed.sha256)

    def test_its_price_is_never_below_what_it_may_release(self, agreed: Agreement) -> None:
        price = agreed.price(Pld())
        assert (price.delta, price.unit) == (agreed.budget.delta, agreed.budget.unit)
        assert price.epsilon >= Pld().bracket(first_releases(agreed, 4), price.delta)[0]

    def test_it_allows_what_begins_it_and_no_step_more(self, agreed: Agreement) -> None:
        releases = first_releases(agreed, 3).releases
        assert all(agreed.allows(position, release) for position, release in enumerate(releases))
        assert agreed.begins(Ledger(releases))
        assert agreed.begins(Ledger())
        assert not agreed.allows(agreed.steps, releases[0])
        assert not agreed.begins(Ledger([*releases] * 4))

    def test_a_ledger_of_another_sampling_is_none_of_its_runs(self, agreed: Agreement) -> None:
        other = Ledger([Release(0.5, release.noise_multiplier) for release in first_releases(agreed, 3)])
        agreed.check(first_releases(agreed, 3), agreed.guarantee)
        with pytest.raises(AccountingError, match="ledger must"):
            agreed.check(other, agreed.guarantee)

    def test_it_knows_the_clip_norm_of_every_step_taken(self, agreed: Agreement) -> None:
        decided = () if agreed.planned else (1.0, 0.5)
        assert len(agreed.clip_norms(decided, 2)) == 2

    def test_it_is_judged_again_in_words(self, agreed: Agreement) -> None:
        assert any("again" in line for line in agreed.confirm(first_releases(agreed, 3)))


def test_clip_norms_decided_on_the_way_are_one_a_step() -> None:
    with pytest.raises(InvalidValue, match="one value for each of the 3 steps"):
        seeds.adaptive_plan().clip_norms((1.0,), 3)


def test_what_stopped_early_is_covered_as_it_was_decided() -> None:
    """Of a plan all of it, for when to stop may have depended on releases; of an adaptive one the budget."""
    plan, adaptive = seeds.plan(), seeds.adaptive_plan()
    assert plan.covered(plan.ledger.first(2)) == plan.ledger
    assert adaptive.covered(Ledger([GRANTED])) == Ledger([GRANTED])
    assert adaptive.price(Pld()).epsilon == adaptive.budget.epsilon
