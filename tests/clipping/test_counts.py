"""How many rows the data select is a size that torch may be given, and that Python does not get to see."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from often import some
from torch import Tensor, nn

from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.errors import DecrescendoError, UnsupportedModel


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.table = nn.Linear(4, 2), torch.randn(40, 2)


def chosen(x: Tensor) -> Tensor:
    return x[x[:, 0] > 0]


def put_back(of_rows: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """Each example's own row, and what is made of those that a mask selects."""

    def loss(m: Any, x: Tensor) -> Tensor:
        mask = x[:, 0] > 0
        return m.layer(x).sum(1) + torch.zeros(len(x)).index_put((mask,), of_rows(m, x[mask]))

    return loss


BENIGN: Mapping[str, Callable[[Any, Tensor], Tensor]] = {
    "no size is read": put_back(lambda m, s: m.layer(s).sum(1)),
    "zeros": put_back(lambda m, s: (m.layer(s) + s.new_zeros(s.shape[0], 2)).sum(1)),
    "zeros by a shape": put_back(lambda m, s: (m.layer(s) + torch.zeros((*s.shape[:-1], 2))).square().sum(1)),
    "a view of heads": put_back(lambda m, s: m.layer(s).view(s.size(0), 1, 2).sum((1, 2))),
    "skipped where there are none": put_back(lambda m, s: m.layer(s).sum(1) if s.shape[0] > 0 else s.sum(1)),
    "none at all": put_back(lambda m, s: s.sum(1) if s.numel() == 0 else m.layer(s).sum(1)),
    "as many as others": put_back(lambda m, s: m.layer(s).sum(1) if m.layer(s).shape[0] == s.shape[0] else s.sum(1)),
    "a constant for each": put_back(
        lambda m, s: (m.layer(s) * torch.tensor([[1.0, 2.0]]).expand(s.shape[0], 2)).square().sum(1)
    ),
    "a constant like them": put_back(
        lambda m, s: (m.layer(s) * torch.tensor([[1.0, 2.0]]).expand_as(s[:, :2])).square().sum(1)
    ),
    "divided, then compared": put_back(lambda m, s: m.layer(s).sum(1) if s.shape[0] // 5 >= 0 else s.sum(1)),
    "printed": put_back(lambda m, s: (f"{s.shape} {s.shape[0]:d} {s.shape[0] / 3}", m.layer(s).sum(1))[1]),
}


@pytest.mark.parametrize("name", some(BENIGN, 6))
def test_a_size_that_is_passed_on_is_proven_and_exact(name: str) -> None:
    model, loss = Small(), BENIGN[name]
    engine = Engine(model, loss)
    torch.manual_seed(0)
    none, every = -torch.rand(5, 4), torch.rand(7, 4)
    for batch in (torch.randn(6, 4), torch.randn(9, 4), none, every, torch.randn(1, 4)):
        found, slow = (each.clipped_sum(batch, 0.5).gradients for each in (engine, Reference(model, loss)))
        for key, gradient in slow.items():
            torch.testing.assert_close(found[key], gradient, rtol=1e-4, atol=1e-6)
    assert engine.assumptions == ()


def _by(number: Any) -> float:
    return -1.0 if number > 0 else 1.0


def _written(x: Tensor) -> int:
    rows = chosen(x)
    rows[0:] = 1.0
    return rows[1:].numel()


def _by_errors(x: Tensor) -> int:
    try:
        torch.ones(3, 0) @ chosen(x)
    except RuntimeError:
        return 1
    return 0


def _one_by_one(x: Tensor) -> int:
    rows, count = chosen(x), 0
    try:
        while count < 99:
            rows[count]
            count += 1
    except IndexError:
        pass
    return count


def _packed(x: Tensor) -> int:
    lengths = (x > 0).sum(1).clamp(min=1)
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return packed.data.shape[0] - len(x)


def _inside(transform: Callable[..., Any]) -> Callable[[Tensor], int]:
    def number(x: Tensor) -> int:
        seen: list[int] = []

        def noted(rows: Tensor) -> Tensor:
            seen.append(rows.shape[0])
            return rows.sum()

        transform(noted)(chosen(x))
        return seen[0]

    return number


def _in_a_hook(m: Any, x: Tensor) -> Tensor:
    mask, out, seen = x[:, 0] > 0, m.layer(x), [0]
    rows = (out.detach() * m.layer.bias)[mask]

    def note(g: Tensor) -> None:
        seen[0] = g.shape[0]

    rows.register_hook(note)
    out.register_hook(lambda g: g * _by(seen[0]))
    return out.sum(1) + torch.zeros(len(x)).index_put((mask,), rows.sum(1))


NUMBERS: Mapping[str, Callable[[Tensor], Any]] = {
    "len": lambda x: len(chosen(x)),
    "shape": lambda x: chosen(x).shape[0],
    "size": lambda x: chosen(x).size(0),
    "numel": lambda x: chosen(x).numel(),
    "torch.numel": lambda x: torch.numel(chosen(x)),
    "nbytes": lambda x: chosen(x).nbytes,
    "stride": lambda x: chosen(x).T.contiguous().stride(0),
    "transposed": lambda x: chosen(x).T.shape[1],
    "a part": lambda x: (chosen(x)[0:] * 2)[1:].shape[0],
    "nonzero": lambda x: len(x[:, 0].relu().nonzero()),
    "nonzero of a sum": lambda x: x.relu().sum(0)[:1].nonzero().numel(),
    "where": lambda x: len(torch.where(x[:, 0] > 0)[0]),
    "a list on its side": lambda x: torch.where(x[:, 0] > 0)[0][None].shape[1],
    "the last size of a list on its side": lambda x: torch.where(x[:, 0] > 0)[0][None].size(-1),
    "lists side by side": lambda x: torch.stack([torch.where(x[:, 0] > 0)[0]] * 3).shape[1],
    "a list beside constants": lambda x: (torch.where(x[:, 0] > 0)[0] + torch.zeros(3, 1)).shape[1],
    "nonzero on its side": lambda x: (x[:, :1] > 0).nonzero().T.shape[1],
    "the step of nonzero on its side": lambda x: (x[:, :1] > 0).nonzero().T.contiguous().stride(0),
    "each number beside each": lambda x: (x[:, :1] > 0).nonzero()[:, :1].expand(-1, 3).T.unbind(1).__len__(),
    "masked_select": lambda x: x[:, 0].masked_select(x[:, 0] > 0).numel(),
    "rand_like": lambda x: len(torch.rand_like(chosen(x))),
    "one after another": lambda x: sum(1 for _ in chosen(x)),
    "unbind": lambda x: len(chosen(x).unbind()),
    "range": lambda x: len(range(chosen(x).shape[0])),
    "an index of a list": lambda x: [0, *[1] * 50][chosen(x).shape[0]],
    "its negative": lambda x: chosen(x).shape[0].__neg__() * -1,
    "a slice": lambda x: torch.ones(50)[: chosen(x).shape[0]].numel(),
    "a constant's size": lambda x: torch.zeros(chosen(x).shape).numel(),
    "a data set": lambda x: len(torch.utils.data.TensorDataset(chosen(x))),
    "under vmap": _inside(lambda f: torch.func.vmap(f, in_dims=1)),
    "under grad": _inside(torch.func.grad),
    "functionalised": _inside(torch.func.functionalize),
    "sparse": lambda x: x[:, :1].relu().to_sparse().values().shape[0],
    "is_same_size": lambda x: float(not chosen(x).is_same_size(torch.zeros(0, 4))),
    "size of aten": lambda x: torch.ops.aten.size.int(chosen(x), 0),
    "numel of aten": lambda x: torch.ops.aten.numel(chosen(x)),
    "a module's helper": lambda x: nn.LSTM(4, 2).get_expected_hidden_size(chosen(x)[None], None)[1],
    "where to split": lambda x: torch.ones(9).tensor_split((x[:, 0] > 0).sum()[None])[0].numel(),
    "written to": _written,
    "an error": _by_errors,
    "one by one": _one_by_one,
}  # fmt: skip
LOSSES: Mapping[str, Callable[[Any, Tensor], Tensor]] = {
    **{name: lambda m, x, number=number: m.layer(x).sum(1) * _by(number(x)) for name, number in NUMBERS.items()},
    "a mean": lambda m, x: m.layer(x).sum(1) / (1 + chosen(x).shape[0]),
    "a factor": lambda m, x: m.layer(x).sum(1) * (1 + torch.ones(()) * chosen(x).shape[0]),
    "what is filled in": lambda m, x: m.layer(x).sum(1) * torch.full((1,), chosen(x).shape[0]),
    "a sum of ones": lambda m, x: m.layer(x).sum(1) * torch.ones(chosen(x).shape[0]).sum(),
    "ones like them": lambda m, x: m.layer(x).sum(1) * torch.ones(1, 1).expand_as(chosen(x)).sum(),
    "broadcast": lambda m, x: m.layer(x).sum(1) * torch.broadcast_tensors(torch.ones(1, 1), chosen(x))[0].sum(),
    "ones like places": lambda m, x: m.layer(x).sum(1) * (torch.ones_like((x[:, :1] > 0).nonzero()).sum() * 4 - 6),
    "sums of no features": lambda m, x: m.layer(x).sum(1) * ((chosen(x)[:, :0].sum(1) + 1).sum() * 4 - 6),
    "products of no features": lambda m, x: m.layer(x).sum(1) * (chosen(x)[:, :0].prod(1).sum() * 4 - 6),
    "a product with no features": lambda m, x: (
        m.layer(x).sum(1) * ((chosen(x)[:, :0] @ torch.ones(0, 1) + 1).sum() * 4 - 6)
    ),
    "no features": lambda m, x: m.layer(x).sum(1) * (chosen(x)[:, :0].clone().shape[0] * 4 - 6),
    "no features, side by side": lambda m, x: (
        m.layer(x).sum(1) * (torch.cat([chosen(x)[:, :0]] * 2, 1).shape[0] * 4 - 6)
    ),
    "no features, made": lambda m, x: m.layer(x).sum(1) * (torch.zeros(chosen(x).shape[0], 0).shape[0] * 4 - 6),
    "no features, computed": lambda m, x: m.layer(x).sum(1) * ((chosen(x) @ torch.zeros(4, 0)).shape[0] * 4 - 6),
    "by aten": lambda m, x: m.layer(x).sum(1) * torch.ops.aten.expand_as(torch.ones(1, 1), chosen(x)).sum(),
    "a grid": lambda m, x: (
        m.layer(x).sum(1) * torch.meshgrid(torch.ones(2), chosen(x)[:, 0], indexing="ij")[0].sum()
    ),
    "a unit matrix": lambda m, x: m.layer(x).sum(1) * torch.eye(chosen(x).shape[0]).sum(),
    "rows of a table": lambda m, x: m.layer(x).sum(1) * m.table[: chosen(x).shape[0]].sum(),
    "the batch again and again": lambda m, x: (
        m.layer(x).unsqueeze(0).expand(chosen(x).shape[0], -1, -1).sum((0, 2))
    ),
    "in a hook": _in_a_hook,
    "of packed data": lambda m, x: m.layer(x).sum(1) * _by(_packed(x)),
}  # fmt: skip


@pytest.mark.parametrize("second", [-1.0, 1.0])
@pytest.mark.parametrize("name", some(LOSSES, 12))
def test_a_number_of_selected_rows_moves_no_other_example(name: str, second: float) -> None:
    """The first row is selected or not, beside none or the second: in the batch and in the passes over two and three
    rows."""
    torch.manual_seed(0)
    batch, limit, sums = -torch.rand(6, 4), 0.1, []
    for first in (-1.0, 1.0):
        batch[0], batch[1] = first, second
        engine = Engine(Small(), LOSSES[name], seeds=lambda: 3)
        try:
            for rows in (batch[1:], batch):
                engine.clipped_sum(rows, limit)
            sums.append(engine.clipped_sum(batch, limit).gradients)
        except DecrescendoError:
            return
    moved = sum(float((sums[0][key] - sums[1][key]).square().sum()) for key in sums[0]) ** 0.5
    assert moved <= 2.001 * limit


def test_the_bytes_of_selected_rows_are_no_number() -> None:
    loss = lambda m, x: m.layer(x).sum(1) * int(chosen(x).nbytes)  # noqa: E731
    with pytest.raises(UnsupportedModel, match="number of rows that they select"):
        Engine(Small(), loss).clipped_sum(torch.rand(6, 4), 0.1)


def test_a_declared_line_sees_the_number_and_is_listed() -> None:
    loss = LOSSES["len"]
    with pytest.raises(UnsupportedModel, match="number of rows that they select"):
        Engine(Small(), loss).clipped_sum(torch.randn(6, 4), 1.0)
    engine = Engine(Small(), loss, EngineSettings(declared=("test_counts.py",)))
    engine.clipped_sum(torch.rand(6, 4), 1.0)
    assert any("test_counts.py" in said for said in map(str, engine.assumptions))
