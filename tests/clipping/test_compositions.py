"""Random models that mix the rules, against the slow loop."""

from collections.abc import Callable
from typing import Any

import torch
from clipping_cases import loss
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from decrescendo.clipping import Engine, EngineSettings, Reference

WIDTH = 4
# Blocks from (batch, length, 4) to the same.
BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "linear without bias": lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    "conv": lambda: Turned(nn.Conv1d(WIDTH, WIDTH, 3, padding="same", groups=2)),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "rms norm": lambda: nn.RMSNorm(WIDTH),
    "group norm": lambda: Turned(nn.GroupNorm(2, WIDTH)),
    "relu": lambda: nn.ReLU(inplace=True),
    "gelu": lambda: nn.GELU(),
    "scale": lambda: Scale(),
    "prelu": lambda: Turned(nn.PReLU(WIDTH)),
    "dropped": lambda: nn.Dropout(0.5).eval(),
}


class Turned(nn.Module):
    """A module for channels first."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


class Scale(nn.Module):
    """A learned scale and shift, in place on a fresh tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.shift = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale).add_(self.shift)


class Mixed(nn.Module):
    """Blocks in any order, each perhaps used again and perhaps frozen, with residuals and a tied table."""

    def __init__(self, plan: list[tuple[str, bool, bool, bool]], table: bool, tie: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(9, WIDTH) if table else None
        self.blocks = nn.ModuleList(BLOCKS[name]() for name, *_ in plan)
        self.plan = plan
        self.head = nn.Linear(WIDTH, 9)
        if table and tie:
            self.head.weight = self.table.weight
        for block, (_, frozen, _, _) in zip(self.blocks, plan, strict=True):
            for parameter in block.parameters():
                parameter.requires_grad_(not frozen)

    def forward(self, x: Tensor) -> Tensor:
        hidden = (
            self.table(x)
            if self.table is not None
            else functional.one_hot(x, 9)[..., :WIDTH].to(self.head.weight)
        )
        for block, (_, _, again, residual) in zip(self.blocks, self.plan, strict=True):
            before = hidden
            hidden = block(hidden + 0)
            if again:
                hidden = block(hidden * 0.5)
            if residual:
                hidden = hidden + before
        return self.head(hidden)


plans = st.lists(
    st.tuples(st.sampled_from(sorted(BLOCKS)), st.booleans(), st.booleans(), st.booleans()), max_size=6
)


@given(
    plan=plans,
    table=st.booleans(),
    tie=st.booleans(),
    batch=st.integers(1, 7),
    length=st.integers(1, 6),
    microbatch=st.sampled_from([None, 1, 3]),
    seed=st.integers(0, 1000),
    single=st.booleans(),
)
@example(  # output gradients that are rounding only: two channels, one place, one group
    plan=[("linear", True, False, True), ("linear", False, True, True), ("group norm", True, False, False)],
    table=False,
    tie=True,
    batch=6,
    length=1,
    microbatch=3,
    seed=6,
    single=True,
)
def test_a_random_composition_equals_the_reference(
    plan: Any,
    table: bool,
    tie: bool,
    batch: int,
    length: int,
    microbatch: int | None,
    seed: int,
    single: bool,
) -> None:
    dtype, tolerance = (torch.float32, 1e-5) if single else (torch.float64, 1e-10)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Mixed(plan, table, tie).to(dtype)
        for parameter in model.parameters():
            parameter.data += 0.2 * torch.randn_like(parameter)
        rows = (torch.randint(9, (batch, length)), torch.randint(9, (batch,)))
    engine = Engine(model, loss, EngineSettings(microbatch_size=microbatch))
    reference = Reference(model, loss)
    expected = reference.per_example_norms(rows)
    torch.testing.assert_close(engine.per_example_norms(rows), expected, rtol=tolerance, atol=tolerance)
    limit = float(expected.median())
    one, other = engine.clipped_sum(rows, limit).gradients, reference.clipped_sum(rows, limit).gradients
    scale = float(expected.clamp(max=limit).sum())
    for name, gradient in other.items():
        assert float((one[name] - gradient).norm()) <= tolerance * scale
