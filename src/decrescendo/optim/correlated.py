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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from decrescendo.base.rng import Keystream, SecureStream, banded, on_device
from decrescendo.base.rng.banded import Step, grid_of, released
from decrescendo.clipping.clipped import accumulator
from decrescendo.errors import FileRefused, InvalidType, PlanViolation, check_integer
from decrescendo.optim.noise_drawing import DTYPES, NoiseStream, like, own_part
from decrescendo.plans.strategy import Strategy

# Coordinates that are drawn on a GPU at once.
_PIECE = 2**24


@dataclass(frozen=True, slots=True)
class _Segment:
    """A run of this rank's coordinates: ``count``, from index ``first`` of all coordinates of the same dtype."""

    dtype: torch.dtype
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which coordinates there are, in the order of draws: tensors of float32 by name, then those of float64.

    Args:
        names: of the tensors.
        own: how many numbers of each are on this rank.
        totals: coordinates of each dtype, on all ranks.
        segments: this rank's coordinates.
    """

    names: tuple[str, ...]
    own: tuple[int, ...]
    totals: tuple[int, ...]
    segments: tuple[_Segment, ...]

    @classmethod
    def of(cls, gradients: Mapping[str, Tensor]) -> "_Layout":
        names, own, totals, segments = list[str](), list[int](), list[int](), list[_Segment]()
        for dtype in DTYPES:
            count = 0
            for name in sorted(gradients):
                if accumulator(gradients[name].dtype) != dtype:
                    continue
                here, before = own_part(gradients[name])
                last, first = segments[-1] if segments else None, count + before
                if last is not None and last.dtype == dtype and last.first + last.count == first:
                    segments[-1] = _Segment(dtype, last.first, last.count + here.numel())
                else:
                    segments.append(_Segment(dtype, first, here.numel()))
                names.append(name)
                own.append(here.numel())
                count += gradients[name].numel()
            totals.append(count)
        return cls(tuple(names), tuple(own), tuple(totals), tuple(segments))


@final
class CorrelatedNoise:
    """The noise of one run with several bands; it keeps b - 1 steps of it, which are as secret as the seed.

    The noise of b - 1 steps is drawn at once, at the first of them: each coordinate for all of these steps while the
    earlier noise that it depends on is in the cache. No noise is overwritten until the next draw, which needs just
    these b - 1 steps.

    Args:
        strategy: of the plan.
        records: N, how many a sum may have at most.
        on_host: whether noise is kept in the host's memory where all sums are on a GPU: b - 1 times the trained
            parameters (4 bytes each) less on the GPU, and slower. The noise is the same.

    Attributes:
        bands: b.
        noise_multiplier: z_t, 1 over the norm of column t of S: what the release of step t must say.
        taken: steps whose noise was added or skipped; ``None`` after one that failed.
        grid: gamma, on the scale of h_t: a power of two.

    Edge cases:
        noise that was added at a step and not released (the release could not be written down) is not added again: the
        run goes on from a checkpoint.
    """

    def __init__(self, strategy: Strategy, records: int, *, on_host: bool = False) -> None:
        self.bands, steps = strategy.bands, range(strategy.steps)
        self._scale = [strategy.scale(step) for step in steps]
        self._weights = np.array([strategy.weights(step) for step in steps])
        self._std, self.noise_multiplier = strategy.noise_std(), strategy.noise_multiplier
        self.grid = grid_of(float(self._std.max()), self._weights)
        self._records, self._on_host = check_integer("records", records, at_least=1), on_host
        self.taken: int | None = 0
        self._drawn = 0
        self._layout: _Layout | None = None
        # Names and sizes of the tensors whose noise is stored: all that a checkpoint has of the layout.
        self._stored: tuple[tuple[str, ...], tuple[int, ...]] = (), ()
        self._rows = torch.zeros(0, 0, dtype=torch.int32)  # in units of the grid; of step t at t mod (b - 1)

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
        self._check_next(step)
        layout = _Layout.of(gradients)
        if self._layout is None:
            if self._drawn and self._stored != (layout.names, layout.own):
                raise FileRefused(
                    "a checkpoint must hold the noise of the parameters that are trained, got that of "
                    f"{len(self._stored[0])} tensors of {sum(self._stored[1])} numbers for {len(layout.names)} of "
                    f"{sum(layout.own)}"
                )
            self._layout, self._stored = layout, (layout.names, layout.own)
        elif layout != self._layout:
            raise PlanViolation(
                f"a run with correlated noise must train the same parameters at every step, got {len(layout.names)} "
                f"tensors of {sum(layout.own)} numbers after {len(self._layout.names)} of {sum(self._layout.own)}: "
                "what a step adds to one is taken away later. Freeze before the first step, or calibrate with bands=1"
            )
        self.taken = None  # until all of it is added
        on_gpu = all(gradient.device.type == "cuda" for gradient in gradients.values())
        device = next(iter(gradients.values())).device if on_gpu else torch.device("cpu")
        self._keep_on(torch.device("cpu") if self._on_host else device)
        while self._drawn <= step:
            self._draw(stream, device)
        stream.reserve(1)  # telemetry's noise is keyed by the stream's position, which must be another at each step
        row, unit = self._rows[step % (self.bands - 1)], self.grid * clip_norm
        parts = dict(zip(layout.names, row.split(layout.own), strict=True))
        noisy = {
            name: like(gradient, _released(own_part(gradient)[0], parts[name], 1 / unit, unit / divisor))
            for name, gradient in gradients.items()
        }
        self.taken = step + 1
        return noisy, float(self._std[step] * self.wider * clip_norm / divisor)

    def skip(self, step: int, stream: Keystream | SecureStream) -> None:
        """Note that the step after ``step`` steps releases nothing: later steps still depend on its noise."""
        self._check_next(step)
        stream.reserve(1)
        self.taken = step + 1

    def _check_next(self, step: int) -> None:
        if step != self.taken:
            raise PlanViolation(
                f"correlated noise must be added once at each step, in order, got step {step + 1} after "
                f"{'one that failed' if self.taken is None else self.taken}. Go on from a checkpoint"
            )

    @property
    def wider(self) -> float:
        """The factor on the noise that pays for rounding sums to the grid: by half a unit, and by float64's rounding
        before, on each coordinate."""
        assert self._layout is not None
        count = sum(self._layout.totals)
        return 1 + math.sqrt(count) * (self.grid + self._records * 2.0**-51) + 2.0**-50

    def _keep_on(self, place: torch.device) -> None:
        assert self._layout is not None
        size, kept = sum(self._layout.own), min(self.bands - 1, len(self._scale))
        if not len(self._rows):
            self._rows = torch.zeros(kept, size, dtype=torch.int32, device=place)
        self._rows = self._rows.to(place)

    def _draw(self, stream: Keystream | SecureStream, device: torch.device) -> None:
        """The noise of the next b - 1 steps, or of those that are left."""
        assert self._layout is not None
        kept, layout = self.bands - 1, self._layout
        steps = range(self._drawn, min(self._drawn + kept, len(self._scale)))
        reserved = [[stream.reserve(total) for total in layout.totals] for _ in steps]
        done = 0
        for segment in layout.segments:
            rows = self._rows[:, done : done + segment.count]
            plan = [
                Step(
                    self._scale[step] * self.wider / self.grid,
                    np.ascontiguousarray(self._weights[step, :step]),
                    words[DTYPES.index(segment.dtype)].after(segment.first),
                    step % kept,
                    [(step - back) % kept for back in range(1, min(step, kept) + 1)],
                )
                for step, words in zip(steps, reserved, strict=True)
            ]
            if device.type == "cuda":
                _draw_on_gpu(rows, plan, device)
            else:
                banded.draw(rows.numpy(), plan)
            done += segment.count
        self._drawn = steps.stop

    def state(self, held: Mapping[str, Tensor]) -> dict[str, Any]:
        """The state on which later noise depends, beside the stream; as secret as the seed.

        Args:
            held: parameters by name: noise of a sharded one is sharded alike.
        """
        if self.taken is None:
            raise PlanViolation("the state of correlated noise must be of a whole step, got that of one that failed")
        names, own = self._stored
        rows = [dict(zip(names, row.split(own), strict=True)) for row in self._rows]
        return {
            "taken": self.taken,
            "drawn": self._drawn,
            "grid": self.grid,
            "rows": [{name: _shaped(held.get(name), part) for name, part in row.items()} for row in rows],
        }

    def load_state(self, state: Mapping[str, Any], step: int) -> None:
        """Restore a `state` after ``step`` steps; each rank is given its own parts of it.

        Raises:
            FileRefused: the state of another run's noise.
        """
        rows, kept = state["rows"], min(self.bands - 1, len(self._scale))
        drawn = check_integer("drawn", state["drawn"])
        fits = state["taken"] == step and state["grid"] == self.grid
        if not fits or len(rows) != (kept if drawn else 0) or len({tuple(row) for row in rows}) > 1:
            raise FileRefused(
                f"a checkpoint must hold the noise of {kept} steps as it was drawn, got {len(rows)} arrays after "
                f"{state['taken']} of {step} steps. Go on from another checkpoint"
            )
        self.taken, self._drawn = step, drawn
        self._rows = torch.zeros(0, 0, dtype=torch.int32)
        if rows:
            self._stored = tuple(rows[0]), tuple(part.numel() for part in rows[0].values())
            self._rows = torch.stack([torch.cat([part.reshape(-1) for part in row.values()]) for row in rows])


def _shaped(held: Tensor | None, numbers: Tensor) -> Tensor:
    return like(held, numbers) if held is not None and hasattr(held, "device_mesh") else numbers


def _released(values: Tensor, noise: Tensor, per_unit: float, back: float) -> Tensor:
    """(round(``values`` ``per_unit``) + ``noise``) ``back``, at least float32."""
    values = values.contiguous().resolve_neg().to(accumulator(values.dtype))
    if values.device.type == "cuda":
        whole = (values.double() * per_unit).round_()
        return whole.add_(noise.to(values.device)).mul_(back).to(values.dtype)
    return torch.from_numpy(released(noise.numpy(), values.cpu().numpy(), per_unit, back))


def _draw_on_gpu(rows: Tensor, steps: Sequence[Step], device: torch.device) -> None:
    """`banded.draw` by operations of torch, piece by piece; ``rows`` may be on the host."""
    for start in range(0, rows.shape[1], _PIECE):
        here = rows[:, start : start + _PIECE].to(device)
        for step in steps:
            noise = torch.zeros(here.shape[1], dtype=torch.float64, device=device)
            for weight, k in zip(step.weights.tolist(), step.earlier, strict=True):
                noise.sub_(here[k], alpha=weight)  # exact
            here[step.row] = on_device.add_gaussian(noise, step.std, step.words.after(start), step=1.0)
        rows[:, start : start + _PIECE] = here
