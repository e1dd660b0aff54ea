"""The epsilon of somebody who is behind several clients."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm

from decrescendo.accounting import Pld
from decrescendo.accounting.gaussian import epsilon_of
from decrescendo.accounting.ledger import Ledger
from decrescendo.errors import AccountingError, InvalidValue
from decrescendo.federated.units import group_epsilon, most_clients


def exact(m: int, p: float, z: float, delta: float) -> float:
    """One release, by quadrature of both hockey-stick integrals: the smallest epsilon that covers delta."""
    x = np.linspace(-12 * z, m + 12 * z, 400_001)
    step = x[1] - x[0]
    mixed = sum(binom.pmf(j, m, p) * norm.pdf(x, j, z) for j in range(m + 1))
    plain = norm.pdf(x, 0, z)

    def worst(epsilon: float) -> float:
        remove = np.maximum(mixed - math.exp(epsilon) * plain, 0).sum() * step
        return max(remove, np.maximum(plain - math.exp(epsilon) * mixed, 0).sum() * step)

    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if worst(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize(("m", "p", "z"), [(1, 0.1, 1.0), (3, 0.1, 2.0), (5, 0.05, 1.5)])
def test_one_release_is_the_integral_of_the_mixture(m: int, p: float, z: float) -> None:
    found = group_epsilon(Ledger.of([z], p), 1e-4, m)
    truth = exact(m, p, z, 1e-4)
    assert found.kind == "upper"
    assert truth * (1 - 1e-4) <= found.value <= truth * 1.02


def test_one_client_is_the_plan_and_all_drawn_is_a_gaussian() -> None:
    ledger = Ledger.of(np.linspace(2.0, 1.5, 30), 0.05)
    lower, upper = Pld().bracket(ledger, 1e-5)
    assert lower <= group_epsilon(ledger, 1e-5, 1).value <= upper
    # Everybody takes part: m clients are one of sensitivity m.
    whole = group_epsilon(Ledger.of([4.0] * 5, 1.0), 1e-5, 3).value
    truth = epsilon_of(1e-5, 3 * math.sqrt(5) / 4.0)
    assert truth * (1 - 1e-4) <= whole <= truth * 1.02


@pytest.mark.slow
def test_it_grows_with_the_group_and_when_clients_stay() -> None:
    ledger = Ledger.of([2.0] * 20, 0.05)
    one, three, stays = (
        group_epsilon(ledger, 1e-5, 1).value,
        group_epsilon(ledger, 1e-5, 3).value,
        group_epsilon(ledger, 1e-5, 3, replaced=True).value,
    )
    assert one < three < stays
    assert stays >= 2 * three * 0.999  # the halves have a smaller delta


@pytest.mark.parametrize(("p", "z", "delta"), [(0.01, 1.0, 0.005), (0.01, 1.0, 0.01), (0.3, 2.0, 0.01)])
def test_a_client_that_stays_with_another_update_is_covered(p: float, z: float, delta: float) -> None:
    """One round, from +C to -C: exactly delta(epsilon), also where going away alone costs no epsilon at delta."""
    found = group_epsilon(Ledger.of([z], p), delta, 1, replaced=True).value
    x = np.linspace(-1 - 12 * z, 1 + 12 * z, 400_001)
    one, other = ((1 - p) * norm.pdf(x, 0, z) + p * norm.pdf(x, at, z) for at in (1, -1))
    assert np.maximum(one - math.exp(found) * other, 0).sum() * (x[1] - x[0]) <= delta * (1 + 1e-6)
    assert found < 3


def test_edges() -> None:
    assert group_epsilon(Ledger.of([1.0] * 30, 0.3), 1e-5, 5, replaced=True).value == math.inf
    hardly = Ledger.of([0.02], 0.01)  # one release with hardly any noise, of which few are a part
    assert group_epsilon(hardly, 0.015, 1).value == 0
    assert group_epsilon(hardly, 0.015, 1, replaced=True).value > 500
    assert group_epsilon(hardly, 0.021, 1, replaced=True).value == 0
    assert group_epsilon(Ledger(), 1e-5, 3).value == 0
    assert group_epsilon(Ledger.of([1.0, 0.0], 0.1), 1e-5, 3).value == math.inf
    two = Ledger.of([1.0], 0.1) + Ledger.of([1.0], 0.2)
    assert group_epsilon(two, 1e-5, 3) == Pld(group=3).epsilon(two, 1e-5)
    with pytest.raises(InvalidValue, match="clients must be >= 1"):
        group_epsilon(two, 1e-5, 0)
    with pytest.raises(AccountingError, match="for a group of 40"):
        group_epsilon(Ledger.of([0.5] * 2, 0.9), 1e-5, 40, replaced=True)


@pytest.mark.slow
def test_replaced_updates_are_two_halves_with_their_deltas() -> None:
    """Against dp-accounting's own mixture: (e, d) twice is (2 e, (1 + exp(e)) d)."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    m, p, z, delta = 2, 0.1, 2.0, 1e-5
    theirs = pld.from_mixture_gaussian_mechanism(
        z, [0.0, 1.0, 2.0], binom.pmf([0, 1, 2], m, p).tolist(), value_discretization_interval=1e-3
    ).self_compose(4)
    half = group_epsilon(Ledger.of([z] * 4, p), delta, m, replaced=True).value / 2
    for shift, holds in ((0.01, True), (-0.01, False)):
        covered = (1 + math.exp(half + shift)) * theirs.get_delta_for_epsilon(half + shift) <= delta
        assert covered == holds


def test_a_client_that_holds_several_records_of_one_person_counts_once() -> None:
    assert most_clients(np.array([1, 1, 1, 2, 2]), np.array([0, 0, 1, 1, 1])) == 2


def test_ids_of_clients_are_told_apart_whatever_columns_they_come_in() -> None:
    """Beside floats, or numbers without sign, numbers above 2^53 became floats: 8 clients were counted as one."""
    clients = 2**60 + np.arange(8)
    for person in (np.zeros(8), np.zeros(8, dtype=np.uint64), ["ann"] * 8):
        assert most_clients(person, clients) == 8
        assert most_clients(person, clients.astype(np.uint64)) == 8
    assert most_clients(np.arange(8) % 2, [str(number) for number in clients]) == 4
    with pytest.raises(InvalidValue, match="several large numbers become"):
        most_clients(np.zeros(8), clients.astype(float))
    with pytest.raises(InvalidValue, match="an id in client"):
        most_clients(np.zeros(2), np.array([1.0, np.nan]))
    with pytest.raises(InvalidValue, match="a person and a client, got 2 and 3"):
        most_clients(np.zeros(2), np.zeros(3))
    assert most_clients([], []) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_floats_too_narrow_for_ids_are_refused(dtype: torch.dtype) -> None:
    first = int(2 / torch.finfo(dtype).eps)
    with pytest.raises(InvalidValue, match="must be told apart"):
        most_clients([0] * 8, (first + torch.arange(8)).to(dtype))
    assert most_clients([0] * 8, (first - 9 + torch.arange(8)).to(dtype)) == 8
