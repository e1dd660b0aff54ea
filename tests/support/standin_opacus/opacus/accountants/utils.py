from decrescendo import Budget, PoissonSampling, calibrate


def get_noise_multiplier(
    *, target_epsilon: float, target_delta: float, sample_rate: float, epochs: int = 0, steps: int = 0
) -> float:
    sampling = PoissonSampling(10_000, round(10_000 * sample_rate))
    steps = steps or int(epochs / sample_rate)
    plan = calibrate(Budget(target_epsilon, target_delta), sampling, steps=steps, clip=1.0)
    return float(plan.ledger.noise_multiplier[0])
