"""Whether the noise that is drawn has the law that is stated: counted over many numbers, as the kernel makes them.

    python -m benchmarks.noise_law [--numbers 10_000_000_000]       # counts, then writes results/noise-law.json

Half of the numbers are added to sums of zero, half to sums on the edge between two multiples of the grid.
"""

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from decrescendo.base.rng import SecureStream
from decrescendo.base.rng.rounded import CHUNK, kernel

RESULT = Path(__file__).resolve().parent.parent / "results" / "noise-law.json"
# With s = 1 the grid is 2^-20: multiples within 8 deviations are exact in float32. A bin is 2^14 of them.
GRID, BIN, HALF = 2.0**-20, 2**14, 512
# The lowest three bits of a multiple are fair, but for 10^-10.
LOW = 8
BLOCK = 16 * CHUNK
# Neighbours in a vector of the kernel, in its groups, in the chunks of two threads.
LAGS = (1, 2, 8, 64, CHUNK, 2 * CHUNK)
TAILS = (3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0, 6.5)
SHIFTS = (0.0, 0.5)


@dataclass
class Counts:
    """What was seen: bins of the multiples, their low bits, sums of products with other numbers."""

    numbers: int = 0
    bins: dict[float, np.ndarray] = field(
        default_factory=lambda: {shift: np.zeros(2 * HALF, dtype=np.int64) for shift in SHIFTS}
    )
    low: np.ndarray = field(default_factory=lambda: np.zeros(LOW, dtype=np.int64))
    products: dict[str, list[float]] = field(default_factory=dict)  # name: sum, variance under independence

    def see(self, noise: np.ndarray, shift: float, others: dict[str, np.ndarray]) -> None:
        """One block of results, each a multiple of the grid; ``others``: results of other keys and counters."""
        scaled = noise * np.float32(1 / GRID)
        multiples = scaled.astype(np.int32)
        if not np.array_equal(multiples, scaled):
            raise ValueError("a result must be a multiple of the grid, got another")
        self.numbers += len(noise)
        places = np.clip((multiples >> 14) + HALF, 0, 2 * HALF - 1) * LOW + (multiples & (LOW - 1))
        seen = np.bincount(places, minlength=2 * HALF * LOW).reshape(2 * HALF, LOW)
        self.bins[shift] += seen.sum(axis=1)
        self.low += seen.sum(axis=0)
        pairs = {f"lag {lag}": (noise[:-lag], noise[lag:]) for lag in LAGS}
        pairs |= {name: (noise, other) for name, other in others.items()}
        for name, (one, other) in pairs.items():
            self._add(name, float(np.dot(one, other)), len(one))
        spread = noise * noise - np.float32(1)
        for lag in (1, CHUNK):
            self._add(f"squares, lag {lag}", float(np.dot(spread[:-lag], spread[lag:])), 4 * (len(noise) - lag))

    def _add(self, name: str, total: float, variance: float) -> None:
        known = self.products.setdefault(name, [0.0, 0.0])
        known[0], known[1] = known[0] + total, known[1] + variance


def blocks(numbers: int) -> Iterator[tuple[np.ndarray, float, dict[str, np.ndarray]]]:
    """Results, the sum they were added to in units of the grid, and results of another key and of earlier counters."""
    streams = [SecureStream.fresh(), SecureStream.fresh()]
    others: dict[str, np.ndarray] = {}
    for index in range(-(-numbers // BLOCK)):
        shift = SHIFTS[index // 2 % 2]
        sums = np.full(BLOCK, shift * GRID, dtype=np.float32)
        noise = streams[index % 2].add_gaussian(sums, 1.0)
        yield noise, shift, others
        others = {("another key" if index % 2 == 0 else "the same counters, another key"): noise}


def chi_square(seen: np.ndarray, probability: np.ndarray) -> float:
    """The p of counts, those that are expected fewer than 20 times taken together with their neighbours."""
    expected = probability * seen.sum()
    _, groups = np.unique((np.cumsum(expected) / 20).astype(np.int64), return_inverse=True)
    kept = [np.bincount(groups, weights=values) for values in (seen.astype(float), expected)]
    some = kept[1] > 0
    statistic = float(((kept[0] - kept[1])[some] ** 2 / kept[1][some]).sum())
    return float(stats.chi2.sf(statistic, int(some.sum()) - 1))


def judge(counts: Counts, *, std: float = 1.0, mean: float = 0.0, cut: float = math.inf) -> dict[str, float]:
    """A p for each test, corrected for how many it takes the least of; ``std``, ``mean``, ``cut``: of a wrong law."""
    found: dict[str, float] = {}
    tails: list[float] = []
    for shift, seen in counts.bins.items():
        edges = ((np.arange(-HALF, HALF + 1) * BIN - 0.5 - shift) * GRID - mean) / std
        edges[[0, -1]] = -np.inf, np.inf
        upper = stats.norm.sf(edges)
        below = stats.norm.cdf(edges)
        probability = np.where(edges[1:] <= 0, np.diff(below), -np.diff(upper))
        found[f"bins, sums at {shift} of the grid"] = chi_square(seen, probability)
        total = int(seen.sum())
        for tail in TAILS:
            at = int(tail / GRID / BIN)
            for count, chance in (
                (int(seen[HALF + at :].sum()), upper[HALF + at]),
                (int(seen[: HALF - at].sum()), below[HALF - at]),
            ):
                expected = total * float(chance) * (tail < cut)
                two_sided = 2 * min(stats.poisson.cdf(count, expected), stats.poisson.sf(count - 1, expected))
                tails.append(min(1.0, float(two_sided)))
    found["tails"] = min(1.0, len(tails) * min(tails))
    found["lowest bits"] = chi_square(counts.low, np.full(LOW, 1 / LOW))
    scores = [abs(total) / math.sqrt(variance) for total, variance in counts.products.values()]
    found["products"] = min(1.0, len(scores) * 2 * float(stats.norm.sf(max(scores))))
    return found


def power(counts: Counts) -> dict[str, float]:
    """The least p that the tests give the same counts when the law, or independence, is off by a little."""
    small = 8 / math.sqrt(counts.numbers)
    related = Counts(counts.numbers, counts.bins, counts.low, {"lag 1": [1.2 * small * counts.numbers, counts.numbers]})
    uneven = counts.low.copy()
    uneven[::2] += int(2.5 * small * counts.numbers / LOW)
    odd = Counts(counts.numbers, counts.bins, uneven, counts.products)
    last = max(tail for tail in TAILS if counts.numbers * stats.norm.sf(tail) > 15)
    wrong = {
        f"deviation off by {3 * small:.1e}": judge(counts, std=1 + 3 * small),
        f"mean off by {3 * small:.1e}": judge(counts, mean=3 * small),
        f"no number beyond {last} deviations": judge(counts, cut=last),
        f"correlation of {1.2 * small:.1e} between neighbours": judge(related),
        f"even multiples more often by {2.5 * small:.1e}": judge(odd),
    }
    return {name: min(found.values()) for name, found in wrong.items()}


def walk(numbers: int) -> Counts:
    """Counts of at least so many numbers."""
    counts = Counts()
    for noise, shift, others in blocks(numbers):
        counts.see(noise, shift, others)
    return counts


def as_json(counts: Counts) -> dict[str, Any]:
    """Counts, what they are judged to be, and what the tests would have seen."""
    beyond = {
        str(tail): [
            int(sum(seen[HALF + int(tail / GRID / BIN) :].sum() for seen in counts.bins.values())),
            int(sum(seen[: HALF - int(tail / GRID / BIN)].sum() for seen in counts.bins.values())),
            round(counts.numbers * float(stats.norm.sf(tail)), 2),
        ]
        for tail in TAILS
    }
    return {
        "numbers": counts.numbers,
        "compiled": kernel() is not None,
        "threads": torch.get_num_threads(),
        "above, below, expected beyond": beyond,
        "p": judge(counts),
        "p when wrong": power(counts),
        "bins": {str(shift): seen.tolist() for shift, seen in counts.bins.items()},
        "low": counts.low.tolist(),
        "products": counts.products,
    }


def from_json(found: dict[str, Any]) -> Counts:
    """Counts back."""
    bins = {float(shift): np.array(seen) for shift, seen in found["bins"].items()}
    return Counts(found["numbers"], bins, np.array(found["low"]), found["products"])


def main() -> None:
    """Count and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numbers", type=lambda text: int(float(text)), default=10**10)
    RESULT.write_text(json.dumps(as_json(walk(parser.parse_args().numbers))) + "\n")


if __name__ == "__main__":
    main()
