"""What every test of a rule asks: the engine's norms and clipped sum are the slow loop's."""

from typing import Any

import torch
from clipping_cases import loss as classification
from torch import nn

from decrescendo.clipping import Engine, EngineSettings, Reference

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


def check_equal(
    model: nn.Module, batch: Any, dtype: torch.dtype, settings: EngineSettings, loss: Any = classification
) -> None:
    """Norms of every example and the clipped sum, half of the examples clipped."""
    tolerance = TOLERANCE[dtype]
    engine, reference = Engine(model, loss, settings), Reference(model, loss)
    norms, expected = engine.per_example_norms(batch), reference.per_example_norms(batch)
    torch.testing.assert_close(norms, expected, rtol=tolerance, atol=tolerance * float(expected.max()))
    limit = max(float(expected.median()), 1e-6)
    one, other = engine.clipped_sum(batch, limit), reference.clipped_sum(batch, limit)
    # Relative to what was added up: a sum may cancel to anything.
    scale = float(expected.clamp(max=limit).sum())
    assert one.gradients.keys() == other.gradients.keys()
    for name, gradient in other.gradients.items():
        error = float((one.gradients[name] - gradient).norm())
        assert error <= tolerance * scale, f"{name}: {error / scale:.1e}"
    assert (one.diagnostics.examples, one.diagnostics.nonfinite) == (other.diagnostics.examples, 0)
