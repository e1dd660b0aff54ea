"""Real architectures, unmodified, and what people do with models: checkpointing, autocast, several losses, adapters,
random depth."""

from collections import UserDict
from typing import Any

import pytest
import torch
from architectures import ARCHITECTURES, OTHERS, text_loss
from clipping_cases import CASES, Made, frozen, normal
from clipping_cases import loss as classification
from equality import check_equal
from often import some
from operation_cases import OPERATIONS
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize
from untouched import portrait

from decrescendo.base.rng import seeded
from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.errors import UnsupportedModel

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
TRANSFORMERS = ["GPT-2 small", "BERT-tiny", "ViT-tiny"]


def rows(*shape: int, outputs: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(*shape, dtype=torch.float64, generator=generator)
    return x, torch.randint(outputs, shape[:1], generator=generator)


@pytest.mark.parametrize("name", some(OTHERS, 1))
def test_other_architectures_equal_the_reference(name: str) -> None:
    architecture = OTHERS[name]
    # transformers computes Mamba's decays in float32, whatever the model is held in.
    dtype = torch.float32 if name == "Mamba" else torch.float64
    model, batch = architecture.make(dtype, 5)
    check_equal(model, batch, dtype, EngineSettings(), architecture.loss)


@pytest.mark.slow
@pytest.mark.parametrize("name", some(TRANSFORMERS, 1))
def test_gradient_checkpointing_equals_the_reference(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model, batch = architecture.make(torch.float64, 5)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    check_equal(model, batch, torch.float64, EngineSettings(), architecture.loss)


def test_reentrant_checkpointing_is_refused_with_the_remedy() -> None:
    """Its parameters are not in the graph: they would be missed, not merely be slow."""
    architecture = ARCHITECTURES["BERT-tiny"]
    model, batch = architecture.make(torch.float64, 5)
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(UnsupportedModel, match="use_reentrant=False"):
        Engine(model, architecture.loss).clipped_sum(batch, 1.0)


@pytest.mark.parametrize("name", some(TRANSFORMERS, 1))
def test_autocast_is_followed(name: str) -> None:
    """bfloat16 activations, float32 weights and norms: equal up to the digits of bfloat16."""
    architecture = ARCHITECTURES[name]

    def cast(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return architecture.loss(model, batch).float()

    model, batch = architecture.make(torch.float32, 5)
    found, expected = (build(model, cast).per_example_norms(batch) for build in (Engine, Reference))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", some(["dict", "UserDict", "BatchEncoding"], 1))
def test_a_batch_may_be_any_mapping(kind: str) -> None:
    from transformers import BatchEncoding

    model, batch = ARCHITECTURES["BERT-tiny"].make(torch.float64, 5)
    made = {"dict": dict, "UserDict": UserDict, "BatchEncoding": BatchEncoding}[kind](batch)
    check_equal(model, made, torch.float64, EngineSettings(microbatch_size=2), text_loss)


def test_a_model_that_returns_several_losses_and_an_output_object() -> None:
    """A weighted sum of a supervised and an auxiliary loss, each one value per example."""
    from transformers.modeling_outputs import SequenceClassifierOutput

    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 4)

        def forward(self, x: Tensor, y: Tensor) -> Any:
            hidden = torch.tanh(self.body(x))
            supervised = functional.cross_entropy(self.one(hidden), y, reduction="none")
            rebuilt = (self.two(hidden) - x).square().mean(1)
            return SequenceClassifierOutput(loss=supervised, hidden_states=(rebuilt,))

    def weighted(model: nn.Module, batch: Any) -> Tensor:
        out = model(*batch)
        return out.loss + 0.1 * out.hidden_states[0]

    check_equal(TwoHeads().double(), rows(6, 4), torch.float64, EngineSettings(), weighted)


def test_several_inputs_of_different_shapes() -> None:
    model = Made(
        lambda m, x: m.out(torch.cat([m.a(x["dense"]), m.t(x["ids"]).mean(1)], 1)),
        a=nn.Linear(4, 3), t=nn.Embedding(7, 3), out=nn.Linear(6, 3),
    ).double()  # fmt: skip
    dense, label = rows(6, 4)
    batch = ({"dense": dense, "ids": torch.randint(7, (6, 5))}, label)
    check_equal(model, batch, torch.float64, EngineSettings())


class DropPath(nn.Module):
    """Leaves out the whole branch for some examples, as ConvNeXt and BEiT do in training."""

    def forward(self, x: Tensor) -> Tensor:
        keep = (torch.rand(x.shape[0], *[1] * (x.dim() - 1)) < 0.5).to(x.dtype)
        return x * keep / 0.5


def test_branches_dropped_at_random_for_each_example_are_accepted() -> None:
    """The masks are other ones for other batch sizes: what can be compared is the sum, with one seed."""
    model = Made(
        lambda m, x: m.out(x + m.drop(m.scale * m.branch(x))),
        branch=nn.Linear(4, 4), drop=DropPath(), scale=normal(4), out=nn.Linear(4, 3),
    ).double()  # fmt: skip
    batch = rows(8, 5, 4)
    engine = Engine(model, classification, seeds=lambda: 3)
    found = engine.clipped_sum(batch, float("inf")).gradients
    with seeded(3):
        expected = torch.autograd.grad(classification(model, batch).sum(), list(model.parameters()))
    for one, other in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ["linear", "embedding", "conv3d", "lstm", "packed lstm", "einsum", "prelu"])
def test_the_users_default_device_is_not_the_engines(name: str) -> None:
    """What the engine makes lies where the data lie, or in the processor's memory; "meta" would hold no numbers."""
    cases = CASES | OPERATIONS
    model, batch = cases[name].make(torch.float64, 6)
    expected = Engine(model, classification).clipped_sum(batch, 0.5)
    with torch.device("meta"):
        found = Engine(model, classification).clipped_sum(batch, 0.5)
    for name, gradient in expected.gradients.items():
        assert torch.equal(found.gradients[name], gradient)


def test_the_order_of_contractions_does_not_follow_the_number_of_examples() -> None:
    """Where opt-einsum is installed, torch.einsum takes another one for 6 examples than for 2."""
    assert torch.backends.opt_einsum.is_available()
    check_equal(*CASES["weighted by a buffer"].make(torch.float64, 6), torch.float64, EngineSettings())
    assert torch.backends.opt_einsum.enabled


@pytest.mark.parametrize("training", [True, False])
def test_a_masked_transformer_equals_the_reference(training: bool) -> None:
    """In evaluation torch has a fused path, which it takes in the check's own passes."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().train(training)
    x, _ = rows(6, 5, 4)
    padding = torch.arange(5) >= torch.tensor([[2], [3], [4], [5], [5], [1]])

    def masked(model: nn.Module, batch: Any) -> Tensor:
        out = model(batch[0], src_key_padding_mask=batch[1])
        return out.masked_fill(batch[1].unsqueeze(-1), 0.0).square().sum((1, 2))

    check_equal(encoder, (x, padding), torch.float64, EngineSettings(), masked)


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).transpose(-1, -2)


@pytest.mark.parametrize(
    "dress",
    [
        parametrizations.weight_norm,
        lambda layer: parametrizations.orthogonal(layer, use_trivialization=False),
        lambda layer: parametrize.register_parametrization(layer, "weight", Symmetric()) or layer,
    ],
    ids=["weight norm", "orthogonal", "symmetric"],
)
def test_parametrized_weights_equal_the_reference(dress: Any) -> None:
    model = nn.Sequential(dress(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 3)).double()
    check_equal(model, rows(6, 5, 4), torch.float64, EngineSettings())


def test_functional_call_of_the_models_own_parameters() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()

    def called(model: nn.Module, batch: Any) -> Tensor:
        halved = {name: parameter * 0.5 for name, parameter in model.named_parameters()}
        out = torch.func.functional_call(model, halved, (batch[0],))
        return functional.cross_entropy(out, batch[1], reduction="none")

    check_equal(model, rows(6, 4), torch.float64, EngineSettings(), called)


def test_an_activation_in_place_after_a_linear_layer_on_sequences() -> None:
    """A linear layer gives a view there; writing into it must not hide the layer."""
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3), nn.ELU(inplace=True)).double()
    check_equal(model, rows(6, 5, 4), torch.float64, EngineSettings())


@pytest.mark.parametrize("part", some(["weights", "biases", "last block", "norms"], 2))
def test_partly_frozen_models_equal_the_reference(part: str) -> None:
    architecture = ARCHITECTURES["ViT-tiny"]
    model, batch = architecture.make(torch.float64, 5)
    frozen(model)
    for name, parameter in model.named_parameters():
        chosen = {
            "weights": parameter.dim() > 1,
            "biases": name.endswith("bias"),
            "last block": ".1." in name,
            "norms": "norm" in name,
        }
        parameter.requires_grad_(chosen[part])
    assert 0 < sum(p.requires_grad for p in model.parameters()) < sum(1 for _ in model.parameters())
    check_equal(model, batch, torch.float64, EngineSettings(), architecture.loss)


@pytest.mark.parametrize(
    "dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.slow)], ids=["float64", "float32"]
)
@pytest.mark.parametrize("name", some(ARCHITECTURES, 3))
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


@pytest.mark.parametrize("name", some(ARCHITECTURES, 1))
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


@pytest.mark.parametrize("name", some(["LoRA on GPT-2 (peft)", "LoRA on BERT (peft)"], 1))
def test_adapters_are_trained_and_their_base_is_not(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model, batch = architecture.make(torch.float32, 5)
    gradients = Engine(model, architecture.loss).clipped_sum(batch, 1.0).gradients
    assert {name for name in gradients if "lora_" in name}
    assert not {name for name in gradients if "lora_" not in name and "classifier" not in name}
    assert all(float(gradient.abs().max()) > 0 for gradient in gradients.values())
