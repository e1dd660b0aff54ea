"""`NoiseAware`, the protocol of optimisers that use the noise level of their gradient."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class NoiseAware(Protocol):
    """A ``torch.optim.Optimizer`` that `decrescendo.optim.apply` tells the noise of each gradient before it steps.

    The standard deviation is a public fact of the plan, z_t C_t / B: using it is post-processing.
    """

    def expect_noise(self, std: float | None) -> None:
        """The next gradient has independent Gaussian noise of this ``std`` on every coordinate; ``None``: unknown."""
        ...


def as_noise_aware(optimizer: object) -> NoiseAware | None:
    """``optimizer`` if it is `NoiseAware`, else ``None``."""
    several: tuple[object, ...] | None = getattr(optimizer, "optimizers", None)
    if isinstance(several, tuple) and not any(map(as_noise_aware, several)):
        return None  # `Several` without a `NoiseAware` one
    # (A protocol check takes long, and most optimisers have no such method.)
    if getattr(optimizer, "expect_noise", None) is None:
        return None
    return optimizer if isinstance(optimizer, NoiseAware) else None
