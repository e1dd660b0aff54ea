"""The training loop: a step draws a batch, sums clipped gradients, adds noise, records the release, updates weights."""
