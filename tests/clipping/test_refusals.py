"""What the engine refuses, and with which words: trained on, these would break the guarantee silently. And programs at
which an error of torch's own came out of it once: each is exact, or refused in our words."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from clipping_cases import CASES, Made, loss, normal
from often import some
from torch import Tensor, nn
from torch.nn import functional
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint

from decrescendo.clipping import Engine, Reference, recording
from decrescendo.clipping.rules.linear import LinearKernel
from decrescendo.clipping.rules.rule import Rule
from decrescendo.errors import DecrescendoError, InvalidType, InvalidValue, UnsupportedModel


def run(model: nn.Module, batch: Any, loss: Any = loss, rows: int = 8) -> None:
    Engine(model, loss, seeds=lambda: 1).clipped_sum(batch, 1.0)


def data(width: int = 4, rows: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, width, generator=generator), torch.randint(3, (rows,), generator=generator)


class Doubled(torch.autograd.Function):
    """A use of a parameter that no torch function shows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight * 2

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        return d * weight * 2, (d * x * 2).sum(0)


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


MIXING: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "batch norm": (batch_norm, "GroupNorm"),
    "batch norm without trained parameters": (
        lambda: nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 3)),
        "GroupNorm",
    ),
    "statistics of the inputs, before the first trained operation": (
        lambda: Made(lambda m, x: m.layer((x - x.mean(0)) / x.std(0)), layer=nn.Linear(4, 3)),
        "examples are put together",
    ),
    "detached statistics between trained operations": (
        lambda: Made(lambda m, x: m.b(_centred(m.a(x))), a=nn.Linear(4, 4), b=nn.Linear(4, 3)),
        "examples are put together",
    ),
    "statistics with gradients": (
        lambda: Made(lambda m, x: m.b(m.a(x) - m.a(x).mean(0)), a=nn.Linear(4, 4), b=nn.Linear(4, 3)),
        "another example",
    ),
    "attention over the batch": (
        lambda: Made(lambda m, x: torch.softmax(m.a(x) @ x.t(), 1) @ m.b(x), a=nn.Linear(4, 4), b=nn.Linear(4, 3)),
        "another example",
    ),
    "rows shifted by one": (
        lambda: Made(lambda m, x: m.layer(x).roll(1, 0), layer=nn.Linear(4, 3)),
        "another example",
    ),
    "a weight scaled by the batch": (
        lambda: Made(lambda m, x: x @ (m.w * x.abs().mean()), w=normal(4, 3)),
        "another example",
    ),
    "batch size in the output": (
        lambda: Made(lambda m, x: m.layer(x) / x.shape[0], layer=nn.Linear(4, 3)),
        "same for any number of examples",
    ),
    "dropout and statistics of the inputs": (
        lambda: nn.Sequential(nn.Dropout(0.5), Made(lambda m, x: m.layer(x - x.mean(0)), layer=nn.Linear(4, 3))),
        "examples are put together",
    ),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)),
        lambda: Made(lambda m, x: m.layer(functional.batch_norm(x, None, None, training=True)), layer=nn.Linear(4, 3)),
    ],
    ids=["module", "function"],
)
def test_batch_norm_without_statistics_is_not_told_to_use_them(build: Callable[[], nn.Module], training: bool) -> None:
    """In evaluation mode it takes those of the batch, too."""
    with pytest.raises(UnsupportedModel, match="without_batch_norm") as refused:
        run(build().train(training), data())
    assert "eval()" not in str(refused.value)


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(0).detach()


@pytest.mark.parametrize("name", MIXING)
def test_a_model_that_mixes_examples_is_refused(name: str) -> None:
    build, reason = MIXING[name]
    torch.manual_seed(0)
    with pytest.raises(UnsupportedModel, match=reason):
        run(build(), data())


@pytest.mark.parametrize("rows", [2, 3, 4, 12, 30])
def test_mixing_is_found_at_any_batch_size(rows: int) -> None:
    torch.manual_seed(0)
    model = MIXING["detached statistics between trained operations"][0]()
    with pytest.raises(UnsupportedModel):
        run(model, data(rows=rows))


def test_mixing_is_found_behind_an_example_that_is_not_finite() -> None:
    """A poisoned record must not switch the check off."""
    torch.manual_seed(0)
    model = Made(lambda m, x: m.layer(x).roll(1, 0), layer=nn.Linear(4, 3))
    x, y = data()
    x[2] = float("nan")
    with pytest.raises(UnsupportedModel):
        run(model, (x, y))


def test_mixing_is_found_on_the_first_batch_of_several_after_single_ones() -> None:
    torch.manual_seed(0)
    engine = Engine(Made(lambda m, x: m.layer(x - x.mean(0) + x[0]), layer=nn.Linear(4, 3)), loss)
    for rows in (1, 4):  # one row is passed twice: its own dimension is never taken for another
        with pytest.raises(UnsupportedModel):
            engine.clipped_sum(data(rows=rows), 1.0)


def test_a_new_form_of_the_forward_pass_is_checked_when_it_first_comes() -> None:
    """Control flow that turns to mixing later, after the first batch was accepted."""
    torch.manual_seed(0)
    parts = {"a": nn.Linear(4, 3), "b": nn.Linear(4, 3)}
    late = Made(lambda m, x: m.a(x) if len(x) < 10 else m.b(x - x.mean(0)), **parts)
    engine = Engine(late, loss)
    engine.clipped_sum(data(rows=8), 1.0)
    with pytest.raises(UnsupportedModel):
        engine.clipped_sum(data(rows=10), 1.0)


def test_a_contrastive_loss_is_refused() -> None:
    def contrastive(model: nn.Module, batch: Any) -> Tensor:
        z = functional.normalize(model(batch[0]), dim=1)
        return functional.cross_entropy(z @ z.t(), torch.arange(len(z)), reduction="none")

    torch.manual_seed(0)
    with pytest.raises(UnsupportedModel, match="another example"):
        run(nn.Linear(4, 3), data(), contrastive)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]), "reduction='none'"),
        (lambda model, batch: model(batch[0]), "one loss per example"),
        (lambda model, batch: model(batch[0]).sum(1).detach(), "without a gradient"),
        (lambda model, batch: 1.0, "float"),
        (lambda model, batch: model(batch[0]).sum(1).long(), "floating point"),
    ],
    ids=["scalar", "matrix", "detached", "number", "whole"],
)
def test_a_loss_that_is_not_one_value_an_example_is_refused(wrong: Any, words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        run(nn.Linear(4, 3), data(), wrong)


def test_a_use_that_no_torch_function_shows_is_found_in_the_graph() -> None:
    hidden = Made(lambda m, x: m.layer(Doubled.apply(x, m.scale)), layer=nn.Linear(4, 3), scale=normal(4))
    with pytest.raises(UnsupportedModel, match="scale used by DoubledBackward"):
        run(hidden, data())
    with pytest.raises(UnsupportedModel, match="scale used by"):  # also without the numerical check
        Engine(hidden, loss).clipped_sum(data(), 1.0)


def test_an_input_overwritten_after_its_use_is_refused() -> None:
    """Plain autograd refuses it when it computes the weight gradient, which the engine never asks for."""

    def overwrite(m: Any, x: Tensor) -> Tensor:
        hidden = x * 2
        out = m.layer(hidden)
        hidden.mul_(3)
        return out

    with pytest.raises(UnsupportedModel, match="overwritten"):
        run(Made(overwrite, layer=nn.Linear(4, 3)), data())


def test_a_hook_that_changes_a_parameters_gradient_is_found() -> None:
    model = nn.Linear(4, 3)
    model.weight.register_hook(lambda gradient: gradient * 2)
    with pytest.raises(UnsupportedModel, match="hook"):
        run(model, data())


@pytest.mark.parametrize(
    "hook", [lambda g: g + 1, lambda g: g + torch.rand_like(g)], ids=["the same", "another each time"]
)
def test_what_cancels_hides_no_hook(hook: Any) -> None:
    """Where only rounding is left of a gradient, the engine and autograd may differ by rounding and no more."""

    def cancelling(model: nn.Module, rows: Tensor) -> Tensor:
        return (functional.linear(rows, model.weight) * 1e4 * torch.tensor([[1.0], [-1.0]] * 32)).sum((1, 2))

    model, rows = nn.Linear(64, 64, bias=False), torch.randn(2, 1, 64).expand(2, 64, 64)
    run(model, rows, cancelling)
    model.weight.register_hook(hook)
    with pytest.raises(UnsupportedModel, match="hook"):
        run(model, rows, cancelling)


def test_a_rule_that_is_wrong_by_a_percent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The power of the comparison with autograd: nothing but the sum is off."""

    class Off(LinearKernel):
        def scaled_sum(self, slot: int, d: Tensor, weights: Tensor) -> Tensor:
            return 1.01 * LinearKernel.scaled_sum(self, slot, d, weights)

    rule = recording.RULES[functional.linear]

    def build(call: Any, bound: Any) -> Any:
        found = rule.build(call, bound)
        return Off(found.roles, found.parameters, found.saved, found.inputs, found.transposed, found.workspace)

    run(nn.Linear(4, 3), data())
    monkeypatch.setitem(recording.RULES, functional.linear, Rule(rule.names, build))
    with pytest.raises(UnsupportedModel, match="must be autograd's"):
        run(nn.Linear(4, 3), data())


class Counting(nn.Module):
    """Keeps a running mean of its inputs: private data in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(x.detach().sum(0))
        return self.layer(x)


def test_a_buffer_that_collects_data_is_refused_and_restored() -> None:
    model = Counting()
    with pytest.raises(UnsupportedModel, match="buffers, got a change of seen"):
        run(model, data())
    assert float(model.seen.abs().sum()) == 0.0


class CodeBook(nn.Module):
    """Moves a frozen parameter towards its inputs, as vector quantisation does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.code = nn.Parameter(torch.zeros(4), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.code.lerp_(x.mean(0), 0.01)
        return self.layer(x)


def test_a_frozen_parameter_that_collects_data_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="parameters or buffers, got a change of code"):
        run(CodeBook(), data())


def test_running_statistics_of_instance_norm_are_refused() -> None:
    model = nn.Sequential(nn.Conv1d(1, 3, 2), nn.InstanceNorm1d(3, track_running_stats=True), nn.Flatten())
    with pytest.raises(UnsupportedModel, match=r"keeps statistics.*InstanceNorm with track_running_stats=False"):
        run(model, (torch.randn(5, 1, 4), torch.randint(3, (5,))))


@pytest.mark.parametrize("option", ["max_norm", "scale_grad_by_freq"])
def test_embedding_options_that_look_at_other_examples_are_refused(option: str) -> None:
    table = nn.Embedding(5, 3, **{option: 1})
    before = table.weight.detach().clone()
    with pytest.raises(UnsupportedModel, match=option):
        run(
            nn.Sequential(table, nn.Flatten(), nn.Linear(6, 3)),
            (torch.randint(5, (4, 2)), torch.randint(3, (4,))),
        )
    assert torch.equal(table.weight, before)


def test_an_operation_that_returns_several_tensors_is_refused_by_name() -> None:
    model = Made(lambda m, x: torch.linalg.solve_ex(m.w, x.unsqueeze(2))[0].squeeze(2)[:, :3], w=normal(4, 4))
    with pytest.raises(UnsupportedModel, match="linalg_solve_ex with w"):
        run(model, data())


def test_an_operation_that_vmap_cannot_do_is_refused_by_name() -> None:
    model = Made(lambda m, x: m.layer(_odd(x, m.edges)), layer=nn.Linear(4, 3), edges=normal(4))
    with pytest.raises(UnsupportedModel, match="masked_scatter"):
        run(model, data())


def _odd(x: Tensor, edges: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.masked_scatter(x, x > 0, edges.repeat(x.shape[0]))


@pytest.mark.parametrize(
    ("batch", "kind", "words"),
    [
        ((torch.zeros(3, 4), torch.zeros(2)), InvalidValue, "same first dimension"),
        ((torch.zeros(3, 4), "text"), InvalidType, "got a str"),
        ((torch.zeros(3, 4), 3), InvalidType, "got a int"),
        ((torch.zeros(3, 4), torch.tensor(1.0)), InvalidValue, "without dimensions"),
        ((), InvalidValue, "at least one tensor"),
    ],
)
def test_a_batch_whose_rows_cannot_be_told_apart_is_refused(batch: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        run(nn.Linear(4, 3), batch)


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, float("nan"), 1e-13])
def test_a_clip_norm_out_of_range_is_refused(clip_norm: float) -> None:
    with pytest.raises(InvalidValue, match="clip_norm"):
        Engine(nn.Linear(4, 3), loss).clipped_sum(data(), clip_norm)


def test_a_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(InvalidValue, match="requires_grad=True"):
        Engine(nn.Linear(4, 3).requires_grad_(False), loss)


@pytest.mark.filterwarnings("ignore:Using padding=.same:UserWarning")
@pytest.mark.parametrize("name", some(CASES, 12))
def test_no_good_model_is_refused(name: str) -> None:
    """The other side of every test above: the check accepts what is right, at 2, 13 and 20 rows."""
    for dtype, rows in ((torch.float32, 2), (torch.float64, 13), (torch.float32, 20)):
        model, batch = CASES[name].make(dtype, rows, seed=rows)
        Engine(model, loss).check(batch)


def test_a_check_accepts_dropout_and_other_randomness_of_each_row() -> None:
    noisy = Made(lambda m, x: m.layer(functional.dropout(x + torch.randn_like(x))), layer=nn.Linear(4, 3))
    Engine(noisy, loss, seeds=lambda: 1).check(data())


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.lstm = nn.Linear(4, 3), nn.LSTM(4, 3, batch_first=True)
        self.register_buffer("sparse", torch.eye(3).to_sparse())
        self.real, self.imaginary = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4, 3))


def square(out: Tensor) -> Tensor:
    return (torch.view_as_real(out) if out.is_complex() else out).flatten(1).square().sum(1)


def ids(x: Tensor) -> Tensor:
    return (x[:, 0] > 0).long()


def several(x: Tensor) -> Tensor:
    return torch.stack([ids(x), 1 + 0 * ids(x), -1 + 0 * ids(x)], 1)


EXACT: Mapping[str, Callable[[Any, Tensor], Tensor]] = {
    "multi_margin_loss": lambda m, x: fn.multi_margin_loss(m.layer(x), ids(x), reduction="none"),
    "multilabel_margin_loss": lambda m, x: fn.multilabel_margin_loss(m.layer(x), several(x), reduction="none"),
    "a sparse buffer, made dense": lambda m, x: square(m.layer(x) @ m.sparse.to_dense()),
    "complex": lambda m, x: square(torch.fft.fft(x) @ torch.complex(m.real, m.imaginary)),
    "a sum of parts": lambda m, x: square(torch.fft.fft(x) @ (m.real + 1j * m.imaginary)),
    "polar": lambda m, x: square(torch.fft.fft(x) @ torch.polar(m.real, m.imaginary)),
    "view_as_complex": lambda m, x: square(
        torch.fft.fft(x) @ torch.view_as_complex(torch.stack([m.real, m.imaginary], -1))
    ),
    "vjp": lambda m, x: square(m.layer(x) * torch.func.vjp(_cubes, x)[1](torch.ones_like(x[:, 0]))[0][:, :1]),
    "a Jacobian of each": lambda m, x: square(
        m.layer(x) * torch.func.vmap(torch.func.jacrev(torch.sin))(x).sum((1, 2))[:, None]
    ),
    "a complex factor": lambda m, x: square(torch.fft.fft(x) * torch.complex(m.real, m.imaginary)[:, 0]),
    "a checkpoint round a recurrent layer": lambda m, x: square(
        checkpoint(lambda t: m.lstm(t)[0], x.unsqueeze(1).expand(-1, 5, -1), use_reentrant=False)
    ),
}


def _cubes(x: Tensor) -> Tensor:
    return (x**3).sum(1)


REFUSED: Mapping[str, Callable[[Any, Tensor], Tensor]] = {
    "multi_margin_loss": lambda m, x: fn.multi_margin_loss(m.layer(x), ids(x)).expand(len(x)),
    "its sum": lambda m, x: fn.multi_margin_loss(m.layer(x), ids(x), reduction="sum").expand(len(x)),
    "multilabel_margin_loss": lambda m, x: fn.multilabel_margin_loss(m.layer(x), several(x)).expand(len(x)),
    "vjp of a sum": lambda m, x: square(
        m.layer(x) * torch.func.vjp(lambda z: z.sum() ** 2, x)[1](torch.ones(()))[0][:, :1]
    ),
    "linearize": lambda m, x: square(m.layer(x) * torch.func.linearize(_cubes, x)[1](x)[:, None]),
    "packed for a quantized product": lambda m, x: square(
        m.layer(x)
        * torch.ops.quantized.linear_dynamic(
            torch.eye(4),
            torch.ops.quantized.linear_prepack(
                torch.quantize_per_tensor(x[:1].expand(8, 4).contiguous(), 0.5, 0, torch.qint8), None
            ),
        ).sum()
    ),
    "one loss for all": lambda m, x: fn.multi_margin_loss(m.layer(x), ids(x)),
    "_foreach_max": lambda m, x: square(m.layer(x)) * torch._foreach_max([x])[0],
    "a product with a sparse buffer": lambda m, x: square(torch.sparse.mm(m.sparse, m.layer(x).T).T),
    "a checkpoint round a recurrent layer that centres the batch": lambda m, x: square(
        checkpoint(lambda t: m.lstm(t - t.mean(0))[0], x.unsqueeze(1).expand(-1, 5, -1), use_reentrant=False)
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_it_is_exact(name: str) -> None:
    model = Small()
    engine, reference = Engine(model, EXACT[name]), Reference(model, EXACT[name])
    for rows in (6, 3, 1):
        batch = torch.randn(rows, 4)
        found, slow = (each.clipped_sum(batch, 0.5).gradients for each in (engine, reference))
        for key, gradient in slow.items():
            torch.testing.assert_close(found[key], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_our_own_words(name: str) -> None:
    with pytest.raises(DecrescendoError):
        Engine(Small(), REFUSED[name]).clipped_sum(torch.randn(6, 4), 0.5)


def test_a_sparse_batch_is_refused() -> None:
    with pytest.raises(InvalidValue, match="must be dense"):
        Engine(Small(), lambda m, x: square(m.layer(x.to_dense()))).clipped_sum(torch.randn(6, 4).to_sparse(), 1.0)
