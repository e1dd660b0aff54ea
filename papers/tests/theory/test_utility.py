"""Du's utility terms: they bound what noisy training does, they add up, and their conditions are checked."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from decrescendo.accounting import clt_mu
from decrescendo.accounting.ledger import Ledger
from decrescendo.errors import InvalidValue
from decrescendo.plans import curves
from decrescendo_papers.theory.utility import (
    UtilityTerms,
    clt_noise_scale,
    noise_term,
    printed_d1,
    theorem_1,
    theorem_2,
)


def on_a_quadratic(seed: int) -> tuple[float, UtilityTerms, int]:
    """Mean squared gradient of noisy descent on L = sum h theta^2/2, exact, and the terms of Theorem 1."""
    rng = np.random.default_rng(seed)
    d, steps, n, p = int(rng.integers(1, 30)), int(rng.integers(1, 40)), int(rng.integers(1, 50)), 1.0
    h = np.exp(rng.uniform(-2, 0, d))
    eta = float(rng.uniform(0.01, 0.99))
    s = np.exp(rng.uniform(-1, 1, steps)) * n
    mean, variance = rng.normal(size=d), np.zeros(d)
    first, squared = float(h @ mean**2) / 2, []
    for std in s:
        squared.append(float(h**2 @ (mean**2 + variance)))
        mean, variance = (1 - eta * h) * mean, (1 - eta * h) ** 2 * variance + (eta * std / (p * n)) ** 2
    last = float(h @ (mean**2 + variance)) / 2
    terms = theorem_1(
        s,
        learning_rate=eta,
        smoothness=float(h.max()),
        loss_drop=first - last,
        squared_gradient=np.array(squared),
        clipped=np.zeros(steps),
        largest_gradient=10.0,
        dimension=d,
        sample_rate=p,
        examples=n,
    )
    return float(np.mean(squared)), terms, d


def test_theorem_1_holds_on_300_quadratics_and_without_the_dimension_it_does_not() -> None:
    violated = 0
    for seed in range(300):
        left, terms, d = on_a_quadratic(seed)
        assert left <= terms.total * (1 + 1e-9)
        violated += left > terms.total - terms.noise + terms.noise / d
    assert violated > 50


def test_theorem_1_holds_with_clipping_and_sampling() -> None:
    """Many runs of DP-SGD on the mean of points in the plane: clipped, sampled, noised; every term measured."""
    rng = np.random.default_rng(1)
    n, d, steps, runs, eta, p, clip = 20, 2, 15, 4_000, 0.3, 0.5, 1.0
    x = rng.normal(size=(n, d)) * 1.5
    theta, s = np.full((runs, d), 2.0), np.full(steps, 2.0)

    def loss(theta: np.ndarray) -> np.ndarray:
        return np.mean(np.sum((theta[:, None] - x) ** 2, axis=2), axis=1) / 2

    first, squared, clipped, left, largest = loss(theta).mean(), [], [], [], 0.0
    for std in s:
        each = theta[:, None] - x
        norm = np.linalg.norm(each, axis=2)
        largest = max(largest, float(norm.max()))
        full = np.linalg.norm(each.mean(axis=1), axis=1)
        left.append(float(np.mean(full**2)))
        clipped.append(float(np.mean(full * np.mean(norm > clip, axis=1))))
        each = each * np.minimum(1, clip / norm)[..., None]
        g = np.sum(each * (rng.random((runs, n, 1)) < p), axis=1) / (p * n)
        squared.append(float(np.mean(np.sum(g**2, axis=1))))
        theta = theta - eta * (g + std * rng.normal(size=theta.shape) / (p * n))
    terms = theorem_1(
        s,
        learning_rate=eta,
        smoothness=1.0,
        loss_drop=float(first - loss(theta).mean()),
        squared_gradient=squared,
        clipped=clipped,
        largest_gradient=largest,
        dimension=d,
        sample_rate=p,
        examples=n,
    )
    assert np.mean(left) <= terms.total
    assert terms.dominant == "bias"  # a clip norm this small: every gradient is cut
    assert terms.total == terms.progress + terms.gradient + terms.bias + terms.noise


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20), st.floats(0.01, 10))
def test_theorem_1_is_theorem_2_with_one_curvature(noise: list[float], smoothness: float) -> None:
    def both(curvature: object) -> tuple[UtilityTerms, UtilityTerms]:
        return (
            theorem_1(noise, smoothness=smoothness, learning_rate=0.1, loss_drop=1.0, squared_gradient=noise,
                      clipped=noise, largest_gradient=2.0, dimension=7, sample_rate=0.1, examples=50),
            theorem_2(noise, curvature=curvature, learning_rate=0.1, loss_drop=1.0, squared_gradient=noise,
                      clipped=noise, largest_gradient=2.0, dimension=7, sample_rate=0.1, examples=50),
        )  # fmt: skip

    one, two = both(np.full(len(noise), smoothness))
    assert one == two
    # The noise term is the printed D_1 times (Q eta d)/(2 p^2 N^2).
    factor = smoothness * 0.1 * 7 / (2 * 0.1**2 * 50**2)
    assert one.noise == pytest.approx(factor * printed_d1(noise), rel=1e-12)
    assert both(np.full(len(noise), 2 * smoothness))[1].noise == pytest.approx(2 * one.noise, rel=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_the_curvature_curve_minimises_the_noise_term_at_a_small_mu_budget(seed: int) -> None:
    """Du A.7, A.8 by a numerical optimiser: mu_t proportional to sqrt(C_t) Q_t^(1/4) under sum mu_t^2."""
    rng = np.random.default_rng(seed)
    steps = int(rng.integers(2, 7))
    clip, q = np.exp(rng.uniform(-1, 1, steps)), np.exp(rng.uniform(-1, 1, steps))

    def cost(log_mu: np.ndarray) -> float:
        mu = np.exp(log_mu) / np.sqrt(np.sum(np.exp(2 * log_mu)))
        return noise_term(clip / mu, learning_rate=0.1, curvature=q, dimension=5, sample_rate=0.1, examples=9)

    least = float(minimize(cost, np.zeros(steps), method="BFGS", options={"gtol": 1e-9}).fun)
    curve = curves.curvature(curves.from_array(clip), curves.from_array(q))(curves.progress(steps))
    assert cost(np.log(curve)) == pytest.approx(least, rel=1e-6)
    assert cost(np.log(curve)) <= least * (1 + 1e-12)


@given(st.floats(0.02, 0.25), st.floats(0.5, 2), st.floats(0.5, 2))
def test_corollary_2_stays_below_the_clt_total_it_aims_at(total_mu: float, rho_w: float, rho_c: float) -> None:
    u = curves.progress(500)
    w, c, p = rho_w**-u, rho_c**-u, 0.02
    scale = clt_noise_scale(w, c, sample_rate=p, total_mu=total_mu)
    assert scale.kind == "estimate"
    assert clt_mu(Ledger.of(scale.value * w / c, p)) < total_mu
    assert scale.value == pytest.approx(p / total_mu * math.sqrt(2 * np.sum(c**2 / w**2)), rel=1e-12)


def test_corollary_2_is_refused_where_mu_exceeds_one() -> None:
    with pytest.raises(InvalidValue, match=r"<= 1 at every step .* at step 1 of 2"):
        clt_noise_scale([1.0, 1.0], [1.0, 1.0], sample_rate=0.5, total_mu=2.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise_std": []}, "at least one step"),
        ({"noise_std": [1.0, -1.0]}, "noise_std must be >= 0"),
        ({"curvature": [1.0]}, "one value a step"),
        ({"squared_gradient": [1.0]}, "one value a step"),
        ({"clipped": [-1.0, 0.0]}, "clipped must be >= 0"),
        ({"learning_rate": 0.0}, "learning_rate must be > 0"),
        ({"sample_rate": 1.5}, "sample_rate must be > 0 and <= 1"),
        ({"dimension": 0}, "dimension must be >= 1"),
        ({"examples": 0}, "examples must be >= 1"),
        ({"largest_gradient": -1.0}, "largest_gradient must be >= 0"),
        ({"loss_drop": math.nan}, "loss_drop must be finite"),
    ],
)
def test_what_does_not_hold_is_named(change: dict[str, object], words: str) -> None:
    good = {
        "noise_std": [1.0, 1.0],
        "learning_rate": 0.1,
        "curvature": [1.0, 1.0],
        "loss_drop": 1.0,
        "squared_gradient": [1.0, 1.0],
        "clipped": [0.0, 0.0],
        "largest_gradient": 1.0,
        "dimension": 3,
        "sample_rate": 0.1,
        "examples": 10,
    }
    with pytest.raises(InvalidValue, match=words):
        theorem_2(**(good | change))  # type: ignore[arg-type]
