"""Random losses whose expected excess risk under noisy training is known: exactly, or by many runs."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from decrescendo_papers.theory.problem import Problem

Vector = np.ndarray


def constants(rng: np.random.Generator, m: float, M: float, f_1: float, d: int) -> Problem:
    """Constants that fit; G is the scale of the noise, here no smaller than the first gradient must be."""
    return Problem(
        pl=m,
        smoothness=M,
        lipschitz=float(np.sqrt(2 * m * f_1) * np.exp(rng.uniform(0, 2))),
        examples=int(rng.integers(1, 200)),
        dimension=d,
        initial_excess=f_1,
        total=float(np.exp(rng.uniform(-2, 2))),
    )


def schedule(rng: np.random.Generator, steps: int, total: float) -> Vector:
    """Any positive z_t with sum 1/z_t^2 = R."""
    share = rng.dirichlet(np.full(steps, rng.choice([0.3, 1.0, 10.0])))
    return 1 / np.sqrt(total * np.maximum(share, 1e-6))


@dataclass(frozen=True)
class Quadratic:
    """f = sum_k h_k theta_k^2/2, with m = min h, M = max h, f* = 0."""

    h: Vector
    start: Vector
    problem: Problem

    @classmethod
    def draw(cls, rng: np.random.Generator) -> "Quadratic":
        d = int(rng.integers(1, 7))
        h = np.exp(rng.uniform(0, rng.choice([0.0, 1.0, 3.0]), d)) * np.exp(rng.uniform(-2, 2))
        start = rng.normal(size=d)
        f_1 = float(h @ start**2) / 2
        return cls(h, start, constants(rng, h.min(), h.max(), f_1, d))

    def gradient_descent(self, rate: Vector, noise_std: Vector) -> float:
        """E f after steps with noise of these standard deviations on the mean gradient: exact, by mean and variance."""
        mean, variance = self.start.copy(), np.zeros_like(self.start)
        for eta, std in zip(rate, noise_std, strict=True):
            keep = 1 - eta * self.h
            mean, variance = keep * mean, keep**2 * variance + (eta * std) ** 2
        return float(self.h @ (mean**2 + variance)) / 2

    def momentum(self, rate: float, beta: float, noise_std: Vector) -> tuple[float, Vector]:
        """E f at the end and E|v_{t+1}|^2 for every step: exact, by mean and covariance of (theta, v)."""
        d = self.h.size
        mean = np.stack([self.start, np.zeros(d)], axis=1)
        covariance = np.zeros((d, 2, 2))
        squares = []
        for t, std in enumerate(noise_std, start=1):
            step = rate / (1 - beta**t)
            A = np.empty((d, 2, 2))
            A[:, 0, 0], A[:, 0, 1] = 1 - step * (1 - beta) * self.h, -step * beta
            A[:, 1, 0], A[:, 1, 1] = (1 - beta) * self.h, beta
            n = np.array([-step * (1 - beta), 1 - beta]) * std
            mean = np.einsum("dij,dj->di", A, mean)
            covariance = A @ covariance @ A.transpose(0, 2, 1) + np.outer(n, n)
            squares.append(float((mean[:, 1] ** 2 + covariance[:, 1, 1]).sum()))
        excess = float(self.h @ (mean[:, 0] ** 2 + covariance[:, 0, 0])) / 2
        return excess, np.array(squares)


@dataclass(frozen=True)
class Wavy:
    """f = sum_k w_k (x_k^2 + a_k sin^2 x_k): PL, not convex for a > 1; f* = 0."""

    a: Vector
    w: Vector
    start: Vector
    problem: Problem

    @classmethod
    def draw(cls, rng: np.random.Generator) -> "Wavy":
        d = int(rng.integers(1, 3))
        a, w = rng.uniform(1.5, 3.5, d), np.exp(rng.uniform(-1, 1, d))
        start = rng.uniform(-3, 3, d)
        x = np.linspace(1e-4, 60, 400_000)
        m = min(
            float(np.min(wk * (2 * x + ak * np.sin(2 * x)) ** 2 / (2 * (x**2 + ak * np.sin(x) ** 2))))
            for ak, wk in zip(a, w, strict=True)
        )
        f_1 = float(w @ (start**2 + a * np.sin(start) ** 2))
        return cls(a, w, start, constants(rng, m * (1 - 1e-6), float(np.max(w * (2 + 2 * a))), f_1, d))

    def gradient_descent(self, rate: Vector, noise_std: Vector) -> float:
        """E f at the end: the density of each coordinate followed on a grid, Gaussian step by Gaussian step."""
        return sum(self._coordinate(*one, rate, noise_std) for one in zip(self.a, self.w, self.start, strict=True))

    @staticmethod
    def _coordinate(a: float, w: float, start: float, rate: Vector, noise_std: Vector) -> float:
        std = rate * noise_std
        reach = abs(start) + 2 + 8 * float(np.sqrt(np.sum(std**2)))
        x = np.linspace(-reach, reach, int(2 * reach / (std.min() / 6)) + 1)
        width = x[1] - x[0]

        def moved(x: Vector, eta: float) -> Vector:
            return x - eta * w * (2 * x + a * np.sin(2 * x))

        def bell(gap: Vector, s: float) -> Vector:
            return np.exp(-(gap**2) / (2 * s**2)) / np.sqrt(2 * np.pi) / s

        density = bell(x - moved(np.array(start), rate[0]), std[0])
        for eta, s in zip(rate[1:], std[1:], strict=True):
            density = bell(x[:, None] - moved(x, eta)[None, :], s) @ density * width
        assert abs(density.sum() * width - 1) < 1e-6  # the grid holds all of it
        return float(np.sum(density * w * (x**2 + a * np.sin(x) ** 2)) * width)


@dataclass(frozen=True)
class Logistic:
    """Logistic regression with an L2 penalty: strongly convex; E f by the mean over many runs."""

    x: Vector
    penalty: float
    optimum: float
    start: Vector
    problem: Problem

    @classmethod
    def draw(cls, rng: np.random.Generator) -> "Logistic":
        n, d = int(rng.integers(20, 60)), 3
        x = rng.normal(size=(n, d)) + rng.normal(size=d)  # rows times labels
        penalty = float(np.exp(rng.uniform(-3, 0)))
        start = rng.normal(size=d) * 3

        def loss(theta: Vector) -> float:
            return float(np.mean(np.logaddexp(0, -x @ theta)) + penalty / 2 * theta @ theta)

        best = minimize(loss, np.zeros(d), tol=1e-12).fun
        M = penalty + float(np.linalg.eigvalsh(x.T @ x / n).max()) / 4
        problem = constants(rng, penalty, M, loss(start) - best, d)
        problem = Problem(
            problem.pl, problem.smoothness, problem.lipschitz, n, d, problem.initial_excess, problem.total
        )
        return cls(x, penalty, best, start, problem)

    def run(
        self,
        rng: np.random.Generator,
        rate: float,
        beta: float,
        noise_std: Vector,
        sample_rate: float,
        runs: int,
    ) -> tuple[float, float]:
        """Mean excess risk and its standard error; the sum over a Poisson batch is divided by p N; beta 0 is plain."""
        theta = np.tile(self.start, (runs, 1))
        v = np.zeros_like(theta)
        n = len(self.x)
        for t, std in enumerate(noise_std, start=1):
            slope = 1 / (1 + np.exp(theta @ self.x.T))
            chosen = rng.random((runs, n)) < sample_rate
            gradient = -(chosen * slope) @ self.x / (sample_rate * n) + self.penalty * theta
            v = beta * v + (1 - beta) * (gradient + std * rng.normal(size=theta.shape))
            theta = theta - rate * v / (1 - beta**t)
        loss = np.mean(np.logaddexp(0, -theta @ self.x.T), axis=1) + self.penalty / 2 * np.sum(theta**2, axis=1)
        excess = loss - self.optimum
        return float(excess.mean()), float(excess.std() / np.sqrt(runs))
