"""Noise that is correlated over the steps of a run: what one step adds, later ones take away in part.

Let h_t be the sum of step t over its clip norm, n_t its noise on the same scale, and S the plan's strategy, a lower
triangular matrix with b bands. The noise is n = S^-1 xi for standard normal xi, one coordinate like the other:

    n_t = alpha_t xi_t - sum_k c_{t,k} n_{t-k},    alpha_t = 1 / S[t,t],    c_{t,k} = S[t,t-k] / S[t,t],    0 < k < b

What is counted is the mechanism x_s = sum_t S[s,t] h_t + xi_s. Here everything is whole numbers of a public grid gamma:

    H_t = gamma round(h_t / gamma)
    n_t = gamma round((alpha_t xi_t - sum_k c_{t,k} n_{t-k}) / gamma)        the sum exact, xi_t real (`rng.rounded`)
    y_t = H_t + n_t                                                          released, times C_t / B_t

As H_t is a multiple of gamma, n_{t-k} = y_{t-k} - H_{t-k}, and alpha_t (S H)_t = H_t + sum_k c_{t,k} H_{t-k},

    y_t = gamma round((alpha_t ((S H)_t + xi_t) - sum_k c_{t,k} y_{t-k}) / gamma)

a function of x_t and of earlier outputs: post-processing of the mechanism that is counted, however the noise itself is
rounded. Rounding h_t to H_t adds at most gamma sqrt(d) to the sensitivity for d coordinates. So the noise is made
larger by as much, 1 + gamma sqrt(d): a part in some ten thousands for a million coordinates.
"""

import math
from collections.abc import Mapping
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from decrescendo.base.rng import Keystream, SecureStream, on_device
from decrescendo.base.rng.banded import grid_of, released, weighted
from decrescendo.base.rng.keystream import ReservedWords
from decrescendo.base.rng.rounded import add_gaussian
from decrescendo.errors import FileRefused, InvalidType, PlanViolation, check_integer
from decrescendo.optim.noise_drawing import NoiseStream, drawn_in_order, in_order, like, own_part
from decrescendo.plans.strategy import Strategy

# Coordinates worked on at once: what is between the walks over them stays in the cache.
_PIECE = {"cpu": 2**18, "cuda": 2**24}


@final
class CorrelatedNoise:
    """The noise of one run with several bands; it keeps that of the last b - 1 steps, which is as secret as the seed.

    Args:
        strategy: of the plan.
        records: N, how many a sum may have at most.
        on_host: whether earlier noise is kept in the host's memory where the sum is on a GPU: slower, and b - 1 times
            the trained parameters (4 bytes each) less on the GPU. The noise is the same.

    Attributes:
        bands: b.
        noise_multiplier: z_t, 1 over the norm of column t of S: what the release of step t must say.
        taken: steps whose noise was drawn; ``None`` after one that failed.
        grid: gamma, on the scale of h_t: a power of two.

    Edge cases:
        noise that was drawn for a step and not released (the release could not be written down) is not drawn again:
        the run goes on from a checkpoint.
    """

    def __init__(self, strategy: Strategy, records: int, *, on_host: bool = False) -> None:
        self.bands, steps = strategy.bands, range(strategy.steps)
        self._scale = np.array([strategy.scale(step) for step in steps])
        self._weights = np.array([strategy.weights(step) for step in steps])
        self._std, self.noise_multiplier = strategy.noise_std(), strategy.noise_multiplier
        self.grid = grid_of(float(self._std.max()), self._weights)
        self._records, self._on_host = check_integer("records", records, at_least=1), on_host
        self.taken: int | None = 0
        # In the order of the draws; of each name so many numbers are here.
        self._names: list[str] = []
        self._sizes: list[int] = []
        self._earlier: list[Tensor] = []  # in units of the grid; of step t at t mod (b - 1)

    def add(
        self,
        gradients: Mapping[str, Tensor],
        clip_norm: float,
        divisor: float,
        stream: NoiseStream,
        step: int,
    ) -> tuple[dict[str, Tensor], float]:
        """(sum + C n_t) / B for the step after ``step`` steps, and the standard deviation of its noise.

        Raises:
            InvalidType: a stream that gives no exact Gaussian.
            PlanViolation: another step than the next one, or other tensors than at the steps before.
        """
        if not isinstance(stream, Keystream | SecureStream):
            raise InvalidType(
                f"correlated noise must be drawn from a SecureStream or a Keystream, got {type(stream).__name__}"
            )
        if step != self.taken:
            raise PlanViolation(
                f"correlated noise must be drawn once for each step, in order, got step {step + 1} after "
                f"{'one that failed' if self.taken is None else self.taken}. Go on from a checkpoint"
            )
        names = in_order(gradients)
        sizes = [own_part(gradients[name])[0].numel() for name in names]
        if step and (names, sizes) != (self._names, self._sizes):
            raise PlanViolation(
                f"a run with correlated noise must train the same parameters at every step, got {len(names)} tensors "
                f"of {sum(sizes)} numbers after {len(self._names)} of {sum(self._sizes)}: what a step adds to one is "
                "taken away later. Freeze before the first step, or calibrate with bands=1"
            )
        self._names, self._sizes, self.taken = names, sizes, None  # until all of it is drawn
        count = sum(gradient.numel() for gradient in gradients.values())
        wider = 1 + math.sqrt(count) * (self.grid + self._records * 2.0**-51) + 2.0**-50
        std = float(self._scale[step] * wider / self.grid)
        on_gpu = not self._on_host and all(one.device.type == "cuda" for one in gradients.values())
        rows = self._rows(step, gradients[names[0]].device if on_gpu else torch.device("cpu"))
        unit = self.grid * clip_norm
        drawing = _Drawing(std, self._weights[step], rows, 1 / unit, unit / divisor)
        noisy = drawn_in_order(gradients, stream, drawing.add)
        self.taken = step + 1
        return noisy, float(self._std[step] * wider * clip_norm / divisor)

    def _rows(self, step: int, place: torch.device) -> list[Tensor]:
        """Where the noise of this step goes, and that of the steps before, the last one first."""
        kept = self.bands - 1
        self._earlier = [row.to(place) for row in self._earlier]
        if step < kept:
            self._earlier.append(torch.zeros(sum(self._sizes), dtype=torch.int32, device=place))
        return [self._earlier[(step - back) % kept] for back in range(min(step, kept) + 1)]

    def state(self, held: Mapping[str, Tensor]) -> dict[str, Any]:
        """What the noise to come depends on beside the stream; as secret as the seed.

        Args:
            held: parameters by name: noise of one that ranks hold in parts is given in such parts.
        """
        taken = self.taken
        if taken is None:
            raise PlanViolation(
                "the state of correlated noise must be of a whole step, got that of one that failed"
            )
        arrays: list[dict[str, Tensor]] = []
        for back in range(1, min(taken, self.bands - 1) + 1):
            parts = self._earlier[(taken - back) % (self.bands - 1)].split(self._sizes)
            arrays.append(
                {name: _shaped(held.get(name), part) for name, part in zip(self._names, parts, strict=True)}
            )
        return {"taken": taken, "grid": self.grid, "names": list(self._names), "earlier": arrays}

    def load_state(self, state: Mapping[str, Any], step: int) -> None:
        """Back to a `state` after ``step`` steps, of which each rank is given its own parts.

        Raises:
            FileRefused: the state of another run's noise.
        """
        taken, arrays = check_integer("taken", state["taken"]), state["earlier"]
        names, fits = list(state["names"]), (taken, state["grid"]) == (step, self.grid)
        if not fits or len(arrays) != min(taken, self.bands - 1) or any(names != list(one) for one in arrays):
            raise FileRefused(
                f"a checkpoint must hold the noise of the last {self.bands - 1} steps as it was drawn, got "
                f"{len(arrays)} arrays of {taken} steps after {step}. Go on from another checkpoint"
            )
        self.taken, self._names = taken, names
        self._sizes = [part.numel() for part in arrays[0].values()] if arrays else []
        rows = [torch.cat([part.reshape(-1) for part in one.values()]).to(torch.int32) for one in arrays]
        # Row t mod (b - 1) is that of step t; the state has the last step first.
        self._earlier = [rows[(taken - 1 - place) % len(rows)] for place in range(len(rows))]


def _shaped(held: Tensor | None, numbers: Tensor) -> Tensor:
    return like(held, numbers) if held is not None and hasattr(held, "device_mesh") else numbers


class _Drawing:
    """One step's noise, for one piece of its coordinates after another.

    Args:
        std: alpha_t, widened, in units of the grid.
        weights: c_{t,k}.
        rows: where this noise goes, and earlier noise, the last one first.
        per_unit: 1 over the value of a unit in the sum.
        back: what a unit is in the mean.
    """

    def __init__(
        self,
        std: float,
        weights: Float[np.ndarray, " earlier"],
        rows: list[Tensor],
        per_unit: float,
        back: float,
    ) -> None:
        self._std, self._rows, self._per_unit, self._back = std, rows, per_unit, back
        self._weights = weights[: len(rows) - 1]
        self._done = 0

    def add(self, values: Tensor, words: ReservedWords, *, fresh: bool) -> Tensor:
        """What is released of the next coordinates, whose sums are ``values``; to be called in the order of draws."""
        found = values if fresh else torch.empty_like(values)
        size = _PIECE.get(values.device.type, _PIECE["cpu"])
        for start in range(0, len(values), size):
            piece = values[start : start + size]
            rows = [row[self._done : self._done + len(piece)] for row in self._rows]
            self._piece(piece, found[start : start + size], rows, words.after(start))
            self._done += len(piece)
        return found

    def _piece(self, values: Tensor, found: Tensor, rows: list[Tensor], words: ReservedWords) -> None:
        kept, *earlier = rows
        if values.device.type == "cuda" and kept.device.type == "cuda":
            noise = torch.zeros(len(values), dtype=torch.float64, device=values.device)
            for weight, row in zip(self._weights.tolist(), earlier, strict=True):
                noise.sub_(row.to(values.device), alpha=weight)  # exact
        else:
            summed = weighted([row.numpy() for row in earlier], self._weights, len(values))
            noise = torch.from_numpy(summed).to(values.device)
        if values.device.type == "cuda":
            noise = on_device.add_gaussian(noise, self._std, words, step=1.0)
            kept.copy_(noise.to(torch.int32))
            found.copy_((values.double() * self._per_unit).round_().add_(noise).mul_(self._back))
            return
        drawn = noise.numpy()
        add_gaussian(drawn, self._std, words, out=drawn, step=1.0)
        released(drawn, values.numpy(), kept.numpy(), self._per_unit, self._back, found.numpy())
