"""What docs/explanation/rounding.md claims, attacked: numbers as they are stored, measured in float64 or exactly."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
import torch
from clipping_cases import CASES, Made, loss
from equality import has_kernels
from hypothesis import example, given, settings
from hypothesis import strategies as st
from often import some
from torch import Tensor, nn
from torch.nn import functional

from decrescendo.clipping import ClippedSum, Engine, EngineSettings, Reference
from decrescendo.clipping.clipped import MARGINS, clip_factors
from decrescendo.clipping.rules.grams import gram_norms
from decrescendo.clipping.rules.rule import square_rows
from decrescendo.errors import UnsupportedModel

pytestmark = pytest.mark.filterwarnings("ignore:Using padding=.same:UserWarning")
PRECISE = EngineSettings(accumulate="float64")


def flat(clipped: ClippedSum) -> Tensor:
    return torch.cat([gradient.double().flatten() for gradient in clipped.gradients.values()])


def without(batch: Any, row: int) -> Any:
    keep = [other for other in range(len(batch[0])) if other != row]
    return tuple(rows[keep] for rows in batch)


def under_autocast(model: nn.Module, batch: Any) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return loss(model, batch)


@contextmanager
def products(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def flushing() -> Iterator[None]:
    """Denormal numbers become zero, as some people set it for speed."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def exact_squares(row: Tensor) -> float:
    # The square of a float32 is exact in float64, and fsum rounds once.
    return math.fsum(value * value for value in row.double().flatten().tolist())


NUMBERS = st.one_of(
    st.floats(-(2.0**60), 2.0**60, width=32),
    st.floats(-(2.0**-50), 2.0**-50, width=32),
    st.floats(0.125, 1.0, width=32),
    st.sampled_from([0.0, 1e-45, 1e-38, 3e-23, 1e-20, 1 / 3, 1e18]),
)


@given(st.lists(NUMBERS, min_size=1, max_size=12), st.integers(1, 40), st.booleans())
def test_squares_are_never_short(values: list[float], repeats: int, flush: bool) -> None:
    row = torch.tensor([values], dtype=torch.float32).repeat(1, repeats)
    exact = exact_squares(row)
    if flush:
        with flushing():
            found = float(square_rows(row))
    else:
        found = float(square_rows(row))
    assert found >= exact
    assert found <= exact * (1 + 1e-5) + row.numel() * 2.0**-125


@pytest.mark.parametrize(
    ("count", "make"),
    [
        (10_000_000, lambda n: torch.full((1, n), 1 / 3)),
        (10_000_000, lambda n: torch.full((1, n), 1e-15)),
        (1_000_000, lambda n: torch.logspace(-20, 18, n).reshape(1, n)),
        (1_000_000, lambda n: torch.full((1, n), 1e-23)),
        (4_096, lambda n: torch.cat([torch.tensor([[1e4]]), torch.full((1, n - 1), 2e-4)], 1)),
        (65, lambda n: torch.full((1, n), 1.0000001)),
    ],
    ids=["equal", "small", "all magnitudes", "vanishing squares", "one huge", "just above a block"],
)
def test_squares_of_long_rows_are_never_short(count: int, make: Callable[[int], Tensor]) -> None:
    row = make(count)
    exact = float(row.double().square().sum())  # float64 is short by 1e-9 at most here
    assert float(square_rows(row)) >= exact * (1 - 1e-10)
    assert float(square_rows(row)) <= exact * (1 + 1e-5) + count * 2.0**-125


@given(
    st.floats(1e-12, 1e15),
    st.floats(0, 1e19),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_a_factor_times_its_norm_is_below_the_clip_norm(limit: float, norm: float, dtype: torch.dtype) -> None:
    factor = clip_factors(torch.tensor([norm], dtype=torch.float64), limit, dtype)
    assert factor.dtype == dtype
    assert Fraction(float(factor)) * Fraction(norm) <= Fraction(limit)
    if norm > limit and limit / norm > 1e-30:
        assert float(factor) * norm >= limit * (1 - 2 * MARGINS[dtype])


def gradient_of(a: Tensor, d: Tensor) -> list[list[Fraction]]:
    """sum_s d_s a_s^T of one example, exactly."""
    return [
        [
            sum((Fraction(d[s, o].item()) * Fraction(a[s, f].item()) for s in range(len(a))), Fraction(0))
            for f in range(a.shape[1])
        ]
        for o in range(d.shape[1])
    ]


@given(
    st.integers(0, 10_000),
    st.sampled_from([1e-30, 1e-22, 1e-12, 1.0, 1e12]),
    st.sampled_from([1e-25, 1e-6, 1.0, 1e17]),
)
def test_gram_norms_are_never_short_where_products_vanish(seed: int, small: float, large: float) -> None:
    """Squares of 1e-22 vanish in float32; times 1e17 squared they are worth something."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(3, 4, generator=generator) * small
    d = torch.randn(3, 2, generator=generator) * large
    exact = sum(entry * entry for row in gradient_of(a, d) for entry in row)
    found = float(gram_norms(a.unsqueeze(0), d.unsqueeze(0), 0.0))
    # The smallest clip norm is 1e-12: what is shorter than 1e-30 is not looked at that closely.
    assert not math.isfinite(found) or Fraction(found) >= exact or exact < Fraction("1e-60")


@pytest.mark.parametrize(("features", "outputs"), [(256, 512), (256, 5000), (513, 7)])
def test_the_bound_of_gram_norms_costs_little(features: int, outputs: int) -> None:
    """Positions that have nothing special in common: overestimated by less than a thousandth."""
    generator = torch.Generator().manual_seed(0)
    a, d = torch.randn(4, 64, features, generator=generator), torch.randn(4, 64, outputs, generator=generator)
    true = torch.bmm(d.double().mT, a.double()).square().sum((1, 2))
    ratio = gram_norms(a, d, 2.0**-22) / true
    assert 1 <= float(ratio.min()) <= float(ratio.max()) < 1.001


@given(st.integers(0, 10_000), st.sampled_from([0.0, 1e-7, 1e-5, 1e-3, 1.0]), st.integers(2, 6))
def test_gram_norms_are_never_short_where_positions_cancel(seed: int, left: float, positions: int) -> None:
    """Pairs of positions that are equal but for rounding, with opposite output gradients."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    base_a, base_d = draw(1, 3), draw(1, 2)
    a = base_a * (1 + left * draw(positions, 3))
    d = base_d * (1 + left * draw(positions, 2))
    d[positions // 2 :] *= -1
    exact = sum(entry * entry for row in gradient_of(a, d) for entry in row)
    assert Fraction(float(gram_norms(a.unsqueeze(0), d.unsqueeze(0), 0.0))) >= exact


def test_float32_gram_matrices_would_be_short_without_their_bound() -> None:
    """The reason for the bound: wide rows of like numbers, with errors that do not average out."""
    torch.manual_seed(0)
    worst = 1.0
    for _ in range(20):
        base = torch.rand(1, 1, 4096)
        a = base * (1 + 3e-4 * torch.randn(1, 8, 4096))
        d = torch.randn(1, 8, 1)
        d -= d.mean(1, keepdim=True)
        true = float((d.double().mT @ a.double()).square().sum())
        bare = float((torch.bmm(a, a.mT) * torch.bmm(d, d.mT)).sum())
        worst = min(worst, bare / true)
        assert float(gram_norms(a, d, 0.0)) >= true
    assert worst < 1 - 1e-4


DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
# float64 has no path of its own, and the widest margin.
NARROW = ("float32", "bfloat16", "float16")
QUICK = {
    ("float32", "plain"),
}
# Complex numbers of half precision are not there; two operations do not run alone under autocast.
MISSING = {
    "bfloat16": {"filter in frequencies"},
    "float16": {"filter in frequencies"},
    "autocast": {"prelu", "weighted by a buffer"},
}


@pytest.mark.parametrize("part", some(range(3), 1))
@pytest.mark.parametrize(
    ("kind", "chosen"),
    [
        pytest.param(
            kind, chosen, id=f"{kind}-{name}",
            marks=[] if (kind, name) in QUICK else [pytest.mark.slow],
        )
        for kind in (*NARROW, "autocast", "float64")
        for name, chosen in (("plain", EngineSettings()), ("precise", PRECISE))
    ],
)  # fmt: skip
def test_leaving_one_example_away_moves_the_stored_sum_by_at_most_the_clip_norm(
    kind: str, chosen: EngineSettings, part: int
) -> None:
    """Engine(batch) - Engine(batch without a row), in float64, for every rule: at most C, not C and a little."""
    worst = 0.0
    for name, case in list(CASES.items())[part::3]:
        if name in MISSING.get(kind, ()):
            continue
        model, batch = case.make(DTYPES.get(kind, torch.float32), 6)
        engine = Engine(model, under_autocast if kind == "autocast" else loss, chosen)
        if kind == "autocast" and not has_kernels(partial(engine.per_example_norms, batch)):
            continue
        norms = engine.per_example_norms(batch).double()
        limit = max(float(norms.median()), 1e-6)
        whole = flat(engine.clipped_sum(batch, limit))
        moves = [float((whole - flat(engine.clipped_sum(without(batch, k), limit))).norm()) for k in (1, 4)]
        assert max(moves) <= limit, f"{name}: {max(moves) / limit - 1:.1e} above"
        worst = max(worst, max(moves) / limit)
    assert worst > 1 - 1e-5  # and the bound is used to the full


@pytest.mark.parametrize("examples", [64, 512, 4096])
@pytest.mark.parametrize("value", some(["like", "random"], 1))
def test_a_long_precise_sum_of_aligned_gradients_moves_by_at_most_the_clip_norm(examples: int, value: str) -> None:
    """All gradients point the same way, so that the sum is as large, and its rounding as coarse, as can be."""
    torch.manual_seed(0)
    rows = torch.full((examples, 64), 1 / 3) if value == "like" else torch.rand(examples, 64)
    layer = nn.Linear(64, 64, bias=False)
    engines = [Engine(layer, lambda m, b: m(b).sum(1), s) for s in (PRECISE, EngineSettings())]
    for row in range(0, examples, max(1, examples // 8)):
        rest = torch.cat([rows[:row], rows[row + 1 :]])
        precise, plain = (
            float((flat(engine.clipped_sum(rows, 1.0)) - flat(engine.clipped_sum(rest, 1.0))).norm())
            for engine in engines
        )
        assert 1 - 1e-5 <= precise <= 1.0
        # What docs/explanation/rounding.md says of float32 sums: each sum is off by (n + 1) 2^-24 n C at most.
        assert abs(plain - 1) <= 2 * (examples + 1) * 2.0**-24 * examples + 2e-6


@pytest.mark.parametrize("examples", [300, 5_116])
def test_what_the_pages_say_of_float32_sums_of_like_gradients_is_measured(examples: int) -> None:
    """At most 2 n 2^-24 C above C, and nearly so: no hundred-thousandth at any size."""
    limit, row = 1.6411844684051514, torch.full((1, 1), 100.0)
    engine = Engine(nn.Linear(1, 1, bias=False), lambda m, b: m(b)[:, 0])
    sums = [
        float(flat(engine.clipped_sum(row.expand(examples - out, 1), limit * scale))) / scale
        for scale in (1.0, 0.7, 0.83)
        for out in (0, 1)
    ]
    most = max(whole - rest for whole, rest in zip(sums[::2], sums[1::2], strict=True)) / limit - 1
    assert examples * 2.0**-24 / 5 < most <= 2 * examples * 2.0**-24


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("exponents", [(-21, 18), (-30, 18), (-19, 16), (18, -30), (-10, 10)])
def test_inputs_and_output_gradients_of_far_apart_magnitudes(exponents: tuple[int, int], flush: bool) -> None:
    """|a|^2 |d|^2 where one square vanishes and the other nearly overflows."""
    small, large = 10.0 ** exponents[0], 10.0 ** exponents[1]
    layer = nn.Linear(3, 2, bias=False)
    rows = torch.full((1, 3), small)
    limit = small * large / 5
    engine = Engine(layer, lambda m, b: m(b).sum(1) * large)
    if limit < 1e-12:
        limit = 1e-12
    if flush:
        with flushing():
            clipped = engine.clipped_sum(rows, limit)
    else:
        clipped = engine.clipped_sum(rows, limit)
    assert float(flat(clipped).norm()) <= limit


@pytest.mark.parametrize("value", [1e19, 1e25, 1e30, 3e38])
@pytest.mark.parametrize("chosen", [EngineSettings(), PRECISE], ids=["plain", "precise"])
def test_a_norm_whose_square_overflows_float32_counts_as_not_finite(value: float, chosen: EngineSettings) -> None:
    layer = nn.Linear(3, 2)
    rows = torch.ones(4, 3)
    rows[1] = value
    # The bias has gradient 1, the weight has `value`.
    engine = Engine(layer, lambda m, b: m(b).sum(1), chosen)
    clipped = engine.clipped_sum(rows, 0.5)
    dropped = value > 1e19 and not chosen.wide
    assert clipped.diagnostics.nonfinite == int(dropped)
    rest = engine.clipped_sum(rows[[0, 2, 3]], 0.5)
    assert float((flat(clipped) - flat(rest)).norm()) <= 0.5
    if dropped:
        torch.testing.assert_close(flat(clipped), flat(rest))


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_coarse_matrix_products_do_not_blur_the_sum(precision: str) -> None:
    """`set_float32_matmul_precision("medium")` multiplies in bfloat16 where the processor can: 3 digits."""
    torch.manual_seed(1)
    layer, rows = nn.Linear(512, 128, bias=False), torch.randn(64, 512)
    engine = Engine(layer, lambda m, b: m(b).sum(1), EngineSettings())
    expected = engine.clipped_sum(rows, 1.0)
    with products(precision):
        found = engine.clipped_sum(rows, 1.0)
        assert torch.get_float32_matmul_precision() == precision
    torch.testing.assert_close(flat(found), flat(expected), rtol=1e-6, atol=1e-6)


def test_the_switch_of_one_kind_of_products_alone_may_be_set() -> None:
    """torch's older function then refuses to say what all of them are."""
    switch: Any = torch.backends.cuda.matmul
    before = switch.fp32_precision
    rows, engine = torch.randn(6, 5), Engine(nn.Linear(5, 2), lambda m, b: m(b).sum(1), EngineSettings())
    switch.fp32_precision = "ieee" if before == "tf32" else "tf32"
    try:
        assert engine.clipped_sum(rows, 1.0).diagnostics.examples == 6
    finally:
        switch.fp32_precision = before


def test_an_autocast_round_the_step_does_not_round_the_sum() -> None:
    torch.manual_seed(1)
    layer, rows = nn.Linear(512, 128, bias=False), torch.randn(64, 512)
    engine = Engine(layer, lambda m, b: m(b).float().sum(1), EngineSettings())
    expected = engine.clipped_sum(rows, 1.0)
    with torch.autocast("cpu", torch.bfloat16):
        found = engine.clipped_sum(rows, 1.0)
        assert torch.is_autocast_enabled("cpu")
    torch.testing.assert_close(flat(found), flat(expected), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_sum_for_a_reshaped_half_precision_parameter_keeps_its_digits(dtype: torch.dtype) -> None:
    """A sum rounded to bfloat16 moves by far more than C when one example is added to five hundred."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(6, 4).to(dtype))
    viewed = Made(lambda m, x: x @ m.w.reshape(4, 6), w=weight)
    rows = torch.rand(500, 4).to(dtype)
    engine = Engine(viewed, lambda m, b: m(b).float().sum(1))
    whole = engine.clipped_sum(rows, 1.0)
    plain = Made(lambda m, x: x @ m.w, w=nn.Parameter(weight.detach().reshape(4, 6)))
    expected = Engine(plain, lambda m, b: m(b).float().sum(1)).clipped_sum(rows, 1.0)
    assert torch.equal(whole.gradients["w"].reshape(4, 6), expected.gradients["w"])
    alone = engine.clipped_sum(rows[1:], 1.0)
    assert float((flat(whole) - flat(alone)).norm()) <= 1 + 1e-4


@settings(deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.0, 1e-6, 1e-3, 1.0]), st.sampled_from([2, 8, 33]))
@example(0, 0.0, 64)  # nothing is left but what rounding makes of it: not the same for engine and autograd
def test_one_stored_example_whose_positions_cancel(seed: int, left: float, positions: int) -> None:
    """The product of a sequence adds numbers far larger than their sum: its rounding must not pass C."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(1, 1, 64, generator=generator) * (1 + left * torch.randn(1, positions, 64, generator=generator))
    signs = torch.ones(positions)
    signs[::2] = -1
    layer = nn.Linear(64, 64, bias=False)  # Gram for few positions, the product for many
    scale = 1e4 * torch.rand(64, generator=generator)

    def alternating(model: nn.Module, rows: Tensor) -> Tensor:
        return (functional.linear(rows, model.weight) * scale * signs.unsqueeze(1)).sum((1, 2))

    for chosen in (EngineSettings(), PRECISE):
        clipped = Engine(layer, alternating, chosen).clipped_sum(a, 1.0)
        assert float(flat(clipped).norm()) <= 1.0


def test_a_pair_of_equal_texts_is_no_reason_to_refuse_a_model_that_asks_for_its_mask() -> None:
    """Its gradient cancels to nothing, and its measured norm is an upper bound, far above: not the data's steering."""
    torch.manual_seed(0)
    texts = torch.randn(4, 2, 5, 64)
    texts[1, 1] = texts[1, 0]
    masks = torch.ones(4, 2, 5)
    masks[2:, :, 3:] = 0
    layer = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))

    def preferred(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        rows, mask = (part.flatten(0, 1) for part in batch)
        found = torch.log_softmax(model(rows), dim=-1)[..., 0]
        if not bool(mask.all()):
            found = found * mask
        chosen, rejected = found.sum(1).unflatten(0, (-1, 2)).unbind(1)
        return -functional.logsigmoid(chosen - rejected)

    engine = Engine(layer, preferred)
    found = engine.clipped_sum((texts, masks), 1.0)
    expected = Reference(layer, preferred).clipped_sum((texts, masks), 1.0)
    torch.testing.assert_close(flat(found), flat(expected), rtol=1e-4, atol=1e-5)

    def steered(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        losses = preferred(model, batch)
        return losses if bool(batch[1].all()) else losses.detach() + 2 * (losses - losses.detach())

    beside = nn.Linear(64, 1)
    both = nn.ModuleList([layer, beside])

    def steered_beside(model: nn.ModuleList, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The loss is the same, and has a gradient that no example alone has."""
        losses, more = preferred(model[0], batch), model[1](batch[0]).sum((1, 2, 3))
        return losses if bool(batch[1].all()) else losses + more - more.detach()

    for module, loss_of in ((layer, steered), (both, steered_beside)):
        with pytest.raises(UnsupportedModel, match="must not steer"):
            Engine(module, loss_of).clipped_sum((texts, masks), 1.0)
