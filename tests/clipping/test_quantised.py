"""Frozen layers with quantised weights, and trained adapters beside them: QLoRA, by operations or tensors of other
libraries. What is not installed here is stood in for by operations of the same names and forms."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_tiny import plan_of
from safetensors.torch import load
from torch import Tensor, nn

import decrescendo as dc
from decrescendo.clipping import Engine, Reference
from decrescendo.errors import FileRefused, UnsupportedModel

PLAN = plan_of((2.0, 1.5, 1.2), (1.0, 0.8, 0.5), batch=6)
OPS: Any = torch.ops.bitsandbytes

if importlib.util.find_spec("bitsandbytes") is None:

    @torch.library.custom_op("bitsandbytes::dequantize_4bit", mutates_args=())
    def dequantize_4bit(
        A: Tensor, absmax: Tensor, blocksize: int, quant_type: str, shape: list[int], dtype: torch.dtype
    ) -> Tensor:
        del quant_type
        return (A.to(dtype).reshape(-1, blocksize) * absmax[:, None] / 7).reshape(shape)

    @torch.library.custom_op("bitsandbytes::gemm_4bit", mutates_args=())
    def gemm_4bit(
        A: Tensor, B: Tensor, shapeB: list[int], absmax: Tensor, blocksize: int, quant_type: str,
        bias: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        return nn.functional.linear(A, dequantize_4bit(B, absmax, blocksize, quant_type, shapeB, A.dtype), bias)

    @torch.library.custom_op("bitsandbytes::int8_vectorwise_quant", mutates_args=())
    def int8_vectorwise_quant(A: Tensor, threshold: float = 0.0) -> tuple[Tensor, Tensor]:
        large = A.abs().amax(0) > threshold if threshold else torch.zeros(A.shape[1], dtype=torch.bool)
        stats = A.abs().amax(1)
        return (A.masked_fill(large, 0) / stats[:, None] * 127).round().to(torch.int8), stats


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: "Quantised") -> Tensor:
        ctx.layer = layer
        return OPS.gemm_4bit(x, layer.weight, [*layer.shape], layer.scales, 4, "nf4")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        layer = ctx.layer
        weight = OPS.dequantize_4bit(layer.weight, layer.scales, 4, "nf4", [*layer.shape], grads[0].dtype)
        return grads[0] @ weight, None


class Quantised(nn.Module):
    """A frozen layer of 4 bits, whose scales are neither parameters nor buffers, but in the state dict."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.shape = outer, inner
        codes = torch.randint(-7, 8, (outer * inner, 1), dtype=torch.int8)
        self.weight = nn.Parameter(codes, requires_grad=False)
        self.scales = torch.rand(outer * inner // 4) + 0.5

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight.absmax"] = self.scales

    def forward(self, x: Tensor) -> Tensor:
        return Product.apply(x, self)


class Adapted(nn.Module):
    """A frozen layer with a trained one of low rank beside it."""

    def __init__(self, base: nn.Module, inner: int, outer: int) -> None:
        super().__init__()
        self.base, self.down, self.up = (
            base,
            nn.Linear(inner, 2, bias=False),
            nn.Linear(2, outer, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def adapted(kind: Any) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Adapted(kind(4, 8), 4, 8), nn.ReLU(), Adapted(kind(8, 4), 8, 4), nn.Linear(4, 3))


def loss(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]).mean(1), batch[1], reduction="none")


def rows(count: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(count, 5, 4), torch.randint(3, (count,))


def trained(model: nn.Module, **change: Any) -> dc.Run:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)
    return dc.train(model, loss, rows(PLAN.sampling.dataset_size), PLAN, optimizer, seed=0, **change)


def is_as_reference(model: nn.Module) -> Engine:
    batch, engine = rows(5), Engine(model, loss)
    fast = engine.clipped_sum(batch, 0.3).gradients
    slow = Reference(model, loss).clipped_sum(batch, 0.3).gradients
    for name in slow:
        torch.testing.assert_close(fast[name], slow[name], atol=1e-6, rtol=1e-4)
    return engine


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is not None, reason="the real ones are there")
def test_adapters_beside_quantised_layers_are_trained_and_the_layers_entries_are_listed(
    tmp_path: Path,
) -> None:
    model = adapted(Quantised)
    assert [one.code for one in is_as_reference(model).assumptions] == ["tensors-read"]
    run = trained(model)
    said, frozen, read = map(str, run.assumptions)
    assert read.startswith("Assumed: the tensors that test_quantised.py")
    assert frozen.startswith("Assumed: the frozen parameters")
    assert said.startswith("Assumed: the 2 entries that frozen layers of class Quantised add")
    assert "0.base.weight.absmax" in said
    assert not any("absmax" in name for name in run.weights)
    run.save(tmp_path / "run")
    assert "0.base.weight.absmax" in (tmp_path / "run" / "statement.md").read_text()


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is not None, reason="the real ones are there")
def test_a_run_over_quantised_layers_goes_on_with_the_same_layers_alone(tmp_path: Path) -> None:
    whole = trained(adapted(Quantised))

    def stop(progress: Any) -> bool:
        return progress.step == 2

    checkpoints = dc.Checkpoints(tmp_path, every=1)
    trained(adapted(Quantised), checkpoints=checkpoints, callback=stop)
    again = adapted(Quantised)
    run = trained(again, checkpoints=checkpoints)
    assert all(torch.equal(run.weights[name], whole.weights[name]) for name in whole.weights)
    other: Any = adapted(Quantised)
    other[0].base.scales.mul_(2)
    with pytest.raises(FileRefused, match="frozen layers it began with"):
        trained(other, checkpoints=checkpoints)


def test_entries_of_a_layer_that_is_trained_are_refused_still() -> None:
    class Counting(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"seen": 3}

    with pytest.raises(UnsupportedModel, match=r"0\._extra_state"):
        trained(nn.Sequential(Counting(4, 4), nn.Linear(4, 3)))


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is not None, reason="the real ones are there")
def test_rows_quantised_each_by_its_largest_entry_stay_independent_but_not_with_outlier_columns() -> None:
    def by(threshold: float) -> Any:
        def quantised(model: nn.Module, batch: Any) -> Tensor:
            codes, scales = OPS.int8_vectorwise_quant(batch[0][:, 0], threshold)
            return model(codes.float() * scales[:, None]).square().sum(1)

        return quantised

    Engine(nn.Linear(4, 2), by(0.0)).check(rows(5))
    with pytest.raises(UnsupportedModel, match=r"over all rows of the batch.*llm_int8_threshold=0\.0"):
        Engine(nn.Linear(4, 2), by(6.0)).check(rows(5))


def test_an_operation_without_a_rule_is_named_with_overload_and_signature() -> None:
    @torch.library.custom_op("decrescendo_tests::mixed", mutates_args=())
    def mixed(x: Tensor, table: Tensor, scale: float = 1.0) -> Tensor:
        return x * scale + table

    model, table = nn.Linear(4, 4), torch.ones(4)
    engine = Engine(model, lambda model, batch: mixed(batch[0][:, 0], table).sum(1) + model(batch[0][:, 0]).sum(1))
    with pytest.raises(UnsupportedModel) as refused:
        engine.check(rows(5))
    words = str(refused.value)
    assert "decrescendo_tests::mixed.default(Tensor x, Tensor table, float scale=1.) -> Tensor" in words
    assert 'register_rule("decrescendo_tests::mixed", text)' in words
    assert "2 tensor arguments and 1 output" in words
    dc.clipping.register_rule("decrescendo_tests::mixed", "nk,k->nk")
    engine.check(rows(5))


class Scaled(Tensor):
    """Whole numbers and their scales, which are multiplied where a layer uses them, and know of nothing else."""

    codes: Tensor
    scales: Tensor

    @staticmethod
    def __new__(cls: Any, codes: Tensor, scales: Tensor) -> Any:
        return Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scales.dtype, requires_grad=False)

    def __init__(self, codes: Tensor, scales: Tensor) -> None:
        self.codes, self.scales = codes, scales

    def __tensor_flatten__(self) -> Any:
        return ["codes", "scales"], None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.linear:
            x, weight, *bias = args
            return nn.functional.linear(x, weight.codes.to(x.dtype) * weight.scales, *bias)
        return super().__torch_function__(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].codes, args[0].scales)
        raise NotImplementedError(f"{func} on a quantised weight")


class Wrapped(nn.Linear):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__(inner, outer, bias=False)
        weight = Scaled(torch.randint(-7, 8, (outer, inner), dtype=torch.int8), torch.rand(outer, 1))
        self.weight = nn.Parameter(weight, requires_grad=False)


def test_a_weight_that_wraps_tensors_is_what_it_is_made_of(tmp_path: Path) -> None:
    """It was torch's error on its memory, which it has none of."""
    model: Any = adapted(Wrapped)
    is_as_reference(model)
    run = trained(model)
    assert torch.equal(run.weights["0.base.weight[codes]"], model[0].base.weight.codes)
    run.save(tmp_path / "run")
    assert load((tmp_path / "run" / "weights.safetensors").read_bytes()).keys() == run.weights.keys()


def test_a_pass_that_writes_to_a_part_of_a_wrapped_weight_is_refused() -> None:
    def keeps(model: Any, batch: Any) -> Tensor:
        model[0].base.weight.scales.add_(batch[0].sum())
        return loss(model, batch)

    with pytest.raises(UnsupportedModel, match=r"0\.base\.weight\[scales\]"):
        Engine(adapted(Wrapped), keeps).check(rows(5))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bits", [4, 8])
def test_the_layers_of_bitsandbytes_beside_adapters(bits: int) -> None:
    bnb = pytest.importorskip("bitsandbytes")

    def quantised(inner: int, outer: int) -> Any:
        plain = nn.Linear(inner, outer, bias=False)
        kind = bnb.nn.Linear4bit if bits == 4 else bnb.nn.Linear8bitLt
        change = {"compute_dtype": torch.float32} if bits == 4 else {"has_fp16_weights": False}
        layer = kind(inner, outer, bias=False, **change)
        layer.load_state_dict(plain.state_dict())
        return layer.requires_grad_(False).to("cpu")

    torch.manual_seed(0)
    model = nn.Sequential(
        Adapted(quantised(4, 64), 4, 64), nn.ReLU(), Adapted(quantised(64, 4), 64, 4), nn.Linear(4, 3)
    )
    is_as_reference(model)
    assert any("Linear4bit" in one or "Linear8bitLt" in one for one in map(str, trained(model).assumptions))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_weights_of_torchao_beside_adapters() -> None:
    quantization = pytest.importorskip("torchao.quantization")
    model = adapted(lambda inner, outer: nn.Linear(inner, outer).requires_grad_(False))
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig(), filter_fn=lambda _, name: name.endswith("base"))
    is_as_reference(model)
    assert trained(model).steps == PLAN.steps
