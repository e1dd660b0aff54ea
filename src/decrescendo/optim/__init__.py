"""What happens to a noisy mean: post-processing, which costs no privacy."""

from decrescendo.optim.apply import apply

__all__ = ["apply"]
