"""Every rule and the fallback against the slow loop, to 1e-10 in float64 and 1e-5 in float32."""

from typing import Any

import pytest
import torch
from clipping_cases import CASES, loss
from equality import UPWARDS, check_equal, form
from often import some
from torch import nn
from torch.nn import functional

from decrescendo.base.rng import seeded
from decrescendo.clipping import Engine, EngineSettings, Reference
from decrescendo.clipping.rules.rule import square_rows

# torch says that uneven padding copies the input; it is what is tested.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding=.same:UserWarning")


# What float32 does to a bound is tested below and in test_rounding.py; the rules are the same.
@pytest.mark.parametrize(
    "dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.slow)], ids=["float64", "float32"]
)
@pytest.mark.parametrize("name", some(CASES, 20))
def test_a_rule_equals_the_reference(name: str, dtype: torch.dtype) -> None:
    for size in (6, 1):
        model, batch = CASES[name].make(dtype, size)
        check_equal(model, batch, dtype, EngineSettings())


@pytest.mark.parametrize(
    "dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.slow)], ids=["float64", "float32"]
)
@pytest.mark.parametrize("name", some(CASES, 5))
def test_each_form_of_a_rule_equals_the_reference(name: str, dtype: torch.dtype) -> None:
    for size in (6, 1):
        model, batch = CASES[name].make(dtype, size)
        for rank in range(_ranks(name, dtype, size)):
            with form(rank):
                check_equal(model, batch, dtype, EngineSettings())


def _ranks(name: str, dtype: torch.dtype, size: int) -> int:
    """The most forms that an operation of this case may choose from; 0 where none has a choice."""
    model, batch = CASES[name].make(dtype, size)
    with form(0) as asked:
        Engine(model, loss).clipped_sum(batch, 1.0)
    return max(asked, default=0) if max(asked, default=0) > 1 else 0


def test_some_rules_do_choose_between_forms() -> None:
    """So that the loops over forms here are not over nothing: convolutions and products have three and more."""
    assert _ranks("conv2d valid, no bias", torch.float32, 6) >= 3
    assert _ranks("sequence, product", torch.float32, 6) >= 2


@pytest.mark.parametrize("name", some(CASES, 4))
def test_batch_sizes_that_coincide_with_the_models_own_sizes_change_nothing(name: str) -> None:
    """One engine over many batch sizes: 3 to 6 are widths and lengths in the models, 2 divides them."""
    case = CASES[name]
    model, _ = case.make(torch.float64, 1)
    engine, reference = Engine(model, loss), Reference(model, loss)
    for size in (5, 1, 3, 4, 2, 6, 10):
        batch = case.make(torch.float64, size, seed=size)[1]
        torch.testing.assert_close(
            engine.per_example_norms(batch), reference.per_example_norms(batch), rtol=1e-9, atol=1e-12
        )


@pytest.mark.parametrize("settings", [
    EngineSettings(microbatch_size=1),
    EngineSettings(microbatch_size=4),
    EngineSettings(microbatch_size=100),
    EngineSettings(cache_bytes=1),
    EngineSettings(cache_bytes=3000),
    EngineSettings(),
], ids=str)  # fmt: skip
@pytest.mark.parametrize(
    "name", some(["conv2d stride pad dilation groups", "conv folded", "sequence, product", "embedding"], 2)
)
def test_speed_settings_change_nothing(name: str, settings: EngineSettings) -> None:
    model, batch = CASES[name].make(torch.float64, 7)
    check_equal(model, batch, torch.float64, settings)


def test_the_gram_form_never_underestimates_a_norm_that_cancels() -> None:
    """Two positions whose gradients cancel up to a thousandth: in float32 the Gram sum alone is wrong."""
    from decrescendo.clipping.rules.grams import gram_norms

    generator = torch.Generator().manual_seed(0)
    a = torch.randn(64, 1, 40, generator=generator).repeat(1, 2, 1)
    a[:, 1] *= -(1 + 1e-3 * torch.randn(64, 1, generator=generator))
    d = torch.randn(64, 1, 40, generator=generator).repeat(1, 2, 1)
    true = torch.bmm(d.double().transpose(1, 2), a.double()).square().sum((1, 2))
    found = gram_norms(a, d, 0.0).double()
    assert bool((found >= true * (1 - 1e-6)).all())
    bare = (torch.bmm(a, a.transpose(1, 2)) * torch.bmm(d, d.transpose(1, 2))).sum((1, 2)).double()
    assert float((bare / true).min()) < 0.999  # what the guard is for does happen


def test_an_embedding_never_holds_a_row_for_every_word_and_example() -> None:
    """A (batch, vocabulary, dim) tensor here would be 40 GB."""
    model = nn.Embedding(1_000_000, 4)
    engine = Engine(model, lambda m, b: m(b).square().sum((1, 2)))
    ids = torch.randint(1_000_000, (2500, 3))
    norms = engine.per_example_norms(ids)
    expected = (2 * model.weight.detach()[ids]).square().sum((1, 2)).sqrt()
    torch.testing.assert_close(norms, expected)  # no id comes twice in a row of three with this seed, nearly surely


def test_norms_are_joint_over_all_parameters_and_uses() -> None:
    """A parameter used twice has one gradient, the sum: |g1 + g2|, not sqrt(|g1|^2 + |g2|^2)."""
    model = nn.Linear(2, 2, bias=False)
    engine = Engine(model, lambda m, x: (m(x) - m(x)).sum(1))
    # The two products are one, whose terms cancel before they are squared: nothing is left of 1.4 |x|.
    assert float(engine.per_example_norms(torch.randn(3, 2)).max()) < 1e-6


def test_an_operation_whose_output_reaches_no_loss_contributes_nothing() -> None:
    model = nn.ModuleDict({"used": nn.Linear(2, 1), "idle": nn.Linear(2, 1)})

    def half_idle(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        m["idle"](x)
        return m["used"](x).squeeze(1)

    clipped = Engine(model, half_idle).clipped_sum(torch.randn(4, 2), 1.0)
    assert float(clipped.gradients["idle.weight"].abs().max()) == 0.0
    assert float(clipped.gradients["used.weight"].abs().max()) > 0.0


def test_parts_under_no_grad_or_detached_get_no_gradient() -> None:
    model = nn.ModuleDict({"fixed": nn.Linear(2, 2), "head": nn.Linear(2, 1)})

    def mixed(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            hidden = m["fixed"](x)
        return (m["head"](hidden) + functional.linear(x, m["fixed"].weight.detach())[:, :1]).squeeze(1)

    batch = torch.randn(5, 2)
    check_equal(model, batch, torch.float32, EngineSettings(), mixed)
    assert float(Engine(model, mixed).clipped_sum(batch, 1.0).gradients["fixed.weight"].abs().max()) == 0.0


def test_dropout_draws_what_plain_training_draws() -> None:
    """With the same seed the recorded pass sees the masks of a plain pass, check or no check."""
    model = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3))
    _, batch = CASES["linear"].make(torch.float32, 8)
    batch = (batch[0][:, :4], batch[1])
    engine = Engine(model, loss, seeds=lambda: 5)
    for _ in range(2):
        clipped = engine.clipped_sum(batch, float("inf"))
        with seeded(5):
            plain = torch.autograd.grad(loss(model, batch).sum(), list(model.parameters()))
        for gradient, expected in zip(clipped.gradients.values(), plain, strict=True):
            torch.testing.assert_close(gradient, expected)


def test_a_penalty_on_the_weights_is_part_of_each_examples_gradient() -> None:
    """Written into each loss, its gradient is clipped with the rest; nothing unclipped is added."""

    def penalised(model: nn.Module, batch: Any) -> torch.Tensor:
        return loss(model, batch) + 0.1 * sum(p.square().sum() for p in model.parameters())

    model, batch = CASES["deep"].make(torch.float64, 6)
    check_equal(model, batch, torch.float64, EngineSettings(), penalised)


def test_autocast_is_followed() -> None:
    """Activations in bfloat16, weights in float32: equal up to the digits of bfloat16."""

    def cast(model: nn.Module, batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss(model, batch)

    model, batch = CASES["deep"].make(torch.float32, 9)
    found, expected = (build(model, cast).per_example_norms(batch) for build in (Engine, Reference))
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("name", some(CASES, 6))
def test_one_example_never_exceeds_the_clip_norm_as_stored_in_float32(name: str) -> None:
    """The sum over one example, its float32 numbers measured in float64: at most C, no rounding above."""
    for rank in range(max(1, _ranks(name, torch.float32, 6))):
        with form(rank):
            model, batch = CASES[name].make(torch.float32, 6)
            engine = Engine(model, loss)
            longest = float(engine.per_example_norms(batch).max())
            for row in range(0, 6, 2):
                one = tuple(rows[row : row + 1] for rows in batch)
                for limit in (1e-6 * longest, 0.5 * longest):
                    alone = engine.clipped_sum(one, limit)
                    length = torch.cat([g.double().flatten() for g in alone.gradients.values()]).norm()
                    assert float(length) <= limit
                    if alone.diagnostics.clipped:  # and it is not simply made small
                        assert float(length) >= limit * (1 - UPWARDS[torch.float32])


@pytest.mark.parametrize("size", [511, 512, 513, 1_537, 100_003, 3_000_000])
@pytest.mark.parametrize("value", [0.1, 0.3, 1 / 3])
def test_a_long_row_of_like_numbers_keeps_its_norm(size: int, value: float) -> None:
    """torch's own float32 norm adds one square after another: at ten million it is 0.8 % short, and C is exceeded."""
    row = torch.full((1, size), value)
    exact = float(row.double().square().sum())
    # Never short, however the squares are added; 68 units of rounding are given back, lost or not.
    assert 0 <= float(square_rows(row)) / exact - 1 < 2 * 68 * 2.0**-24


def test_one_example_of_a_million_like_gradients_does_not_exceed_the_clip_norm() -> None:
    layer = nn.Linear(1_500, 1_000, bias=False)
    batch = torch.full((1, 1_500), 0.1)
    engine = Engine(layer, lambda model, rows: model(rows).sum(1))
    bias = nn.Parameter(torch.zeros(3_000_000))
    shift = nn.Module()
    shift.register_parameter("bias", bias)
    added = Engine(shift, lambda model, rows: (rows[:, :1] * model.bias).sum(1))
    for clipped in (engine.clipped_sum(batch, 0.5), added.clipped_sum(batch, 0.5)):
        length = torch.cat([g.double().flatten() for g in clipped.gradients.values()]).norm()
        assert 0.5 * (1 - 1e-5) <= float(length) <= 0.5


@pytest.mark.parametrize(
    "layer",
    [nn.Conv1d(2, 3, 3), nn.Linear(9, 4), nn.ConvTranspose1d(2, 3, 3)],
    ids=lambda layer: type(layer).__name__,
)
def test_one_example_that_overflows_does_not_have_the_others_refused(layer: nn.Module) -> None:
    """It counts for nothing; compared with autograd's, infinity times nothing was the gradient of the others."""
    torch.manual_seed(0)
    batch = torch.randn(3, 2, 9)
    engine = Engine(layer, lambda m, x: m(x).sum((1, 2)))
    expected = engine.clipped_sum(batch[1:], 1.0).gradients
    batch[0] *= 1e38
    found = Engine(layer, lambda m, x: m(x).sum((1, 2))).clipped_sum(batch, 1.0)
    assert found.diagnostics.nonfinite == 1
    for name, gradient in expected.items():
        torch.testing.assert_close(found.gradients[name], gradient)
