"""GdpClt, Zcdp, Tcdp, Rdp: the figures of the papers, and their side conditions."""

import logging
import math

import numpy as np
import pytest

from decrescendo.accounting import GdpClt, Pld, Rdp, Tcdp, Zcdp, clt_mu, rho_of
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.rdp import round_down
from decrescendo.accounting.release import Release
from decrescendo.errors import AccountingError

P, DELTA, STEPS = 250 / 60_000, 1 / 600_000, 4_800


@pytest.mark.parametrize(
    ("epsilon", "z_clt", "z_zcdp", "z_tcdp"),
    [(0.4, 2.872, 58.10, 13.52), (0.6, 2.031, 38.88, 9.05), (1.2, 1.205, 19.65, 4.57)],
)
def test_constant_noise_that_each_accountant_asks_for_on_mnist(
    epsilon: float, z_clt: float, z_zcdp: float, z_tcdp: float
) -> None:
    def spent(accountant: GdpClt | Zcdp | Tcdp, z: float) -> float:
        return accountant.epsilon(Ledger([Release(P, z, STEPS)]), DELTA).value

    for accountant, z, last_digit in (
        (GdpClt(), z_clt, 1e-3),
        (Zcdp(240), z_zcdp, 1e-2),
        (Tcdp(), z_tcdp, 1e-2),
    ):
        assert spent(accountant, z + last_digit) < epsilon < spent(accountant, z - last_digit)


def test_hong_s_budget_needs_the_minus_sign() -> None:
    rho = rho_of(4, 1e-8)
    assert round(rho, 6) == 0.196352
    assert round(2 * rho, 6) == 0.392704
    level = math.log(1e8)
    assert 4 + 2 * level + 2 * math.sqrt(level * (4 + level)) > 80  # with the printed plus: absurd


def test_clt_composition_is_eq_7() -> None:
    z = np.array([1.0, 2.0, 0.5])
    by_hand = 0.1 * math.sqrt(sum(math.exp(1 / v**2) - 1 for v in z))
    assert clt_mu(Ledger.of(z, 0.1)) == pytest.approx(by_hand, rel=1e-14)


def test_the_clt_is_below_a_certified_lower_end_so_it_is_no_bound() -> None:
    # Noise falling from 1.2 to 0.7 at p = 0.01 over 100 steps: CLT 0.594, truth above 1.5.
    ledger = Ledger.of(np.geomspace(1.2, 0.7, 100), 0.01)
    assert GdpClt().epsilon(ledger, 1e-5).value == pytest.approx(0.594, abs=5e-3)
    assert Pld().bracket(ledger, 1e-5)[0] > 1.54


@pytest.mark.slow
def test_rdp_is_above_the_certified_lower_end_and_rounds_many_values_down() -> None:
    ledger = Ledger.of(np.linspace(1.2, 1.0, 500), 0.01)
    loose = Rdp().epsilon(ledger, 1e-6).value
    assert loose > Pld().bracket(ledger, 1e-6)[1]
    values = np.linspace(1, 2, 1000)
    rounded = round_down(values, 64)
    assert np.unique(rounded).size <= 64
    assert np.all(rounded <= values)
    assert np.max(values / rounded) < 1.0115


def test_zcdp_of_disjoint_batches_counts_the_dearest_of_each_epoch() -> None:
    ledger = Ledger.of([1.0, 2.0, 4.0, 2.0], sample_rate=0.5)
    assert Zcdp().rho(ledger) == pytest.approx(0.5 + 0.125 + 1 / 32 + 0.125)
    assert Zcdp(batches_per_epoch=2).rho(ledger) == pytest.approx(0.5 + 0.125)
    assert Zcdp().epsilon(ledger, 1e-5).kind == "upper"
    assert Zcdp(batches_per_epoch=2).epsilon(ledger, 1e-5).kind == "estimate"


@pytest.mark.parametrize(
    ("rate", "noise", "condition"),
    [(0.01, 1.0, r"1/\(2 z\^2\) <= 0.1"), (0.2, 10.0, "sample_rate <= 0.1")],
)
def test_tcdp_refuses_by_name_what_its_theorem_does_not_cover(rate: float, noise: float, condition: str) -> None:
    good = Release(0.01, 20.0)
    with pytest.raises(AccountingError, match=condition + r".*release 2 of 2"):
        Tcdp().epsilon(Ledger([good, Release(rate, noise)]), 1e-5)


def test_tcdp_beyond_omega_is_linear_in_log_delta() -> None:
    ledger = Ledger.of([3.0] * 10, sample_rate=0.01)
    rho, omega = Tcdp().rho_omega(ledger)
    delta = math.exp(-10 * (omega - 1) ** 2 * rho)
    expected = rho * omega + math.log(1 / delta) / (omega - 1)
    assert Tcdp().epsilon(ledger, delta).value == pytest.approx(expected)
    assert Tcdp().delta(ledger, expected).value == pytest.approx(delta)


def test_orders_that_are_left_out_are_left_out_in_silence() -> None:
    """dp-accounting says a line for each order, rate and noise: a flood, for a plan with many."""
    said, log = list[logging.LogRecord](), logging.getLogger("absl")
    level, hand = log.level, logging.Handler()
    hand.emit = said.append
    log.addHandler(hand)
    try:
        ledger = Ledger([Release(0.253, 2.977959), Release(0.268, 2.955891)])
        assert Rdp().epsilon(ledger, 1e-5).value < 1
        assert not said
        assert log.level == level
        log.warning("seen")
        assert len(said) == 1
    finally:
        log.removeHandler(hand)
