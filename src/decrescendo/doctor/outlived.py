"""What a training remembers of a record beside what it released: gradients of later steps, compared."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from decrescendo.doctor.finding import Certainty, Finding
from decrescendo.doctor.neighbours import COUPLED, released

_ALIKE = 0.999  # a cosine


def outlived(folder: Path, at: tuple[str, int]) -> Iterator[Finding]:
    """Whether later gradients move with a record of an earlier batch although what was released of it is the same."""
    later = released(folder, "later")
    found = [held for role in COUPLED if (held := released(folder, role)) is not None]
    moved = max((_remembered(later, held) for held in found), default=0.0) if later is not None else 0.0
    if moved > 0:
        yield Finding(
            "bypass", Certainty.SUSPECTED,
            f"a record still moves the gradients of later steps, by {moved:.4g}, after its own step was made to "
            "release the same without it",
            "something else than the noisy gradient remembers the record (a residual, a sum or a moment of raw "
            "gradients that is not reset, a second optimiser): let only what is noised outlive a step", *at,
        )  # fmt: skip


def _remembered(later: dict[str, Any], coupled: dict[str, Any]) -> float:
    """By how much later gradients differ, where that is no share of what would have been released."""
    if later["few"] or later["others"] or later["release"].shape != coupled["release"].shape:
        return 0.0
    gap = later["release"] - coupled["release"]
    first, own = gap[: later["first"]], later["own"] - coupled["own"]
    # A loop that keeps the noisy sum itself, for a momentum of its own, was not given the same one.
    alike = len(first) == len(own) and abs(float(_cosine(first, own))) > _ALIKE
    return 0.0 if alike else float(gap.norm())


def _cosine(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return one @ other / (one.norm() * other.norm()).clamp_min(1e-300)
