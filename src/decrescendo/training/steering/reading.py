"""`Reading`: the telemetry of one step with its standard errors. It was released: it is public."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from decrescendo.clipping.telemetry import Telemetry
from decrescendo.errors import InvalidValue, check_instance, check_integer, check_real

# The number of steps over which curves are averaged to be shown.
WINDOW = 20
# The largest standard error of the clipped share with which all gradients are said to be clipped.
_SURE = 0.02
# A mean loss so near to the upper end, as a share of the range, is that of losses beyond it.
_NEAR = 0.1


@final
@dataclass(frozen=True, slots=True)
class Estimate:
    """A released number about the training data, with its standard error.

    Args:
        value: unbiased, and so not clamped to the range of what it estimates: an accuracy may come out above 1.
        standard_error: of ``value`` as an estimate of the mean over all examples of the data (strata with a rate of
            their own count by their rates): from the noise and from sampling the batch.
        noise_std: from the noise alone: of ``value`` about the batch's own mean.
        steps: the number of steps averaged, each with other weights of the model.

    >>> print(Estimate(1.25, 0.04, 0.03, steps=20))
    1.25 +- 0.04 (mean of 20 steps)
    """

    value: float
    standard_error: float
    noise_std: float
    steps: int = 1

    def __str__(self) -> str:
        over = "" if self.steps == 1 else f" (mean of {self.steps} steps)"
        return f"{self.value:.3g} +- {self.standard_error:.2g}{over}"


@final
@dataclass(frozen=True, slots=True)
class Reading:
    """The telemetry of one step. Everything in it was released.

    Args:
        telemetry: the settings.
        step: from 1 on.
        clip_norm: C_t.
        noise_multiplier: z_t.
        sample_rate: p_t; where examples take turns, B_t / N; of strata the mean over an expected batch.
        expected_batch_size: B_t; of truncated batches, how many rows are expected to be kept.
        coordinates: the number of entries of the noisy mean gradient; 0 if ``energy`` is not known.
        energy: the mean square of these entries over the noise variance: about 1 for noise alone.
        sums: the noisy coordinates of the telemetry, divided by ``expected_batch_size``.

    >>> reading = Reading(Telemetry(norms=2), 1, clip_norm=1.0, noise_multiplier=0.5, sample_rate=0.1,
    ...                   expected_batch_size=100.0, coordinates=0, energy=0.0, sums=(0.7 / 2**0.5, 0.2 / 2**0.5))
    >>> [round(share.value, 2) for share in reading.norms], reading.edges
    ([0.2, 0.7], (0.0, 0.5, 1.0))
    >>> round(reading.quantile(0.5), 2), round(reading.clipped.value, 2), reading.loss
    (0.55, 0.3, None)
    """

    telemetry: Telemetry
    step: int
    clip_norm: float
    noise_multiplier: float
    sample_rate: float
    expected_batch_size: float
    coordinates: int
    energy: float
    sums: tuple[float, ...]

    def __post_init__(self) -> None:
        check_instance("telemetry", self.telemetry, Telemetry)
        check_integer("step", self.step, at_least=1)
        for name in ("clip_norm", "noise_multiplier", "sample_rate", "expected_batch_size"):
            check_real(name, getattr(self, name), above=0)
        if len(self.sums) != self.telemetry.size:
            raise InvalidValue(
                f"sums must have a number for each coordinate, {self.telemetry.size}, got {len(self.sums)}"
            )

    @property
    def signal(self) -> Estimate | None:
        """The squared length of the batch's mean gradient divided by that of the noise: about 0 if there is
        only noise."""
        if not self.coordinates:
            return None
        value = self.energy - 1
        error = math.sqrt((2 + 4 * max(value, 0.0)) / self.coordinates)
        return Estimate(value, error, error)

    @property
    def gradient_limit(self) -> float:
        """The norm that gradients were clipped to; C_t if only norms are asked for."""
        return self.telemetry.gradient_limit(self.clip_norm)

    @property
    def edges(self) -> tuple[float, ...]:
        """The bin edges 0 = e_0 < .. < e_K of the norms, up to `gradient_limit`."""
        count = self.telemetry.norms
        return tuple(self.gradient_limit * k / count for k in range(count + 1)) if count else ()

    @property
    def norms(self) -> tuple[Estimate, ...]:
        """For each bin in ascending order: the share of examples with a clipped gradient norm of at most x,
        averaged over x from e_k to e_k+1. Examples without a finite gradient are in no bin."""
        unit, _ = self.telemetry.units(self.clip_norm)
        # ``sums`` begins with the bin of the largest norms.
        found = (self._estimate(total / unit, unit, 0.0) for total in self.sums[: self.telemetry.norms])
        return tuple(found)[::-1]

    @property
    def clipped(self) -> Estimate | None:
        """The share of examples above the middle of the last bin: slightly more than the share of clipped
        examples. ``None`` without norms."""
        if not self.telemetry.norms:
            return None
        unit, _ = self.telemetry.units(self.clip_norm)
        last = self._estimate(self.sums[0] / unit, unit, 0.0)
        return Estimate(1 - last.value, last.standard_error, last.noise_std)

    def quantile(self, share: float) -> float:
        """The norm that a ``share`` of the examples is below, interpolated linearly between bins; infinite if
        fewer are below `gradient_limit`."""
        check_real("share", share, above=0, below=1)
        edges, before, reached = self.edges, 0.0, 0.0
        middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
        start = 0.0
        for middle, found in zip(middles, self.norms, strict=True):
            reached = max(before, found.value)  # a distribution function does not fall
            if reached >= share:
                return start + (middle - start) * (share - before) / (reached - before)
            before, start = reached, middle
        return math.inf

    @property
    def loss(self) -> Estimate | None:
        """The mean loss; losses outside of ``loss_range`` count as its ends. ``None`` if it was not asked
        for."""
        low, high = self.telemetry.loss_range
        return self._scalar(0, low, high) if self.telemetry.loss else None

    @property
    def accuracy(self) -> Estimate | None:
        """The mean score; ``None`` if it was not asked for."""
        return self._scalar(int(self.telemetry.loss), 0.0, 1.0) if self.telemetry.accuracy else None

    def _scalar(self, place: int, low: float, high: float) -> Estimate:
        _, unit = self.telemetry.units(self.clip_norm)
        found = self._estimate(self.sums[self.telemetry.norms + place] / unit, unit, 0.25)
        wide = high - low
        return Estimate(low + wide * (0.5 + found.value), wide * found.standard_error, wide * found.noise_std)

    def _estimate(self, value: float, unit: float, square: float) -> Estimate:
        """A mean over the batch with its standard error. ``square`` bounds the mean square of the values; 0
        for shares, whose squares are at most the shares themselves."""
        noise = self.noise_multiplier * self.clip_norm / (unit * self.expected_batch_size)
        square = square or min(max(value, 0.0), 1.0)
        drawn = math.sqrt((1 - self.sample_rate) * square / self.expected_batch_size)
        return Estimate(value, math.hypot(noise, drawn), noise)

    def shown(self) -> dict["Curve", Estimate]:
        """The released numbers that are shown as curves: loss, accuracy, clipped share."""
        found: dict[Curve, Estimate | None] = {name: getattr(self, field) for name, field in _FIELDS.items()}
        return {name: estimate for name, estimate in found.items() if estimate is not None}


Curve = Literal["loss", "accuracy", "clipped_share"]
_FIELDS: dict[Curve, str] = {"loss": "loss", "accuracy": "accuracy", "clipped_share": "clipped"}


def smoothed(readings: Sequence[Reading], of: Curve = "loss", window: int = WINDOW) -> Estimate | None:
    """The mean over the last ``window`` steps, weighted by inverse noise variance: post-processing.

    ``None`` where there is no reading, or ``of`` was not asked for.

    >>> one = Reading(Telemetry(norms=0, accuracy=True), 1, 1.0, 1.0, 0.01, 100.0, 0, 0.0, (0.0,))
    >>> found = smoothed([one] * 4, "accuracy", window=4)
    >>> found.value, round(found.standard_error / one.accuracy.standard_error, 3), found.steps
    (0.5, 0.5, 4)
    """
    check_integer("window", window, at_least=1)
    found: list[Estimate | None] = [getattr(reading, _FIELDS[of]) for reading in readings[-window:]]
    estimates = [estimate for estimate in found if estimate is not None]
    if not estimates:
        return None
    # (Not by the standard errors: those of shares depend on the values, which would bias the mean.)
    least = min(estimate.noise_std for estimate in estimates)
    weights = [1.0 if e.noise_std == least else (least / e.noise_std) ** 2 for e in estimates]
    parts = [(weight / sum(weights), estimate) for weight, estimate in zip(weights, estimates, strict=True)]
    return Estimate(
        sum(part * estimate.value for part, estimate in parts),
        math.hypot(*(part * estimate.standard_error for part, estimate in parts)),
        math.hypot(*(part * estimate.noise_std for part, estimate in parts)),
        len(estimates),
    )


def remarks(readings: Sequence[Reading], window: int = WINDOW) -> tuple[str, ...]:
    """Warnings about a training that does not progress, from the last ``window`` steps, as text.

    >>> remarks([])
    ()
    """
    last = readings[-window:]
    if len(last) < window:
        return ()
    found: list[str] = []
    signals = [signal for reading in last if (signal := reading.signal) is not None]
    if len(signals) == window:
        error = math.hypot(*(signal.standard_error for signal in signals)) / window
        if sum(signal.value for signal in signals) / window < 2 * error:
            found.append(
                f"nothing is learned any more: the mean gradients of the last {window} steps cannot be told from their "
                "noise"
            )
    clipped = smoothed(readings, "clipped_share", window)
    if clipped is not None and clipped.standard_error < _SURE and clipped.value > 1 - 2 * _SURE:
        found.append(
            f"everything is clipped: nearly all gradients of the last {window} steps are longer than C_t, so their "
            "norms are not known"
        )
    loss, (low, high) = smoothed(readings, "loss", window), last[-1].telemetry.loss_range
    near = _NEAR * (high - low)
    if loss is not None and loss.standard_error < near and loss.value > high - near:
        found.append(
            f"losses are near or beyond the end of loss_range: all above {high:g} count as {high:g}. Give Telemetry a "
            "range that nearly all are in"
        )
    return tuple(found)


def as_row(reading: Reading) -> list[float]:
    """The numbers of a reading, for a file that stores its telemetry settings once."""
    about = (reading.clip_norm, reading.noise_multiplier, reading.sample_rate, reading.expected_batch_size)
    return [*about, reading.coordinates, reading.energy, *reading.sums]


def read(telemetry: Telemetry, rows: Sequence[Sequence[float]], first: int = 1) -> list[Reading]:
    """The readings of steps ``first``, ``first`` + 1, .. from the ``rows`` that `as_row` made."""
    found: list[Reading] = []
    for step, (clip_norm, noise, rate, batch, coordinates, energy, *sums) in enumerate(rows, start=first):
        about = (float(clip_norm), float(noise), float(rate), float(batch), int(coordinates), float(energy))
        found.append(Reading(telemetry, step, *about, tuple(map(float, sums))))
    return found


def telemetry_of(facts: Mapping[str, Any]) -> Telemetry:
    """The telemetry settings from the fields in a file."""
    low, high = facts["loss_range"]
    return Telemetry(facts["norms"], facts["loss"], facts["accuracy"], (low, high), facts["share"])
