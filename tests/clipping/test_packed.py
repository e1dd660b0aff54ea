"""Rows of several examples in one dimension, each with its example: packed sequences, and bags of ids."""

import math
from typing import Any

import pytest
import torch
from clipping_cases import Made, loss, normal
from equality import check_equal
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.clipping.recurrent.packed import PackedKernel, groups
from decrescendo.clipping.recurrent.packing import Packing, make_packing
from decrescendo.clipping.workspace import Workspace
from decrescendo.errors import UnsupportedModel


def packing_of(lengths: list[int]) -> Packing:
    order = torch.tensor(sorted(range(len(lengths)), key=lambda i: -lengths[i]))
    return make_packing(tuple(sum(length > t for length in lengths) for t in range(max(lengths))), order)


def kernel_of(packing: Packing, inputs: Tensor, roles: tuple[str, ...]) -> PackedKernel:
    like = tuple(torch.empty(0) for _ in roles)
    return PackedKernel(roles, like, (), inputs, packing, Workspace(0))


def of_example(packing: Packing, data: Tensor, example: int) -> Tensor:
    return data[packing.source[example][packing.live[example]]].double()


@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=40),
    features=st.integers(1, 6),
    outputs=st.integers(1, 9),
    seed=st.integers(0, 99),
)
@example(lengths=[300, 1, 290, 3], features=3, outputs=2, seed=0)  # norms from products
@example(lengths=[1] * 700, features=6, outputs=9, seed=0)  # several parts
def test_it_agrees_with_each_example_by_itself(lengths: list[int], features: int, outputs: int, seed: int) -> None:
    packing, random = packing_of(lengths), torch.Generator().manual_seed(seed)
    inputs = torch.randn(len(packing.slots), features, generator=random)
    d = torch.randn(len(packing.slots), outputs, generator=random)
    weights = torch.rand(len(lengths), generator=random)
    kernel = kernel_of(packing, inputs, ("weight", "bias"))
    each = [
        (of_example(packing, d, i).T @ of_example(packing, inputs, i), of_example(packing, d, i).sum(0))
        for i in range(len(lengths))
    ]
    for slot in (0, 1):
        exact = torch.stack([gradients[slot] for gradients in each])
        square = exact.flatten(1).square().sum(1)
        found = kernel.squared_norms(slot, d)
        rounding = (
            1e-5
            * torch.tensor(
                [
                    float(of_example(packing, d, i).norm() * (of_example(packing, inputs, i).norm() + 1))
                    for i in range(len(lengths))
                ]
            ).square()
        )
        if slot == 0:  # never below; the bias is measured as it was summed
            assert (found >= square * (1 - 1e-12)).all()
        assert (found - square).abs().le(rounding + 1e-5 * square).all()
        total = (weights.double().reshape(-1, *[1] * (exact.dim() - 1)) * exact).sum(0)
        assert kernel.scaled_sum(slot, d, weights).double().sub(total).norm() <= 1e-5 * (1 + exact.norm())
        assert kernel.per_example(slot, d).double().sub(exact).abs().max() <= 1e-4


@given(st.lists(st.integers(1, 60), min_size=1, max_size=60))
def test_every_sequence_is_in_one_group_and_little_is_padded(lengths: list[int]) -> None:
    ranked = sorted(lengths, reverse=True)
    found = list(groups(packing_of(lengths).sizes))
    assert [part.start for part, _ in found] == [0, *(part.stop for part, _ in found[:-1])]
    assert found[-1][0].stop == len(lengths)
    for part, length in found:
        assert ranked[part.start] == length
        assert ranked[part.stop - 1] >= 3 * length / 4


def test_examples_that_are_left_out_leave_nothing() -> None:
    packing = packing_of([2, 4, 3])
    inputs, d = torch.randn(len(packing.slots), 3), torch.randn(len(packing.slots), 2)
    gone = torch.tensor([False, True, False])
    own = packing.source[1][packing.live[1]]
    inputs[own[0]], d[own[1]] = math.inf, math.nan
    for measured in (False, True):
        kernel = kernel_of(packing, inputs, ("weight", "bias"))
        if measured:
            assert kernel.squared_norms(0, d).isfinite().tolist() == [True, False, True]
            kernel.squared_norms(1, d)
        left, rest = kernel.without_rows(gone), kernel.zeroed(d, gone)
        assert left.squared_norms(0, rest)[1] < 1e-60  # rounded upwards
        for slot in (0, 1):
            total = left.scaled_sum(slot, rest, torch.ones(3))
            each = kernel.per_example(slot, d)
            assert torch.allclose(total, each[0] + each[2], atol=1e-6)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_one_layer_on_two_packings(kind: type[nn.Module]) -> None:
    """Its weights' gradients are sums over both calls."""
    torch.manual_seed(0)

    def run(m: Any, x: Tensor) -> Tensor:
        read = torch.zeros(())
        for column in (0, 1):
            lengths = (x[:, :, column] > 0).sum(1).clamp(min=1)
            packed = pack_padded_sequence(x, lengths, True, enforce_sorted=False)
            read = read + pad_packed_sequence(m.rnn(packed)[0], True, total_length=x.shape[1])[0].mean(1)
        return m.out(read)

    model = Made(run, rnn=kind(3, 4), out=nn.Linear(4, 3)).double()
    data = torch.randn(6, 5, 3, dtype=torch.float64), torch.randint(3, (6,))
    check_equal(model, data, torch.float64, EngineSettings())


WORDS, WIDTH = 7, 4


def ragged(model: Any, x: Tensor) -> Tensor:
    """Ids above zero only, as one long row with offsets: bags of different sizes, some empty."""
    kept = x > 0
    sizes = kept.sum(1)
    offsets = torch.cumsum(sizes, 0) - sizes
    if model.bag.include_last_offset:
        offsets = torch.cat([offsets, sizes.sum().reshape(1)])
    weights = model.places[: x.shape[1]].expand(x.shape)[kept] if model.bag.mode == "sum" else None
    return model.out(model.bag(x[kept], offsets, per_sample_weights=weights))


def even(model: Any, x: Tensor) -> Tensor:
    weights = model.places[: x.shape[1]].expand(x.shape) if model.bag.mode == "sum" else None
    return model.out(model.bag(x, per_sample_weights=weights))


def folded(model: Any, x: Tensor) -> Tensor:
    """Two bags an example, which share ids."""
    halves = (
        torch.cat([x, x[:, :1]], 1).reshape(2 * x.shape[0], -1) if x.shape[1] % 2 else x.reshape(2 * x.shape[0], -1)
    )
    return model.out(model.bag(halves)).reshape(x.shape[0], 2, -1)


def build(run: Any, dtype: torch.dtype, **options: Any) -> nn.Module:
    return Made(
        run,
        bag=nn.EmbeddingBag(WORDS, WIDTH, **options),
        out=nn.Linear(WIDTH, 3),
        places=normal(8).requires_grad_(False),
    ).to(dtype)


@given(
    run=st.sampled_from([ragged, even, folded]),
    mode=st.sampled_from(["sum", "mean", "max"]),
    padding=st.sampled_from([None, 2, -1]),
    last=st.booleans(),
    batch=st.integers(1, 7),
    length=st.integers(1, 6),
    single=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_bag_equals_the_reference(
    run: Any, mode: str, padding: int | None, last: bool, batch: int, length: int, single: bool, seed: int
) -> None:
    dtype = torch.float32 if single else torch.float64
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build(run, dtype, mode=mode, padding_idx=padding, include_last_offset=last and run is ragged)
        rows = (torch.randint(WORDS, (batch, length)), torch.randint(3, (batch,)))
    check_equal(model, rows, dtype, EngineSettings())


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_bag_used_twice_adds_its_gradients_before_the_norm(mode: str) -> None:
    torch.manual_seed(0)
    model = build(lambda m, x: m.out(m.bag(x) + m.bag(x[:, :2]).tanh()), torch.float64, mode=mode)
    check_equal(model, (torch.randint(WORDS, (6, 5)), torch.randint(3, (6,))), torch.float64, EngineSettings())


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_an_example_without_a_finite_gradient_contributes_nothing(mode: str) -> None:
    torch.manual_seed(0)
    model = Made(
        lambda m, x: m.out(m.bag(x.long()) + x.sum(1, keepdim=True) * 0),
        bag=nn.EmbeddingBag(WORDS, WIDTH, mode=mode),
        out=nn.Linear(WIDTH, 3),
    )

    def poisoned(model: nn.Module, batch: Any) -> Tensor:
        ids, factor, label = batch
        return loss(model, (ids, label)) * factor

    ids, label = torch.randint(WORDS, (5, 4)), torch.randint(3, (5,))
    factor = torch.tensor([1.0, float("nan"), 1.0, float("inf"), 2.0])
    clipped = Engine(model, poisoned).clipped_sum((ids.float(), factor, label), 1.0)
    expected = Reference(model, poisoned).clipped_sum((ids.float(), factor, label), 1.0)
    assert clipped.diagnostics.nonfinite == 2
    for name, gradient in expected.gradients.items():
        torch.testing.assert_close(clipped.gradients[name], gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("option", ["max_norm", "scale_grad_by_freq"])
def test_options_that_look_at_other_examples_are_refused(option: str) -> None:
    model = build(even, torch.float32, mode="mean", **{option: 1})
    before = model.bag.weight.detach().clone()
    with pytest.raises(UnsupportedModel, match=option):
        Engine(model, loss).clipped_sum((torch.randint(WORDS, (4, 2)), torch.randint(3, (4,))), 1.0)
    assert torch.equal(model.bag.weight, before)


def test_trained_weights_of_places_are_followed() -> None:
    """One weight a place, expanded to the batch: its own recorded use."""
    torch.manual_seed(0)
    model = build(even, torch.float64, mode="sum")
    model.places.requires_grad_(True)
    check_equal(model, (torch.randint(WORDS, (4, 2)), torch.randint(3, (4,))), torch.float64, EngineSettings())


def test_bags_of_a_batch_in_one_are_refused() -> None:
    """Offsets that put the last id of the row before into each bag."""
    model = build(
        lambda m, x: m.out(m.bag(x.flatten(), (torch.arange(0, x.numel(), x.shape[1]) - 1).clamp(min=0))),
        torch.float32,
        mode="sum",
    )
    torch.manual_seed(0)
    with pytest.raises(UnsupportedModel):
        Engine(model, loss).check((torch.randint(WORDS, (5, 4)), torch.randint(3, (5,))))


@pytest.mark.slow
def test_no_row_for_every_word_and_example_is_held() -> None:
    """A vocabulary of a million: (batch, vocabulary, dim) would be 4 GB."""
    model = nn.Sequential(nn.EmbeddingBag(1_000_000, 16, mode="mean"), nn.Linear(16, 3))
    batch = (torch.randint(1_000_000, (64, 10)), torch.randint(3, (64,)))
    engine = Engine(model, loss)
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        engine.per_example_norms(batch)
    # The self-check compares with autograd's gradient, which has the size of the weight.
    assert max(event.self_cpu_memory_usage for event in seen.events()) <= 4 * 1_000_000 * 16
