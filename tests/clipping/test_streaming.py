"""Output gradients that are used when they arrive: the same results, nothing kept alive, nothing missed."""

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.clipping import passes as passes_module
from decrescendo.clipping.streaming import check_arrived, stream
from decrescendo.errors import UnsupportedModel


class Deep(nn.Module):
    """Normalisations, a convolution and linear layers, each with something trainable behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LayerNorm(6)
        self.conv = nn.Conv1d(4, 4, 3, padding=1)
        self.second = nn.GroupNorm(2, 4)
        self.wide = nn.Linear(6, 3)
        self.idle = nn.Linear(3, 3)
        self.out = nn.Linear(12, 2)

    def forward(self, rows: Tensor) -> Tensor:
        hidden = torch.relu_(self.second(self.conv(self.first(rows))))
        hidden = self.wide(hidden)
        self.idle(hidden)
        return self.out(hidden.flatten(1))


def loss(model: nn.Module, rows: Tensor) -> Tensor:
    """Not linear in the output."""
    return model(rows).square().sum(1)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()) + 1e-12)


@pytest.mark.parametrize("inputs_with_gradients", [False, True])
@pytest.mark.parametrize("kept", [0, 2**24])
@pytest.mark.parametrize("poisoned", [False, True])
def test_the_sum_is_the_reference(inputs_with_gradients: bool, kept: int, poisoned: bool) -> None:
    torch.manual_seed(0)
    model, rows = Deep(), torch.randn(7, 4, 6)
    if poisoned:
        rows[2, 1, 3] = float("nan")
    rows.requires_grad_(inputs_with_gradients)
    engine, slow = Engine(model, loss, EngineSettings(cache_bytes=kept)), Reference(model, loss)
    found, expected = engine.clipped_sum(rows, 0.5), slow.clipped_sum(rows, 0.5)
    assert found.diagnostics.nonfinite == int(poisoned)
    for name, gradient in expected.gradients.items():
        close(found.gradients[name], gradient)


def test_hooks_take_all_but_the_first_operation() -> None:
    model, rows = Deep(), torch.randn(5, 4, 6)
    seen = Engine(model, loss).checked_pass(rows)
    with stream(seen.uses, seen.tracer, wide=False) as arrivals:
        taken = {seen.uses[index].parameters[0].roots[0] for index in arrivals}
    norms = {"second.weight", "second.bias"}
    assert taken == {"conv.weight", "wide.weight", "idle.weight", "out.weight", *norms}


def test_nothing_of_a_pass_stays_alive() -> None:
    """A hook that holds the node it hangs on would never be freed, garbage collector or not."""

    class Mark:
        pass

    model, kept = Deep(), []

    def watched(model: nn.Module, rows: Tensor) -> Tensor:
        losses = loss(model, rows)
        node, mark = losses.grad_fn, Mark()
        while node.next_functions and node.next_functions[0][0] is not None:
            node.metadata["mark"] = mark
            node = node.next_functions[0][0]
        kept.append(weakref.ref(mark))
        return losses

    engine = Engine(model, watched)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            engine.clipped_sum(torch.randn(5, 4, 6), 1.0)
        assert len(kept) >= 3
        assert not any(reference() for reference in kept)
    finally:
        gc.enable()


def test_a_gradient_that_does_not_come_is_an_error_not_a_zero() -> None:
    model, rows = Deep(), torch.randn(5, 4, 6)
    seen = Engine(model, loss).checked_pass(rows)
    with stream(seen.uses, seen.tracer, wide=False) as arrivals:
        pass
    with pytest.raises(UnsupportedModel, match="must come in the backward pass"):
        check_arrived(list(arrivals.values()), {use.edge.node for use in seen.uses})


def test_a_pass_that_fails_takes_its_hooks_away(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = Deep(), torch.randn(5, 4, 6)
    engine = Engine(model, loss)
    engine.clipped_sum(rows, 1.0)

    def fail(*_: object) -> None:
        raise MemoryError

    original = passes_module.output_gradients
    monkeypatch.setattr(passes_module, "output_gradients", fail)
    with pytest.raises(MemoryError):
        engine.clipped_sum(rows, 1.0)
    monkeypatch.setattr(passes_module, "output_gradients", original)
    close(
        engine.clipped_sum(rows, 1.0).gradients["out.weight"],
        Reference(model, loss).clipped_sum(rows, 1.0).gradients["out.weight"],
    )
