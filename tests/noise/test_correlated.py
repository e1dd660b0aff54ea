"""Correlated noise against S^-1 xi in whole numbers and fractions, and its law against S^-1 S^-T."""

import copy
import math
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
import torch
from banded_plans import strategy_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from decrescendo.base.rng import Keystream, SecureStream, banded, rounded, settling
from decrescendo.base.rng.banded import grid_of
from decrescendo.clipping import ClippedSum, Diagnostics
from decrescendo.errors import FileRefused, InvalidType, InvalidValue, PlanViolation
from decrescendo.optim import correlated as module
from decrescendo.optim.correlated import CorrelatedNoise
from decrescendo.optim.noise import NoisyMean, privatise
from decrescendo.plans import CyclicPoissonSampling, PoissonSampling
from decrescendo.plans.strategy import Strategy

KEY = bytes(range(32))
RECORDS = 40
Sums = dict[str, torch.Tensor]


def released(
    noise: CorrelatedNoise, strategy: Strategy, sums: Sums, step: int, stream: SecureStream | Keystream,
    clip: float = 0.5,
) -> NoisyMean:  # fmt: skip
    sampling = CyclicPoissonSampling(RECORDS, 4, strategy.bands).at(step)
    clipped = ClippedSum(sums, clip, Diagnostics(0, 0, 0, 0.0))
    return privatise(clipped, float(strategy.noise_multiplier[step]), sampling, stream, noise)


def dense(strategy: Strategy) -> list[list[Fraction]]:
    """S, exactly."""
    steps = range(strategy.steps)
    found = [[Fraction(0) for _ in steps] for _ in steps]
    for t in steps:
        for k in range(min(strategy.bands, strategy.steps - t)):
            found[t + k][t] = Fraction(float(strategy.matrix[k, t]))
    return found


def nearest(value: Fraction) -> int:
    """Ties to even, as floating point rounds."""
    return round(value)


def test_noise_beside_the_gradients_is_drawn_anew_at_each_step() -> None:
    """The stream moves once for several steps of correlated noise; beside them no number may come twice."""
    strategy = strategy_of(6, 4, 1.0)
    noise, stream, seen = CorrelatedNoise(strategy, RECORDS), SecureStream(KEY), list[float]()
    for step in range(6):
        sampling = CyclicPoissonSampling(RECORDS, 4, strategy.bands).at(step)
        clipped = ClippedSum({"w": torch.zeros(3)}, 0.5, Diagnostics(0, 0, 0, 0.0), torch.zeros(2, dtype=torch.float64))
        found = privatise(clipped, float(strategy.noise_multiplier[step]), sampling, stream, noise)
        assert found.extra_coordinates is not None
        seen += found.extra_coordinates.tolist()
    assert len(set(seen)) == 12


@pytest.mark.parametrize("bands", [2, 3])
def test_what_float64_leaves_open_is_settled_before_later_steps_read_it(bands: int) -> None:
    """A few in a million coordinates: against each step's Gaussian by itself, added to what all earlier rows say."""
    size, kept, weights = 500_000, bands - 1, np.array([0.75, 0.5])[: bands - 1]
    streams = [Keystream(KEY), Keystream(KEY)]
    rows, all_rows = np.zeros((kept, size), dtype=np.int32), list[np.ndarray]()
    for first in range(0, 3 * kept, kept):
        steps = range(first, first + kept)
        banded.draw(
            rows,
            [
                banded.Step(
                    2.0**25, weights[:t].copy(), streams[0].reserve(size), t % kept,
                    [(t - k) % kept for k in range(1, min(t, kept) + 1)],
                )
                for t in steps
            ],
        )  # fmt: skip
        for t in steps:
            total = np.zeros(size)
            for k in range(1, min(t, kept) + 1):
                total -= weights[k - 1] * all_rows[t - k]
            words = streams[1].reserve(size)
            drawn = words.reader(size)(0, size).copy()
            all_rows.append(settling.rounded_exactly(total, 2.0**25, 1.0, 1.0, drawn, words, np.arange(size)))
        assert all(np.array_equal(rows[t % kept], all_rows[t]) for t in steps)


class TestRecursion:
    """Each coordinate, each step: the very sum, in fractions, that the module's docstring says."""

    @given(
        st.integers(2, 5),
        st.integers(1, 9),
        st.floats(0.05, 20, allow_nan=False),
        st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=6),
    )
    @settings(max_examples=25, deadline=None)
    def test_every_output_is_the_rounded_release_of_the_mechanism_that_is_counted(
        self, bands: int, steps: int, scale: float, numbers: list[float]
    ) -> None:
        """y_t gamma^-1 = round((alpha_t ((S H)_t + xi_t) - sum_k c_{t,k} y_{t-k}) / gamma), with xi_t caught as it is
        drawn: as H_t is on the grid, adding it before or after rounding is the same."""
        strategy, sums = strategy_of(steps, bands, scale), torch.tensor(numbers)
        noise, stream, clip = CorrelatedNoise(strategy, RECORDS), SecureStream(KEY), 0.5
        gamma, matrix = Fraction(noise.grid), dense(strategy)
        assert math.frexp(noise.grid)[0] == 0.5
        before: list[tuple[list[Fraction], list[Fraction]]] = []  # H and y of each step
        drawn: list[tuple[np.ndarray, float]] = []  # what is under the Gaussian of each step, and its deviation

        def caught(sums: np.ndarray, out: np.ndarray, std: float, *more: object) -> object:
            add = rounded.adder(sums, out, std, *more)  # type: ignore[arg-type]

            def adding(*where: int) -> object:
                drawn.append((sums.copy(), std))
                return add(*where)

            return adding

        for step in range(steps):
            values = torch.roll(sums, step)
            with mock.patch.object(banded, "adder", caught):
                noisy = released(noise, strategy, {"w": values}, step, stream, clip)
            given, std = drawn[step]
            size = len(numbers)
            whole = [Fraction(nearest(Fraction(float(v) * (1 / (clip * noise.grid))))) * gamma for v in values]
            kept = noise._rows[step % (bands - 1)].tolist()
            out = [whole[i] + kept[i] * gamma for i in range(size)]
            for i in range(size):
                counted = sum((matrix[step][s] * before[s][0][i] for s in range(step)), Fraction(0))
                counted = whole[i] + counted / matrix[step][step]
                taken_off = sum(
                    (matrix[step][s] / matrix[step][step] * before[s][1][i] for s in range(step)), Fraction(0)
                )
                # What is under the Gaussian, and the release with it: one function of the other, exactly.
                assert Fraction(float(given[i])) * gamma == counted - whole[i] - taken_off
                assert float(noisy.gradients["w"][i]) == float(
                    np.float32(float(out[i] / gamma) * (noise.grid * clip / 4))
                )
            wider = 1 + math.sqrt(size) * (noise.grid + RECORDS * 2.0**-51)
            assert std * noise.grid >= strategy.scale(step) * wider
            assert std * noise.grid <= strategy.scale(step) * wider * (1 + 2.0**-49)
            before.append((whole, out))

    def test_what_is_added_is_the_gaussian_of_the_stream_rounded_once(self) -> None:
        """n_t = round(alpha xi - sum c n) on the grid, of the bits of a stream read by another program."""
        strategy, size = strategy_of(6, 4), 5
        noise, stream, again = CorrelatedNoise(strategy, RECORDS), SecureStream(KEY), SecureStream(KEY)
        earlier: list[np.ndarray] = []
        for step in range(6):
            released(noise, strategy, {"w": torch.zeros(size)}, step, stream)
            weights = strategy.weights(step)
            under = [
                -sum(
                    (Fraction(float(c)) * int(n[i]) for c, n in zip(weights, reversed(earlier), strict=False)),
                    Fraction(0),
                )
                for i in range(size)
            ]
            wider = 1 + math.sqrt(size) * (noise.grid + RECORDS * 2.0**-51) + 2.0**-50
            std = strategy.scale(step) * wider / noise.grid
            if step % 3 == 0:
                block = [again.reserve(size) for _ in range(3)]
            again.reserve(1)
            words = block[step % 3]
            bits = words.reader(size + 1)(0, size).copy()
            sums = np.array([float(v) for v in under])
            expected = settling.rounded_exactly(sums, std, 1.0, 1.0, bits, words, np.arange(size))
            assert noise._rows[step % 3].tolist() == expected.tolist()
            earlier.append(expected)

    @pytest.mark.parametrize("size", [1, 7, 5000, 70_000])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_compiled_walks_and_numpys_are_the_same(
        self, size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if banded.kernel() is None:
            pytest.skip("nothing is compiled here")
        strategy, sums = strategy_of(9, 6), torch.linspace(-3, 3, size, dtype=dtype)
        sums[0] = math.nan
        found = []
        for compiled in (True, False):
            with monkeypatch.context() as patch:
                if not compiled:
                    patch.setattr(banded, "kernel", lambda: None)
                noise, stream = CorrelatedNoise(strategy, RECORDS), SecureStream(KEY)
                found.append([released(noise, strategy, {"w": sums}, t, stream).gradients["w"] for t in range(9)])
        for one, other in zip(*found, strict=True):
            assert torch.equal(one[1:], other[1:])
            assert one[0].isnan()
            assert other[0].isnan()

    def test_bits_do_not_depend_on_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        strategy = strategy_of(8, 4)
        sums = {
            "b": torch.arange(12.0).reshape(3, 4).T,
            "a": torch.ones(5),
            "c": torch.ones(3, dtype=torch.float64),
        }
        found = []
        for piece in (2, 6, 2**18):
            monkeypatch.setattr(banded, "_CHUNK", piece)
            monkeypatch.setattr(banded, "_RELEASED", piece)
            noise, stream = CorrelatedNoise(strategy, RECORDS, on_host=piece == 6), SecureStream(KEY)
            found.append([released(noise, strategy, sums, step, stream).gradients for step in range(8)])
        for one, *others in zip(*found, strict=True):
            assert all(torch.equal(one[name], other[name]) for other in others for name in sums)

    def test_sums_are_left_as_they_were(self) -> None:
        strategy, sums = strategy_of(2, 2), {"a": torch.ones(5), "b": torch.ones(2, 3).T}
        released(CorrelatedNoise(strategy, RECORDS), strategy, sums, 0, SecureStream(KEY))
        assert torch.equal(sums["a"], torch.ones(5))
        assert torch.equal(sums["b"], torch.ones(3, 2))


class TestGrid:
    @given(
        st.floats(1e-6, 1e6),
        st.integers(1, 24),
        st.lists(st.integers(-(2**14), 2**14), min_size=1, max_size=20),
    )
    def test_sums_are_exact_in_float64(self, std: float, bits: int, weights: list[int]) -> None:
        """The largest sum that 64 standard deviations can make, in multiples of the weights' last digit."""
        row = np.array([weights]) / 2.0**bits
        try:
            gamma = grid_of(std, row)
        except InvalidValue:
            assert sum(map(abs, weights)) * 2**18 > 2**53
            return
        largest = math.floor(64 * std / gamma)
        assert math.frexp(gamma)[0] == 0.5
        assert largest <= 2**31
        assert sum(map(abs, weights)) * largest <= 2**53

    def test_weights_with_too_many_digits_are_refused(self) -> None:
        with pytest.raises(InvalidValue, match=r"noise weights must have few binary digits, got 5[0-9] behind"):
            grid_of(1.0, np.array([[1 / 3]]))

    def test_rounding_costs_little_for_a_million_parameters(self) -> None:
        noise = CorrelatedNoise(strategy_of(100, 16), 60_000)
        assert math.sqrt(1e6) * noise.grid < 1e-3


class TestLaw:
    """64,000 independent coordinates: the covariance of the noise of all steps is S^-1 S^-T."""

    STEPS, BANDS, SIZE = 6, 3, 64_000

    def _p_value(self, given: Strategy, drawn: Strategy) -> float:
        """x = S y is white, if y is noise by S: a chi-square of all entries of its covariance."""
        noise, stream = CorrelatedNoise(drawn, RECORDS), SecureStream(KEY)
        seen = np.array([
            released(noise, drawn, {"w": torch.zeros(self.SIZE, dtype=torch.float64)}, t, stream).gradients["w"].numpy()
            for t in range(self.STEPS)
        ]) * (4 / 0.5)  # fmt: skip
        matrix = np.array([[float(v) for v in row] for row in dense(given)])
        white = matrix @ seen
        covariance = white @ white.T / self.SIZE - np.eye(self.STEPS)
        z = covariance / np.sqrt((1 + np.eye(self.STEPS)) / self.SIZE)
        values = z[np.triu_indices(self.STEPS)]
        return float(stats.chi2.sf(values @ values, len(values)))

    def test_released_noise_has_the_planned_covariance(self) -> None:
        strategy = strategy_of(self.STEPS, self.BANDS)
        assert self._p_value(strategy, strategy) > 1e-4

    @pytest.mark.parametrize("change", ["scale", "weight", "a band too many", "a band too few"])
    def test_and_the_test_sees_a_change_of_three_per_cent(self, change: str) -> None:
        strategy = strategy_of(self.STEPS, self.BANDS)
        matrix = strategy.matrix.copy()
        if change == "scale":
            matrix *= 1.03
        elif change == "weight":
            matrix[1] *= 1.03
        elif change == "a band too many":
            matrix = np.vstack([matrix, 0.3 * np.r_[matrix[0, :-3], np.zeros(3)]])
        else:
            matrix = matrix[:-1]
        assert self._p_value(strategy, Strategy.rounded(matrix)) < 1e-8

    def test_the_mean_says_its_noise(self) -> None:
        strategy = strategy_of(self.STEPS, self.BANDS)
        inverse = np.linalg.inv(np.array([[float(v) for v in row] for row in dense(strategy)]))
        noise, stream = CorrelatedNoise(strategy, RECORDS), SecureStream(KEY)
        for step in range(self.STEPS):
            found = released(noise, strategy, {"w": torch.zeros(9)}, step, stream).noise_std
            assert found == pytest.approx(np.linalg.norm(inverse[step]) * 0.5 / 4, rel=1e-5)


class TestState:
    @given(st.integers(2, 5), st.integers(1, 9), st.integers(0, 9))
    @settings(max_examples=20, deadline=None)
    def test_goes_on_from_a_state_to_the_bit(self, bands: int, steps: int, stop: int) -> None:
        stop = min(stop, steps)
        strategy, sums = (
            strategy_of(steps, bands),
            {"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.float64)},
        )
        noise, stream = CorrelatedNoise(strategy, RECORDS), SecureStream(KEY)
        for step in range(stop):
            released(noise, strategy, sums, step, stream)
        state, place = copy.deepcopy(noise.state({})), stream.position
        expected = [released(noise, strategy, sums, step, stream).gradients for step in range(stop, steps)]
        other, again = CorrelatedNoise(strategy, RECORDS), SecureStream(KEY, place)
        other.load_state(state, stop)
        found = [released(other, strategy, sums, step, again).gradients for step in range(stop, steps)]
        for one, two in zip(expected, found, strict=True):
            assert all(torch.equal(one[name], two[name]) for name in sums)

    def test_a_step_that_is_skipped_leaves_the_others_as_they_are(self) -> None:
        strategy, sums = strategy_of(7, 4), {"w": torch.ones(5)}
        every, some = (CorrelatedNoise(strategy, RECORDS) for _ in range(2))
        one, other = SecureStream(KEY), SecureStream(KEY)
        for step in range(7):
            expected = released(every, strategy, sums, step, one).gradients["w"]
            if step in (1, 2, 4, 5):
                some.skip(step, other)
            else:
                assert torch.equal(released(some, strategy, sums, step, other).gradients["w"], expected)

    def test_the_stream_is_at_another_place_at_each_step(self) -> None:
        """Noise beside the gradients' is keyed by that place: twice the same would be the same noise."""
        strategy, stream, places = strategy_of(9, 5), SecureStream(KEY), list[int]()
        noise = CorrelatedNoise(strategy, RECORDS)
        for step in range(9):
            places.append(stream.position)
            released(noise, strategy, {"w": torch.zeros(3)}, step, stream)
        assert len(set(places)) == 9

    def test_it_is_b_less_one_arrays_of_four_bytes_a_parameter(self) -> None:
        strategy = strategy_of(20, 5)
        noise, stream = CorrelatedNoise(strategy, RECORDS), SecureStream(KEY)
        for step in range(20):
            released(noise, strategy, {"w": torch.zeros(100)}, step, stream)
        assert noise._rows.nbytes == 4 * 100 * 4

    @pytest.mark.parametrize("change", [{"taken": 2}, {"grid": 1.0}, {"rows": []}])
    def test_a_state_of_another_run_is_refused(self, change: dict[str, object]) -> None:
        strategy = strategy_of(5, 3)
        noise, stream = CorrelatedNoise(strategy, RECORDS), SecureStream(KEY)
        for step in range(3):
            released(noise, strategy, {"w": torch.zeros(3)}, step, stream)
        with pytest.raises(FileRefused, match="must hold the noise of 2 steps as it was drawn"):
            CorrelatedNoise(strategy, RECORDS).load_state({**noise.state({}), **change}, 3)


class TestRefusals:
    def setup_method(self) -> None:
        self.strategy, self.stream = strategy_of(5, 3), SecureStream(KEY)
        self.noise, self.sums = CorrelatedNoise(self.strategy, RECORDS), {"w": torch.zeros(3)}

    def test_each_step_once_and_in_order(self) -> None:
        released(self.noise, self.strategy, self.sums, 0, self.stream)
        for step in (0, 2):
            with pytest.raises(PlanViolation, match=f"once at each step, in order, got step {step + 1} after 1"):
                released(self.noise, self.strategy, self.sums, step, self.stream)

    def test_not_after_one_that_failed(self) -> None:
        with (
            mock.patch.object(module.banded, "draw", side_effect=KeyboardInterrupt),
            pytest.raises(KeyboardInterrupt),
        ):
            released(self.noise, self.strategy, self.sums, 0, self.stream)
        with pytest.raises(PlanViolation, match="got step 1 after one that failed"):
            released(self.noise, self.strategy, self.sums, 0, self.stream)
        with pytest.raises(PlanViolation, match="of a whole step"):
            self.noise.state({})

    @pytest.mark.parametrize("sums", [{"w": torch.zeros(4)}, {"v": torch.zeros(3)}, {"w": torch.zeros(3).double()}])
    def test_other_parameters_than_before(self, sums: Sums) -> None:
        released(self.noise, self.strategy, {"w": torch.zeros(3), "v": torch.zeros(1)}, 0, self.stream)
        with pytest.raises(PlanViolation, match="must train the same parameters at every step"):
            released(self.noise, self.strategy, sums, 1, self.stream)

    def test_a_stream_without_exact_noise(self) -> None:
        with pytest.raises(InvalidType, match="from a SecureStream or a Keystream, got Generator"):
            released(self.noise, self.strategy, self.sums, 0, torch.Generator())  # type: ignore[arg-type]

    def test_a_release_that_says_more_noise_than_is_drawn(self) -> None:
        sampling, z = CyclicPoissonSampling(RECORDS, 4, 3), float(self.strategy.noise_multiplier[0])
        clipped = ClippedSum(self.sums, 0.5, Diagnostics(0, 0, 0, 0.0))
        with pytest.raises(InvalidValue, match="must not say more noise than is drawn"):
            privatise(clipped, z * (1 + 1e-9), sampling, self.stream, self.noise)

    def test_sampling_in_turns_and_correlated_noise_come_together(self) -> None:
        clipped = ClippedSum(self.sums, 0.5, Diagnostics(0, 0, 0, 0.0))
        turns = CyclicPoissonSampling(RECORDS, 4, 3)
        with pytest.raises(InvalidValue, match="must be of one plan, got bands=3 and independent noise"):
            privatise(clipped, 1.0, turns, self.stream)
        for sampling in (PoissonSampling(RECORDS, 4), CyclicPoissonSampling(RECORDS, 4, 2)):
            with pytest.raises(InvalidValue, match=r"must be of one plan, got bands=[12] and noise of 3 bands"):
                privatise(clipped, 1.0, sampling, self.stream, self.noise)
