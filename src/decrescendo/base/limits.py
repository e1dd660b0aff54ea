"""Bounds that plans and engines must agree on: what is planned can be trained."""

# Of clip norms: squares of float32 vanish below.
SMALLEST_CLIP_NORM = 1e-12
