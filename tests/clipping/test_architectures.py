"""Real architectures, unmodified: the engine equals the slow loop and leaves the model as it was."""

import pytest
import torch
from architectures import ARCHITECTURES
from equality import check_equal
from often import some
from untouched import portrait

from decrescendo.clipping import Engine, EngineSettings

# The extra packages' own: they are not what is tested.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.mark.parametrize(
    "dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.slow)], ids=["float64", "float32"]
)
@pytest.mark.parametrize("name", some(ARCHITECTURES, 5))
def test_an_architecture_equals_the_reference(name: str, dtype: torch.dtype) -> None:
    architecture = ARCHITECTURES[name]
    model, batch = architecture.make(dtype, 5)
    check_equal(model, batch, dtype, EngineSettings(), architecture.loss)


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_of_published_size_equals_the_reference(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model, batch = architecture.make(torch.float32, 2, full=True)
    check_equal(model, batch, torch.float32, EngineSettings(), architecture.loss, widened=True)


@pytest.mark.parametrize("name", some(ARCHITECTURES, 4))
def test_an_architecture_is_left_as_it_was(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model, batch = architecture.make(torch.float32, 5)
    values = {key: value.clone() for key, value in model.state_dict().items()}
    before, state = portrait(model), torch.get_rng_state()
    engine = Engine(model, architecture.loss)
    engine.check(batch)
    engine.clipped_sum(batch, 1.0)
    assert portrait(model) == before
    assert torch.equal(torch.get_rng_state(), state)
    assert list(model.state_dict()) == list(values)
    assert all(torch.equal(values[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["LoRA on GPT-2 (peft)", "LoRA on BERT (peft)"])
def test_adapters_are_trained_and_their_base_is_not(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model, batch = architecture.make(torch.float32, 5)
    gradients = Engine(model, architecture.loss).clipped_sum(batch, 1.0).gradients
    assert {name for name in gradients if "lora_" in name}
    assert not {name for name in gradients if "lora_" not in name and "classifier" not in name}
    assert all(float(gradient.abs().max()) > 0 for gradient in gradients.values())
