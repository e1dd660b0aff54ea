"""Scattering coefficients against convolutions written out, and by their properties."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from decrescendo.errors import InvalidValue
from decrescendo_papers.data import Dataset, enlarged_digits, scattered, whitened
from decrescendo_papers.data.scattering import PUBLIC, coefficients

SIDE = 12


def images(rows: int, side: int = SIDE) -> Tensor:
    return torch.rand(rows, 1, side, side, generator=torch.Generator().manual_seed(0))


def gabor(y: int, x: int, sigma: float, frequency: float, angle: float, slant: float) -> complex:
    along, across = y * math.cos(angle) + x * math.sin(angle), x * math.cos(angle) - y * math.sin(angle)
    size = math.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2)) * slant / (2 * math.pi * sigma**2)
    return size * complex(math.cos(frequency * along), math.sin(frequency * along))


def spread(sigma: float, frequency: float, angle: float, slant: float) -> np.ndarray:
    """All of a filter that is not zero in double precision, around its middle."""
    reach = range(-32, 33)
    return np.array([[gabor(y, x, sigma, frequency, angle, slant) for x in reach] for y in reach])


def convolved(image: np.ndarray, filter_: np.ndarray) -> np.ndarray:
    """Of an image that is repeated for ever: one product after the other."""
    found = np.zeros(image.shape, dtype=complex)
    for dy in range(-32, 33):
        for dx in range(-32, 33):
            found += filter_[dy + 32, dx + 32] * np.roll(image, (dy, dx), (0, 1))
    return found


def wavelet(scale: int, angle: int) -> np.ndarray:
    sigma, turn = 0.8 * 2**scale, math.pi * (3 - angle) / 8
    wave, envelope = (spread(sigma, each, turn, 0.5) for each in (0.75 * math.pi / 2**scale, 0.0))
    return wave - wave.sum() / envelope.sum() * envelope


def test_paths_are_convolutions_moduli_and_means() -> None:
    """One image's x, one first path of each scale and one pair, at full resolution and without any transform."""
    image = images(1)
    x = np.pad(image[0, 0].double().numpy(), 4, mode="reflect")
    phi = spread(1.6, 0.0, 0.0, 1.0)
    fine, coarse, pair = (1, 3), (9, 6), (17 + 3 * 8 + 6, None)

    def mean(values: np.ndarray) -> np.ndarray:
        return convolved(values, phi).real[4:-4:4, 4:-4:4]

    modulus = abs(convolved(x, wavelet(0, 3)))
    expected = {
        0: mean(x),
        fine[0] + fine[1]: mean(modulus),
        coarse[0] + coarse[1]: mean(abs(convolved(x, wavelet(1, 6)))),
        pair[0]: mean(abs(convolved(modulus, wavelet(1, 6)))),
    }
    found = coefficients(image)[0]
    # What coarse wavelets find is averaged over every second pixel, which the reference does not do.
    for path, tolerance in zip(expected, (1e-6, 1e-6, 2e-3, 5e-4), strict=True):
        np.testing.assert_allclose(found[path], expected[path], atol=tolerance, err_msg=f"path {path}")


@given(st.integers(1, 3), st.floats(0.1, 10), st.integers(0, 100))
def test_no_image_changes_another_and_scale_passes_through(rows: int, factor: float, seed: int) -> None:
    pixels = torch.rand(rows + 1, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    found = coefficients(pixels)
    torch.testing.assert_close(found[:1], coefficients(pixels[:1]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(coefficients(factor * pixels), factor * found, rtol=1e-3, atol=1e-5 * factor)


def test_a_constant_image_has_no_waves() -> None:
    found = coefficients(torch.full((1, 1, 16, 16), 3.0))
    torch.testing.assert_close(found[:, 0], torch.full((1, 4, 4), 3.0), rtol=1e-4, atol=0)
    assert float(found[:, 1:].abs().max()) < 1e-4


def test_turning_an_image_by_a_quarter_turns_the_angles() -> None:
    image = images(1, 16)
    found, turned = coefficients(image)[0], coefficients(torch.rot90(image, 1, (2, 3)))[0]
    # Means over the grid: the grid is turned with the image.
    first, other = found[1:9].mean(dim=(1, 2)), turned[1:9].mean(dim=(1, 2))
    torch.testing.assert_close(other, first.roll(4), rtol=0.05, atol=1e-3)
    assert float((other - first).abs().max()) > 0.002


@pytest.mark.parametrize(
    ("shape", "words"),
    [((1, 1, 28, 30), "width"), ((1, 1, 4, 8), "height"), ((2, 3, 28, 28), "grey"), ((2, 28, 28), "grey")],
)
def test_other_shapes_are_refused(shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        coefficients(torch.zeros(shape))


def test_features_are_normalised_in_each_image_and_undo_the_declared_constants() -> None:
    pixels, targets = images(3), torch.tensor([0, 1, 0])
    plain = Dataset("toy", pixels, targets, pixels[:1], targets[:1], classes=2)
    moved = Dataset(
        "toy",
        (pixels - 0.2) / 0.5,
        targets,
        (pixels[:1] - 0.2) / 0.5,
        targets[:1],
        classes=2,
        mean=0.2,
        std=0.5,
    )
    found = scattered(plain)
    groups = found.train_inputs.reshape(3, 27, -1)
    torch.testing.assert_close(groups.mean(2), torch.zeros(3, 27), rtol=0, atol=1e-5)
    assert float(groups.var(2, unbiased=False).max()) <= 1.0 + 1e-4
    torch.testing.assert_close(scattered(moved).train_inputs, found.train_inputs, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(found.test_inputs, found.train_inputs[:1])


@pytest.mark.slow
def test_whitened_rows_are_the_same_function_of_each_image() -> None:
    """By the definition: the fourth power of W is the inverse of S + tr(S) / d I, up to a number."""
    pixels, targets = images(3, 28), torch.tensor([0, 1, 0])
    data = Dataset("toy", pixels, targets, pixels[:1], targets[:1], classes=2)
    rows, found = scattered(data).train_inputs.double(), whitened(data)
    public = scattered(enlarged_digits(PUBLIC)).train_inputs.double()
    mean, spread = public.mean(0), public.T.cov(correction=0)
    shrunk = spread + spread.trace() / len(mean) * torch.eye(len(mean)).double()
    values, vectors = torch.linalg.eigh(torch.linalg.inv(shrunk))
    turned = (vectors * values**0.25) @ vectors.T
    expected, lengths = (rows - mean) @ turned, ((public - mean) @ turned).square().sum(1).mean().sqrt()
    expected *= math.sqrt(len(mean)) / 2 / lengths
    torch.testing.assert_close(found.train_inputs, expected.float(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.test_inputs, found.train_inputs[:1])
    one = whitened(Dataset("toy", pixels[1:2], targets[:1], pixels[:1], targets[:1], classes=2))
    torch.testing.assert_close(one.train_inputs[0], found.train_inputs[1])
