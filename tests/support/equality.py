"""What every test of a rule asks: the engine's norms and clipped sum are the slow loop's, by whichever form."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from clipping_cases import loss as classification
from torch import nn

from decrescendo.base.batches import map_rows
from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.clipping.workspace import Workspace

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
# Gram matrices give a norm in float32 that is never short, by adding a bound on their rounding to it. Which form an
# operation takes is a matter of counted operations, so every test must hold for this one.
UPWARDS = {torch.float64: 1e-10, torch.float32: 3e-4}


def check_equal(
    model: nn.Module,
    batch: Any,
    dtype: torch.dtype,
    settings: EngineSettings,
    loss: Any = classification,
    *,
    widened: bool = False,
) -> None:
    """Norms of every example and the clipped sum, half of the examples clipped.

    ``widened``: against the reference in float64, where float32's own rounding of one example alone, which differs from
    processor to processor, can be more than the tolerance.
    """
    tolerance = TOLERANCE[dtype]
    engine, reference, given = Engine(model, loss, settings), Reference(model, loss), batch
    if widened:
        reference = Reference(copy.deepcopy(model).double(), loss)
        given = map_rows(lambda rows: rows.double() if rows.is_floating_point() else rows, batch)
    norms = engine.per_example_norms(batch)
    expected = reference.per_example_norms(given).to(norms.device).detach()
    least = tolerance * float(expected.max())
    assert bool((norms >= expected * (1 - tolerance) - least).all()), f"short: {norms - expected}"
    assert bool((norms <= expected * (1 + UPWARDS[dtype]) + least).all()), f"long: {norms - expected}"
    limit = max(float(expected.median()), 1e-6)
    one, other = engine.clipped_sum(batch, limit), reference.clipped_sum(given, limit)
    # Relative to what was added up: a sum may cancel to anything. A norm found too long makes its example shorter.
    scale, longer = float(expected.clamp(max=limit).sum()), float((norms - expected).clamp(min=0).sum())
    assert one.gradients.keys() == other.gradients.keys()
    for name, gradient in other.gradients.items():
        error = float((one.gradients[name] - gradient).norm())
        assert error <= tolerance * scale + longer, f"{name}: {error / scale:.1e}"
    assert (one.diagnostics.examples, one.diagnostics.nonfinite) == (other.diagnostics.examples, 0)


@contextmanager
def form(rank: int) -> Iterator[list[int]]:
    """Every operation takes the form of this rank among those it has (its last, if it has fewer), not the cheapest.

    Gives the number of forms of each operation that had a choice, as it is asked.
    """
    asked: list[int] = []
    choose = Workspace.choose

    def chosen(self: Workspace, cost: Mapping[str, float]) -> str:
        forms = sorted(cost, key=cost.__getitem__)
        asked.append(len(forms))
        return forms[min(rank, len(forms) - 1)]

    Workspace.choose = chosen
    try:
        yield asked
    finally:
        Workspace.choose = choose


def has_kernels(run: Callable[[], object]) -> bool:
    """Whether torch has what runs: oneDNN that is held to an old processor's instructions has no LSTM in bfloat16, and
    torch, which asks the processor itself, calls it all the same."""
    try:
        run()
    except RuntimeError as error:
        if "primitive" not in str(error):
            raise
        return False
    return True
