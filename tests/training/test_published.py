"""What a run publishes is its parameters and its persistent buffers: nothing that a model hides beside them."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hiding_models import HIDING, hooked
from safetensors.torch import load_file
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.optim.swa_utils import AveragedModel

from decrescendo.errors import UnsupportedModel
from decrescendo.training import FrozenStateGuard, Trainer, train
from decrescendo.training.run import cpu_weights

from .conftest import loss, make_model, make_plan, sgd

Data = tuple[torch.Tensor, torch.Tensor]


@pytest.mark.parametrize("name", HIDING)
def test_a_model_that_hides_something_in_its_state_dict_is_refused_before_the_first_step(name: str) -> None:
    """Published weights would hold sums of raw rows, and nothing would have been counted for them."""
    model = HIDING[name]()
    with pytest.raises(UnsupportedModel, match=r"must (have its parameters|be the tensor|be among)"):
        Trainer(model, loss, make_plan(), sgd(model), seed=0)
    with pytest.raises(UnsupportedModel):
        cpu_weights(model)


def test_the_error_names_the_entry_and_says_what_to_do() -> None:
    with pytest.raises(
        UnsupportedModel, match=r"got 'inner\.0\._extra_state' as well.*remove it, or register a buffer"
    ):
        cpu_weights(HIDING["inside"]())
    with pytest.raises(UnsupportedModel, match=r"got another 'layer\.weight'.*remove the hook"):
        cpu_weights(HIDING["exchanges"]())


def test_what_is_hidden_after_the_start_is_left_out_at_the_end(data: Data) -> None:
    """And the run is not lost: what only its end shows is not refused there."""
    model = make_model()
    names = model.state_dict().keys()
    trainer = Trainer(model, loss, make_plan(), sgd(model), seed=0)
    for batch in trainer.batches(data):
        trainer.step(batch)
    hooked(model)
    assert "seen" in model.state_dict()
    assert trainer.finish().weights.keys() == names


def test_what_is_saved_is_what_was_trained_and_loads_into_a_fresh_model(data: Data, tmp_path: Path) -> None:
    model = make_model()
    run = train(model, loss, data, make_plan(), sgd(model), seed=0)
    run.save(tmp_path / "run")
    stored = load_file(tmp_path / "run" / "weights.safetensors")
    fresh = make_model()
    fresh.load_state_dict(stored)
    for name, value in model.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], value)
        assert torch.equal(run.weights[name], value)


class Buffers(nn.Module):
    """Persistent, not persistent, and none."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 3))
        self.register_buffer("scale", torch.ones(3))
        self.register_buffer("passing", torch.zeros(3), persistent=False)
        self.register_buffer("absent", None)
        self.register_parameter("missing", None)


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    return model


def shared() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer)


ORDINARY: dict[str, Callable[[], nn.Module]] = {
    "buffers": Buffers, "tied": tied, "shared": shared, "norm": lambda: nn.BatchNorm1d(3),
    "lstm": lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True),
    "attention": lambda: nn.MultiheadAttention(4, 2, bias=False),
    "weight norm": lambda: weight_norm(nn.Linear(3, 2)), "spectral norm": lambda: spectral_norm(nn.Linear(3, 2)),
    "average": lambda: AveragedModel(nn.Linear(3, 2)),
    "last": lambda: nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last),
    "dict": lambda: nn.ParameterDict({"a": nn.Parameter(torch.ones(2)), "b": nn.Parameter(torch.ones(1))}),
    "half": lambda: nn.Linear(3, 2).bfloat16(), "frozen": lambda: nn.Linear(3, 2).requires_grad_(False),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDINARY)
def test_weights_of_ordinary_models_are_their_state_dicts_copied(name: str) -> None:
    """Names, order, values; and they load back, strictly."""
    model = ORDINARY[name]()
    wanted: dict[str, Any] = copy.deepcopy(dict(model.state_dict()))
    found = cpu_weights(model)
    assert list(found) == list(wanted)
    for key, value in wanted.items():
        assert torch.equal(found[key], value)
        assert not found[key].requires_grad
    for value in found.values():
        value.zero_()  # a copy
    assert all(torch.equal(value, wanted[key]) for key, value in model.state_dict().items())
    ORDINARY[name]().load_state_dict(wanted)


def test_a_parameter_that_a_forward_pass_makes_is_refused() -> None:
    """It would be published under its new name, with what the pass put into it."""
    model = make_model()
    frozen = FrozenStateGuard(model)
    frozen.check_pass()
    model.register_parameter("seen", nn.Parameter(torch.ones(3), requires_grad=False))
    with pytest.raises(UnsupportedModel, match="must not add parameters to the model, got seen"):
        frozen.check_pass()
