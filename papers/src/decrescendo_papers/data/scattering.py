"""Scattering coefficients: features of images from fixed wavelets, learned from no data.

Bruna and Mallat, *Invariant Scattering Convolution Networks* (2013). Tramer and Boneh, *Differentially Private
Learning Needs Better Features* (2021), train linear models on them with DP-SGD.
"""

import functools
import math
from dataclasses import replace

import torch
from jaxtyping import Complex64, Complex128, Float32
from torch import Tensor

from decrescendo.errors import InvalidValue, check_integer
from decrescendo_papers.data.dataset import Dataset
from decrescendo_papers.data.enlarged import enlarged_digits

ANGLES = 8
SIGMAS, FREQUENCIES = (0.8, 1.6), (0.75 * math.pi, 0.375 * math.pi)  # of the fine and of the coarse wavelets
GRID = 4  # coefficients lie on every fourth pixel
GROUPS, CHUNK = 27, 250
PUBLIC = 12_000


def scattered(data: Dataset) -> Dataset:
    """The same data with coefficients in place of pixels, which takes minutes for tens of thousands of images.

    In each image the coefficients of three neighbouring paths have mean 0 and variance 1 (group normalisation without
    weights): every image by itself, so that no row depends on another.

    Args:
        data: grey images, inputs of shape (rows, 1, height, width).

    Raises:
        InvalidValue: another shape, or sides that are no multiples of 4, or below 8.

    >>> pixels, targets = torch.rand(2, 1, 8, 8), torch.tensor([0, 1])
    >>> scattered(Dataset("toy", pixels, targets, pixels, targets, classes=2))
    Dataset(toy, scattered: 2 train, 2 test, 2 classes, inputs 324)
    """

    def features(inputs: Float32[Tensor, "rows 1 height width"]) -> Float32[Tensor, "rows features"]:
        pixels = inputs.mul(data.std).add_(data.mean)
        found = [torch.nn.functional.group_norm(coefficients(each), GROUPS) for each in pixels.split(CHUNK)]
        return torch.cat([each.flatten(1) for each in found])

    return replace(
        data, name=f"{data.name}, scattered", train_inputs=features(data.train_inputs),
        test_inputs=features(data.test_inputs), scale=1.0, mean=0.0, std=1.0,
    )  # fmt: skip


def whitened(data: Dataset) -> Dataset:
    """The same data with coefficients, as `scattered` has them, whitened in part by those of public digits.

    A row x becomes W (x - m) with W = k (S + tr(S) / d I)^(-1/4): m and S are mean and covariance of the d coefficients
    of scikit-learn's written digits, enlarged and deformed (`enlarged_digits`), of `PUBLIC` images; k makes theirs
    sqrt(d) / 2 long in the root mean square. Nothing of ``data`` goes into m, S or k. Two thirds of the energy of
    the digits' coefficients are in their mean, and most of the rest in a few directions: of gradients that are clipped,
    with noise of one size in all directions, the others would get little.

    Args:
        data: images of 1x28x28.

    Raises:
        InvalidValue: images of another shape.
        MissingExtra: scikit-learn is not installed.
    """
    mean, turned = _whitening()

    def features(inputs: Float32[Tensor, "rows features"]) -> Float32[Tensor, "rows features"]:
        if inputs.shape[1:] != mean.shape:
            raise InvalidValue(f"images must be of 1x28x28, got {inputs.shape[1]} coefficients each")
        return torch.cat([(part - mean) @ turned for part in inputs.split(CHUNK)])

    found = scattered(data)
    return replace(
        found, name=f"{data.name}, whitened", train_inputs=features(found.train_inputs),
        test_inputs=features(found.test_inputs),
    )  # fmt: skip


@functools.cache
def _whitening() -> tuple[Float32[Tensor, " features"], Float32[Tensor, "features features"]]:
    """m and W of `whitened`."""
    rows = scattered(enlarged_digits(PUBLIC)).train_inputs.double()
    mean = rows.mean(dim=0)
    covariance = (rows - mean).T @ (rows - mean) / len(rows)
    values, vectors = torch.linalg.eigh(covariance)
    values = values.clamp(min=0)
    scales = (values + values.mean()) ** -0.25
    scales *= math.sqrt(len(values)) / 2 / (values * scales**2).sum().sqrt()
    return mean.float(), ((vectors * scales) @ vectors.T).float()


def coefficients(
    images: Float32[Tensor, "rows 1 height width"],
) -> Float32[Tensor, "rows 81 height4 width4"]:
    """Local means of images, of the moduli of their wavelet transforms, and of those of these moduli.

    With x an image, psi a wavelet at one of 8 angles and phi a Gaussian: x * phi, then |x * psi| * phi for the 8 fine
    and the 8 coarse psi, then ||x * psi| * psi'| * phi for the 64 pairs of a fine psi and a coarse psi'. Images are
    mirrored 4 pixels beyond their borders. What coarse wavelets find is kept on every second pixel.

    Args:
        images: of any values; sides multiples of 4, at least 8.

    Raises:
        InvalidValue: another shape, or sides that are not.

    >>> coefficients(torch.rand(3, 1, 28, 28)).shape
    torch.Size([3, 81, 7, 7])
    """
    if images.dim() != 4 or images.shape[1] != 1:
        raise InvalidValue(f"images must be grey, of shape (rows, 1, height, width), got {tuple(images.shape)}")
    for name, side in (("height", images.shape[2]), ("width", images.shape[3])):
        if check_integer(name, side, at_least=2 * GRID) % GRID:
            raise InvalidValue(f"{name} must be a multiple of {GRID}, got {side}")
    padded = torch.nn.functional.pad(images, (GRID,) * 4, mode="reflect")
    fine, coarse = (_wavelets(*padded.shape[2:], scale) for scale in range(2))
    spectrum = torch.fft.fft2(padded)
    first = _moduli(spectrum, fine)
    pairs = [_moduli(each, coarse, every=2) for each in torch.fft.fft2(first).split(1, dim=1)]
    halved = torch.cat([_moduli(spectrum, coarse, every=2), *pairs], dim=1)
    return torch.cat([_local_means(padded), _local_means(first), _local_means(halved, every=2)], dim=1)


def _moduli(
    spectrum: Complex64[Tensor, "rows 1 height width"],
    filters: Float32[Tensor, "angles height width"],
    *,
    every: int = 1,
) -> Float32[Tensor, "rows angles height2 width2"]:
    """|x * psi|, of the spectrum of x and that of psi, on every so many-th pixel in both directions."""
    found = spectrum * filters
    if every > 1:
        # Pixels left out are frequencies laid over each other.
        found = found.unflatten(2, (every, -1)).mean(dim=2).unflatten(3, (every, -1)).mean(dim=3)
    return torch.fft.ifft2(found).abs()


def _local_means(
    images: Float32[Tensor, "rows paths height width"], every: int = 1
) -> Float32[Tensor, "rows paths height4 width4"]:
    """x * phi on the grid without the border; the Gaussian phi is a product of one a direction."""
    down, across = (_weights(side, every) for side in images.shape[2:])
    return down @ images @ across.T


@functools.cache
def _weights(side: int, every: int) -> Float32[Tensor, "grid side"]:
    """Of ``side`` samples, ``every`` pixels apart and repeated for ever, in the mean around each point of the grid."""
    at = torch.arange(GRID, side * every - GRID, GRID, dtype=torch.float64)
    periods = torch.arange(-2, 3) * side * every
    away = at[:, None, None] - every * torch.arange(side)[:, None] - periods
    sigma = SIGMAS[-1]
    density = torch.exp(-(away**2) / (2 * sigma**2)) / math.sqrt(2 * math.pi * sigma**2)
    return every * density.sum(dim=2).float()


@functools.cache
def _wavelets(height: int, width: int, scale: int) -> Float32[Tensor, "angles height width"]:
    """Fourier transforms of the wavelets at all angles; real, as each is its own mirror image, conjugated."""
    angles = [math.pi * (3 - angle) / ANGLES for angle in range(ANGLES)]
    found = [_morlet(height, width, SIGMAS[scale], FREQUENCIES[scale], angle) for angle in angles]
    return torch.fft.fft2(torch.stack(found)).real.float()


def _morlet(
    height: int, width: int, sigma: float, frequency: float, angle: float
) -> Complex128[Tensor, "height width"]:
    """A Gaussian, longer across the wave than along it, times a wave, less what gives it a mean; periodic."""
    rows, columns = (torch.arange(-2 * side, 3 * side, dtype=torch.float64) for side in (height, width))
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    along, across = y * math.cos(angle) + x * math.sin(angle), x * math.cos(angle) - y * math.sin(angle)
    slant = 4 / ANGLES
    envelope = torch.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2)) * slant / (2 * math.pi * sigma**2)
    wave = torch.polar(envelope, frequency * along)
    wavelet = wave - wave.sum() / envelope.sum() * envelope
    return wavelet.unflatten(0, (5, height)).unflatten(2, (5, width)).sum(dim=(0, 2))
