"""The columns of a ledger, one number for each release, and what they say in words."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from decrescendo.accounting.release import Release


class Columns(NamedTuple):
    """One number for each release, as the fields of `Release`."""

    sample_rate: Float[np.ndarray, " n"]
    noise_multiplier: Float[np.ndarray, " n"]
    counts: Int[np.ndarray, " n"]
    overflow: Float[np.ndarray, " n"]
    steps_per_epoch: Int[np.ndarray, " n"]
    bands: Int[np.ndarray, " n"]
    step: Int[np.ndarray, " n"]


def columns_of(releases: Sequence[Release]) -> Columns:
    """The columns of some releases."""
    return Columns(
        np.array([r.sample_rate for r in releases], dtype=np.float64),
        np.array([r.noise_multiplier for r in releases], dtype=np.float64),
        np.array([r.count for r in releases], dtype=np.int64),
        np.array([r.overflow for r in releases], dtype=np.float64),
        np.array([r.steps_per_epoch for r in releases], dtype=np.int64),
        np.array([r.bands for r in releases], dtype=np.int64),
        np.array([r.step for r in releases], dtype=np.int64),
    )


def text_of(columns: Columns) -> str:
    """A ledger in one line."""
    if not columns.counts.size:
        return "Ledger(empty)"

    def span(column: np.ndarray) -> str:
        low, high = float(column.min()), float(column.max())
        return f"{low:.4g}" if low == high else f"{low:.4g}..{high:.4g}"

    epochs, bands = columns.steps_per_epoch, columns.bands
    return (
        f"Ledger({columns.counts.sum()} releases, sample_rate {span(columns.sample_rate)}, "
        f"noise_multiplier {span(columns.noise_multiplier)}"
        + (f", each record once in {span(epochs)} steps" if epochs.any() else "")
        + (f", records in {span(bands)} groups that take turns" if (bands > 1).any() else "")
        + (f", batches cut: overflow {span(columns.overflow)})" if columns.overflow.any() else ")")
    )
