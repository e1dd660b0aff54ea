"""Facts: the paper's network has the paper's size, and building one touches no global generator."""

import pytest
import torch
from torch import nn

from decrescendo.errors import InvalidValue
from decrescendo.training.digits import digits_cnn
from decrescendo_papers.data import chest_xray
from decrescendo_papers.models import imdb_mlp, name_lstm, paper_cnn, small_xray, vgg11


@pytest.mark.parametrize(
    ("build", "shape", "count"), [(paper_cnn, (1, 28, 28), 26_010), (digits_cnn, (1, 8, 8), 8_714)]
)
def test_shapes_and_sizes(build, shape: tuple[int, ...], count: int) -> None:
    model = build(0)
    assert sum(p.numel() for p in model.parameters()) == count
    assert model(torch.zeros(3, *shape)).shape == (3, 10)


@pytest.mark.parametrize("build", [paper_cnn, digits_cnn, name_lstm, imdb_mlp, vgg11, small_xray])
def test_weights_come_from_the_seed_and_nothing_else(build) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build(7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second, other = build(7), build(8)
    pairs = list(zip(first.parameters(), second.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not any(torch.equal(a, c) for a, _, c in pairs if bool(a.any()))  # some biases start at zero


def test_the_activation_is_an_argument() -> None:
    kinds = [type(m) for m in paper_cnn(0, nn.Tanh).modules()]
    assert kinds.count(nn.Tanh) == 3
    assert nn.ReLU not in kinds


def test_the_signal_neither_dies_nor_explodes_in_the_deep_network() -> None:
    scores = vgg11(0)(torch.randn(8, 1, 64, 64, generator=torch.Generator().manual_seed(0)))
    assert 0.01 < float(scores.detach().std()) < 5


def test_wrong_inputs_are_refused() -> None:
    with pytest.raises(InvalidValue, match="split must be 'official' or 'random', got 'mine'"):
        getattr(chest_xray, "__wrapped__", chest_xray)("mine")  # without the types that tests check
    with pytest.raises(InvalidValue, match="size must be a multiple of 32, got size=65"):
        vgg11(0, size=65)
