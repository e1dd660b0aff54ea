"""Strategies of jax-privacy and opake, for `correlated.py`: in an environment of their own.

    pip install jax-privacy opake-dpftrl
    python benchmarks/correlated_peers.py results/correlated-peers.json

Each is a banded Toeplitz matrix with one noise multiplier for the run: jax-privacy's is optimised for a constant rate
without momentum, all that it offers for Toeplitz matrices; opake's for the workload of SGD (its momentum 1 is a sum
over all steps; rates are weights of iterates there).
"""

import json
import math
import sys
from pathlib import Path

STEPS, BANDS = 400, (2, 4, 8, 16, 32, 64)


def of_jax_privacy() -> dict[str, list[float]]:
    """Coefficients by number of bands."""
    import numpy as np
    from jax_privacy.matrix_factorization import toeplitz

    return {str(b): np.asarray(toeplitz.optimize_banded_toeplitz(STEPS, b)).tolist() for b in BANDS}


def of_opake(rates: list[float] | None) -> dict[str, list[float]]:
    """Coefficients by number of bands."""
    import torch
    from opake.api.dpftrl.noise._toeplitz import optimize

    weights = None if rates is None else torch.tensor(rates, dtype=torch.float64)
    whole = torch.ones(STEPS, dtype=torch.float64)
    return {str(b): optimize(STEPS, b, workload_coef=whole, query_weights=weights).tolist() for b in BANDS}


def main(path: str) -> None:
    """Write what is installed."""
    cosine = [(1 + math.cos(math.pi * t / STEPS)) / 2 for t in range(STEPS)]
    found: dict[str, dict[str, list[float]]] = {}
    for name, make in (
        ("jax-privacy", of_jax_privacy),
        ("opake", lambda: of_opake(None)),
        ("opake, rates", lambda: of_opake(cosine)),
    ):
        try:
            found[name] = make()
        except ImportError as error:
            print(f"{name}: {error}")
    Path(path).write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
