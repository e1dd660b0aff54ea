"""Bounds that plans and engines share, so that every plan can be trained."""

# The smallest clip norm: below, squares underflow in float32.
SMALLEST_CLIP_NORM = 1e-12
