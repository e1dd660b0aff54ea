"""Random models from many kinds of modules, with tied, shared and frozen parameters, against the slow loop; and from a
few blocks that mix the rules."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from clipping_cases import loss
from equality import check_equal
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from decrescendo.clipping import Engine, EngineSettings, Reference

WIDTH, LENGTH = 4, 6


class By(nn.Module):
    """A block (batch, length, 4) to the same, from a function and its parts."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._run = run

    def forward(self, x: Tensor) -> Tensor:
        return self._run(self, x)


def p(*shape: int) -> nn.Parameter:
    return nn.Parameter(0.4 * torch.randn(shape))


def turned(inner: nn.Module) -> nn.Module:
    return By(lambda m, x: m.inner(x.transpose(1, 2)).transpose(1, 2), inner=inner)


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "in place": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LeakyReLU(inplace=True)),
    "conv": lambda: turned(nn.Conv1d(WIDTH, WIDTH, 3, padding="same", groups=2)),
    "depthwise": lambda: turned(nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH, padding_mode="circular")),
    "transposed conv": lambda: turned(nn.ConvTranspose1d(WIDTH, WIDTH, 3, padding=1)),
    "up and down": lambda: turned(
        nn.Sequential(nn.Conv1d(WIDTH, 3, 2, stride=2), nn.ConvTranspose1d(3, WIDTH, 2, stride=2))
    ),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "group norm": lambda: turned(nn.GroupNorm(2, WIDTH)),
    "prelu": lambda: turned(nn.PReLU(WIDTH)),
    "positions": lambda: By(lambda m, x: x + m.p[: x.shape[1]], p=p(9, WIDTH)),
    "position table": lambda: By(lambda m, x: x + m.t(torch.arange(x.shape[1])), t=nn.Embedding(9, WIDTH)),
    "layer scale": lambda: By(lambda m, x: m.p * x - m.q, p=p(WIDTH), q=p(1, LENGTH, 1)),
    "temperature": lambda: By(lambda m, x: x / (1 + m.p.square()), p=p()),
    "mask token": lambda: By(lambda m, x: torch.where(x[..., :1] > 0.5, m.p, x), p=p(WIDTH)),
    "mixer": lambda: By(lambda m, x: m.p @ x, p=p(LENGTH, LENGTH)),
    "einsum by head": lambda: By(
        lambda m, x: torch.einsum("bthi,hio->btho", x.unflatten(2, (2, 2)), m.p).flatten(2), p=p(2, 2, 2)
    ),
    "addmm": lambda: By(
        lambda m, x: torch.addmm(m.q, x.flatten(0, 1), m.p).view_as(x), p=p(WIDTH, WIDTH), q=p(WIDTH)
    ),
    "bilinear": lambda: By(
        lambda m, x: functional.bilinear(x, x.tanh(), m.p, m.q), p=p(WIDTH, WIDTH, WIDTH), q=p(WIDTH)
    ),
    "class token": lambda: By(
        lambda m, x: m.l(torch.cat([m.p.expand(len(x), -1, -1), x], 1))[:, 1:] + m.p,
        p=p(1, 1, WIDTH),
        l=nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, batch_first=True),
    ),
    "attention": lambda: By(
        lambda m, x: m.a(x, x, x, need_weights=False)[0], a=nn.MultiheadAttention(WIDTH, 2, batch_first=True)
    ),
    "cross attention": lambda: By(
        lambda m, x: m.a(x.transpose(0, 1), x.tanh().transpose(0, 1), x.transpose(0, 1))[0].transpose(0, 1),
        a=nn.MultiheadAttention(WIDTH, 2),
    ),
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    "checkpointed": lambda: By(
        lambda m, x: checkpoint(m.l, x, use_reentrant=False), l=nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    ),
    "rows by ids": lambda: By(lambda m, x: x + m.p[(x.detach() > 0).long().sum(-1)], p=p(5, WIDTH)),
}  # fmt: skip


class Mixture(nn.Module):
    """Blocks in any order, each perhaps used again, frozen in part, or sharing its parameters with an earlier one."""

    def __init__(self, plan: list[tuple[str, str, bool, bool]], tie: bool) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, WIDTH), nn.Linear(WIDTH, 9)
        if tie:
            self.head.weight = self.table.weight
        self.plan = plan
        made: dict[str, nn.Module] = {}
        blocks: list[nn.Module] = []
        for name, state, _, _ in plan:
            block = made[name] if state == "shared" and name in made else BLOCKS[name]()
            made[name] = block
            blocks.append(block)
            for position, parameter in enumerate(block.parameters()):
                parameter.requires_grad_(state != "frozen" and (state != "half" or position % 2 == 0))
        self.blocks = nn.ModuleList(blocks)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.table(ids)
        for block, (_, _, again, residual) in zip(self.blocks, self.plan, strict=True):
            before = hidden
            hidden = block(hidden)
            if again:
                hidden = block(hidden * 0.5)
            if residual:
                hidden = hidden + before
        return self.head(hidden)


def weighted_loss(model: nn.Module, batch: Any) -> Tensor:
    """A sequence loss with ignored positions."""
    ids, labels = batch
    each = functional.cross_entropy(model(ids).transpose(1, 2), labels, ignore_index=-100, reduction="none")
    return each.sum(1) / (labels != -100).sum(1).clamp(min=1)


plans = st.lists(
    st.tuples(
        st.sampled_from(sorted(BLOCKS)),
        st.sampled_from(["trained", "frozen", "half", "shared"]),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


@given(
    plan=plans,
    tie=st.booleans(),
    batch=st.integers(1, 7),
    microbatch=st.sampled_from([None, 1, 3]),
    seed=st.integers(0, 1000),
    single=st.booleans(),
)
def test_a_random_mixture_equals_the_reference(
    plan: Any, tie: bool, batch: int, microbatch: int | None, seed: int, single: bool
) -> None:
    dtype = torch.float32 if single else torch.float64
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Mixture(plan, tie).to(dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        ids = torch.randint(9, (batch, LENGTH))
        labels = torch.randint(9, (batch, LENGTH)).masked_fill(torch.rand(batch, LENGTH) < 0.3, -100)
        labels[:, 0] = 1
    check_equal(model, (ids, labels), dtype, EngineSettings(microbatch_size=microbatch), weighted_loss)


# Blocks from (batch, length, 4) to the same.
FEW: dict[str, Callable[[], nn.Module]] = {
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


class MixedFew(nn.Module):
    """Blocks in any order, each perhaps used again and perhaps frozen, with residuals and a tied table."""

    def __init__(self, plan: list[tuple[str, bool, bool, bool]], table: bool, tie: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(9, WIDTH) if table else None
        self.blocks = nn.ModuleList(FEW[name]() for name, *_ in plan)
        self.plan = plan
        self.head = nn.Linear(WIDTH, 9)
        if table and tie:
            self.head.weight = self.table.weight
        for block, (_, frozen, _, _) in zip(self.blocks, plan, strict=True):
            for parameter in block.parameters():
                parameter.requires_grad_(not frozen)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.table(x) if self.table is not None else functional.one_hot(x, 9)[..., :WIDTH].to(self.head.weight)
        for block, (_, _, again, residual) in zip(self.blocks, self.plan, strict=True):
            before = hidden
            hidden = block(hidden + 0)
            if again:
                hidden = block(hidden * 0.5)
            if residual:
                hidden = hidden + before
        return self.head(hidden)


few_plans = st.lists(st.tuples(st.sampled_from(sorted(FEW)), st.booleans(), st.booleans(), st.booleans()), max_size=6)


@pytest.mark.slow
@given(
    plan=few_plans,
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
        model = MixedFew(plan, table, tie).to(dtype)
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
