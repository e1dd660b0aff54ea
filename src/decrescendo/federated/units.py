"""What a guarantee about one client says of somebody who is behind several clients.

InfiniteMNIST is the case in point: hundreds of thousands of clients, each with images derived from 60,000 source
digits. A plan for clients hides one derived image (or one client with ten of them); the
person who wrote a digit is behind all images that are made from it.
"""

import functools
import math
from typing import Any

import numpy as np
from jaxtyping import Int

from decrescendo.accounting import Bound, Ledger
from decrescendo.accounting.gaussian import check_delta
from decrescendo.accounting.rdp import round_down
from decrescendo.errors import AccountingError, InvalidValue, check_instance, check_integer
from decrescendo.federated.mixture import BinomialMixture, composed

# Of epsilon, the grid that losses are rounded on, for 5,000 releases: what rounding adds grows like their number times
# the grid squared. And the grid's limits, between cost and looseness.
_GRID_SHARE, _FINEST, _COARSEST = 5e-4, 1e-4, 2e-3

# Composition by fast transforms is trusted down to this delta.
_FLOOR, _STEP = 1e-12, 0.125


def most_clients(person: Int[np.ndarray, " rows"], client: Int[np.ndarray, " rows"]) -> int:
    """The most clients that one person is behind.

    Args:
        person: whose record each row is.
        client: who holds it.

    >>> rows = np.arange(12)
    >>> most_clients(rows % 3, rows), most_clients(rows % 3, rows // 4)
    (4, 3)
    """
    pairs = np.unique(np.stack([person, client]), axis=1)
    return int(np.unique(pairs[0], return_counts=True)[1].max()) if pairs.size else 0


def group_epsilon(
    ledger: Ledger, delta: float, clients: int, *, replaced: bool = False, values: int = 12
) -> Bound:
    """An upper bound of epsilon for somebody who is behind at most ``clients`` clients, at ``delta``.

    Removing m clients takes from the clipped sum of a round a vector of norm at most J C, where J, how many of them
    were drawn, is binomial(m, p): each client is drawn on its own. So a round is dominated by the mixture
    sum_j P(J = j) N(j, z^2) against N(0, z^2) (Choquette-Choo, Ganesh, Steinke and Thakurta, "Privacy Amplification
    for Matrix Mechanisms", 2023: the mixture of Gaussians with known sensitivities dominates vectors of such norms),
    which composes like any dominating pair. Each is discretised pessimistically and composed by
    dp-accounting, each direction on its own, with the noise multipliers rounded down onto ``values`` values: every
    rounding is upwards. For m = 1 it is the guarantee for a client, up to both methods' rounding.

    Args:
        ledger: of a CENTRAL or DISTRIBUTED run.
        delta: in (0, 1).
        clients: m >= 1, see `most_clients`.
        replaced: the person leaves, and the m clients stay with other updates (they hold other people's records
            too). That is going away with m old updates and coming with m new ones: if (e, d) covers each half, the
            whole is (2 e, (1 + exp(e)) d).
        values: >= 2: more values, tighter and slower.

    Edge cases:
        it grows faster than m times the client's epsilon where delta is small against m p T, and is vacuous for large
        groups: hundreds of clients of one person are not protected by a plan for one client. Calibrate then with the
        person as the unit: put their records into one client.

    >>> group_epsilon(Ledger.of([2.0] * 10, sample_rate=0.1), 1e-5, clients=2)
    Bound(value=1.73..., kind='upper')
    """
    check_instance("ledger", ledger, Ledger)
    target, m = check_delta(delta), check_integer("clients", clients, at_least=1)
    check_integer("values", values, at_least=2)
    if target < 10 * _FLOOR:
        raise InvalidValue(f"delta must be >= {10 * _FLOOR:g} for a group, got delta={target:g}")
    if not len(ledger):
        return Bound(0.0, "upper")
    if (ledger.noise_multiplier == 0).any():
        return Bound(math.inf, "upper")
    if ledger.is_cut:
        raise AccountingError(f"group_epsilon accounts cohorts of any size only, got {ledger}")
    if np.unique(ledger.sample_rate).size > 1:
        raise AccountingError(
            "group_epsilon accounts ledgers of one sample rate only, got several. Split them"
        )
    loud = ledger.with_noise(lambda noise: round_down(noise, values)).distinct()
    # A coarse composition says how large epsilon is, and so how fine the grid must be.
    first = _total(loud.with_noise(lambda noise: noise.min() + 0 * noise).distinct(), m, _COARSEST)
    share = _GRID_SHARE * math.sqrt(5_000 / ledger.steps)
    grid = min(max(share * _found(first, target, replaced=replaced), _FINEST), _COARSEST)
    return Bound(_found(_total(loud, m, grid), target, replaced=replaced), "upper")


def _total(ledger: Ledger, m: int, grid: float) -> Any:
    steps = (
        composed(BinomialMixture(m, release.sample_rate, release.noise_multiplier), grid, release.count)
        for release in ledger
    )
    return functools.reduce(lambda one, other: one.compose(other), steps)


def _found(total: Any, delta: float, *, replaced: bool) -> float:
    if not replaced:
        return float(total.get_epsilon_for_delta(delta))

    def covers(half: float) -> bool:
        # Transforms of floating-point numbers say nothing about what is below the floor.
        found = max(total.get_delta_for_epsilon(half), _FLOOR)
        return math.log(found) + math.log1p(math.exp(half)) <= math.log(delta)

    if covers(0.0):
        return 0.0
    low, most = 0.0, math.log(delta / _FLOOR)
    for high in np.arange(_STEP, most, _STEP).tolist():
        if covers(high):
            break
        low = high
    else:
        return math.inf
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if covers(middle) else (middle, high)
    return 2 * high
