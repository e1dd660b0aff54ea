from typing import NamedTuple


class Gaussian(NamedTuple):
    noise_multiplier: float


def poisson(inner: Gaussian, sample_rate: float) -> tuple[Gaussian, float]:
    return inner, sample_rate
