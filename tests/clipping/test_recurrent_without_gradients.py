"""Recurrent layers called without gradients are constants."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decrescendo.clipping import Engine, Reference


class TestRecurrentLayers:
    @pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
    @pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
    def test_without_gradients_they_are_constants(self, kind: Any, off: Any) -> None:
        """As a target from the model itself."""
        torch.manual_seed(0)
        model, x = kind(2, 3, batch_first=True), torch.randn(4, 3, 2)

        def loss(model: Any, batch: Tensor) -> Tensor:
            with off():
                target = model(batch)[0]
            return (model(batch * 0.5)[0] - target.clone()).square().sum((1, 2))

        found, expected = (kind_of(model, loss).clipped_sum(x, 0.5) for kind_of in (Engine, Reference))
        for name, total in expected.gradients.items():
            torch.testing.assert_close(found.gradients[name], total, rtol=1e-5, atol=1e-6)

    def test_in_half_precision_without_gradients(self) -> None:
        """Copies made in inference mode have no count of writes."""
        torch.manual_seed(0)
        model, x = nn.GRU(2, 3, batch_first=True).bfloat16(), torch.randn(4, 3, 2).bfloat16()

        def loss(model: Any, batch: Tensor) -> Tensor:
            with torch.inference_mode():
                model(batch)
            return model(batch)[0].float().square().sum((1, 2))

        assert Engine(model, loss).clipped_sum(x, 0.5).diagnostics.examples == 4
