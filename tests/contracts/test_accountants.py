"""Laws that every accountant keeps (accounting/protocol.py)."""

import math
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from decrescendo.accounting import Accountant, Budget, Pld, Rdp, Selection, Trials, Truncated, Unit, Zcdp
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.protocol import estimate
from decrescendo.accounting.release import Release
from decrescendo.accounting.table import KNOWN
from decrescendo.errors import AccountingError

# Different noise multipliers, two sample rates: what an accountant of Poisson batches judges, if nothing is said here.
SAMPLED = Ledger([Release(0.01, 1.1, 20), Release(0.02, 0.9, 5), Release(0.01, 1.5)])
WITHIN = {
    "Gaussian": Ledger([Release(1.0, 10.0, 20), Release(1.0, 15.0, 5)]),
    "Zcdp": Ledger([Release(0.01, 20.0, 20), Release(1.0, 30.0, 5)]),
    "Tcdp": Ledger([Release(0.01, 10.0, 20), Release(0.02, 15.0, 5)]),
}
# Judges no Poisson batches: its laws are in tests/plans/test_random_allocation.py.
ELSEWHERE = {"Allocated"}
CASES = [
    *(
        pytest.param(known.made(), WITHIN.get(name, SAMPLED), id=name)
        for name, known in KNOWN.items()
        if not known.needs and name not in ELSEWHERE
    ),
    pytest.param(Zcdp(batches_per_epoch=4), Ledger([Release(0.25, 20.0, 20), Release(0.25, 9.0, 4)]), id="Zcdp-epochs"),
    *(
        pytest.param(Selection(Trials(mean=5, shape=shape)), SAMPLED, id=f"Selection-{shape}")
        for shape in (0.0, 1.0, math.inf)
    ),
    pytest.param(Truncated(Rdp()), SAMPLED.cut(10_000, 290), id="Truncated", marks=pytest.mark.slow),
]
DELTA = 1e-6


def test_every_accountant_of_the_table_keeps_the_laws() -> None:
    tried = {type(case.values[0]).__name__ for case in CASES}
    assert tried | ELSEWHERE == set(KNOWN)


@pytest.mark.parametrize("name", [name for name, known in KNOWN.items() if not known.needs])
def test_the_table_says_what_kind_of_number_each_has(name: str) -> None:
    ledger = WITHIN.get(name, SAMPLED)
    if name in ELSEWHERE:
        ledger = Ledger([Release(1 / 40, 2.0, 40, steps_per_epoch=40)])
    assert KNOWN[name].made().epsilon(ledger, DELTA).kind == KNOWN[name].kind


def test_noise_at_the_ends_of_the_floating_point_numbers_costs_a_number_or_infinity() -> None:
    for accountant in (case.values[0] for case in CASES if not case.marks):
        for rate in (1.0, 0.1, 1e-300):
            for noise in (1e-300, 1e-5, 1e155, 1e300):
                with suppress(AccountingError):  # by name, of what it does not account
                    bound = accountant.epsilon(Ledger([Release(rate, noise, 3)]), DELTA)
                    assert bound.value >= 0 if noise > 1 else bound.value > 1e4 or rate < 0.1


@pytest.mark.parametrize(("accountant", "ledger"), CASES)
class TestLaws:
    def test_it_is_an_accountant_with_a_name(self, accountant: Accountant, ledger: Ledger) -> None:
        assert isinstance(accountant, Accountant)
        assert accountant.name.partition("(")[0] == type(accountant).__name__

    def test_what_it_certifies_is_its_epsilon(self, accountant: Accountant, ledger: Ledger) -> None:
        budget, bound = Budget(3.0, DELTA, Unit.CLIENT), accountant.epsilon(ledger, DELTA)
        found = accountant.certify(ledger, budget)
        assert (found.epsilon, found.kind) == (bound.value, bound.kind)
        assert (found.delta, found.unit, found.accountant) == (DELTA, Unit.CLIENT, accountant.name)
        assert found.epsilon_lower is None or 0 < found.epsilon_lower <= found.epsilon

    def test_what_it_certifies_without_noise_is_no_privacy(self, accountant: Accountant, ledger: Ledger) -> None:
        bare = ledger + Ledger([Release(float(ledger.sample_rate[0]), 0.0)])
        found = accountant.certify(bare, Budget(3.0, DELTA))
        assert found.epsilon == math.inf
        assert str(found).startswith("NO PRIVACY")

    def test_its_number_to_search_with_is_near_its_epsilon(self, accountant: Accountant, ledger: Ledger) -> None:
        assert estimate(accountant, ledger, DELTA) == pytest.approx(accountant.epsilon(ledger, DELTA).value, rel=0.05)

    def test_an_empty_ledger_costs_nothing(self, accountant: Accountant, ledger: Ledger) -> None:
        assert accountant.epsilon(Ledger(), DELTA).value == 0
        assert accountant.delta(Ledger(), 1.0).value == 0

    def test_no_noise_costs_infinity(self, accountant: Accountant, ledger: Ledger) -> None:
        bare = ledger + Ledger([Release(float(ledger.sample_rate[0]), 0.0)])
        assert accountant.epsilon(bare, DELTA).value == math.inf
        assert accountant.delta(bare, 5.0).value >= ledger.sample_rate[0] * (1 - 1e-12)

    def test_splitting_a_count_changes_nothing(self, accountant: Accountant, ledger: Ledger) -> None:
        split = Ledger([replace(release, count=1) for release in ledger for _ in range(release.count)])
        assert accountant.epsilon(split, DELTA).value == pytest.approx(
            accountant.epsilon(ledger, DELTA).value, rel=1e-9
        )

    def test_less_noise_never_lowers_epsilon(self, accountant: Accountant, ledger: Ledger) -> None:
        louder = ledger.with_noise(lambda z: z * 0.97)
        assert accountant.epsilon(louder, DELTA).value > accountant.epsilon(ledger, DELTA).value

    def test_one_more_release_never_lowers_epsilon(self, accountant: Accountant, ledger: Ledger) -> None:
        longer = ledger + Ledger([ledger.releases[0]])
        assert accountant.epsilon(longer, DELTA).value >= accountant.epsilon(ledger, DELTA).value

    def test_a_smaller_delta_never_lowers_epsilon(self, accountant: Accountant, ledger: Ledger) -> None:
        assert accountant.epsilon(ledger, DELTA / 10).value > accountant.epsilon(ledger, DELTA).value

    def test_epsilon_and_delta_invert_each_other(self, accountant: Accountant, ledger: Ledger) -> None:
        epsilon = accountant.epsilon(ledger, DELTA).value
        # Pld's two ends are found separately, each within its own bracket: 0.1 % of epsilon is a few % of delta.
        assert accountant.delta(ledger, epsilon).value == pytest.approx(
            DELTA, rel=0.03 if accountant == Pld() else 1e-3 if isinstance(accountant, Truncated) else 1e-6
        )

    def test_batches_that_are_cut_are_paid_for_or_refused(self, accountant: Accountant, ledger: Ledger) -> None:
        cut = ledger.cut(10_000, 280)
        if isinstance(accountant, Truncated):
            assert accountant.delta(cut, 1.0).value > accountant.delta(ledger, 1.0).value
            return
        for asked in (accountant.epsilon, accountant.delta, partial(estimate, accountant)):
            with pytest.raises(AccountingError, match="any size only"):
                asked(cut, 0.5)

    def test_records_that_take_part_once_an_epoch_are_not_taken_for_poisson_ones(
        self, accountant: Accountant, ledger: Ledger
    ) -> None:
        once = Ledger([Release(1 / 4, float(ledger.noise_multiplier[0]), 8, steps_per_epoch=4)])
        for asked in (accountant.epsilon, accountant.delta, partial(estimate, accountant)):
            with pytest.raises(AccountingError, match="Poisson batches only"):
                asked(once, 0.5)

    def test_kinds_are_the_same_for_both_questions(self, accountant: Accountant, ledger: Ledger) -> None:
        assert accountant.epsilon(ledger, DELTA).kind == accountant.delta(ledger, 1.0).kind

    @pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan, 2.0])
    def test_delta_outside_its_range_is_refused(self, accountant: Accountant, ledger: Ledger, delta: float) -> None:
        with pytest.raises(ValueError, match="delta must be"):
            accountant.epsilon(ledger, delta)


def test_releases_beyond_all_numbers_are_refused_in_words() -> None:
    for count in (10**10, 10**12):
        with pytest.raises(AccountingError, match="that floating-point numbers hold at delta=1e-05"):
            Pld().epsilon(Ledger([Release(0.1, 1.0, count)]), 1e-5)
