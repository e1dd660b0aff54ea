"""What an update may be made of: whole, truth and complex numbers are refused in words; scalars go through Flower."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from decrescendo.base.rng import Streams
from decrescendo.clipping.clipped import ClippedSum, Diagnostics
from decrescendo.errors import InvalidType
from decrescendo.federated.contents import Contents
from decrescendo.federated.flower.arrays import to_arrays, to_tensors
from decrescendo.federated.flower.wire import Answer, Ask
from decrescendo.federated.messages import Round
from decrescendo.federated.placement import Placement
from decrescendo.federated.summing import norm_of
from decrescendo.federated.update import clip_update, prepare
from decrescendo.federated.verdict import Received, Verdict
from decrescendo.optim.noise import NoisedSum, NoisyMean, privatise
from decrescendo.plans import PoissonSampling

WRONG = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64,
    torch.complex128,
]  # fmt: skip
REAL = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SHAPES = [(), (0,), (1,), (1, 1), (0, 3), (3, 0), (2, 3), (1, 2, 1), (4,), (2, 1)]


def asked(placement: Placement, share: float) -> Round:
    return Round("ab", 1, 9, 1.0, 2.0, placement, share)


@pytest.mark.parametrize("dtype", WRONG)
@pytest.mark.parametrize(
    "round_", [asked(Placement.CENTRAL, 0.0), asked(Placement.DISTRIBUTED, 0.5), asked(Placement.LOCAL, 2.0)]
)
def test_an_update_of_other_than_real_numbers_does_not_leave_the_client(dtype: torch.dtype, round_: Round) -> None:
    """They were cut off to zeros: a client without influence, and nobody was told."""
    update = {"w": torch.ones(2), "b": torch.tensor([3, 4]).to(dtype)}
    with pytest.raises(InvalidType, match=r"update\['b'\] must be real floating point, got torch\."):
        prepare(update, round_, Streams(1))


@pytest.mark.parametrize("dtype", WRONG)
@pytest.mark.parametrize("wide", [False, True])
def test_a_server_refuses_them_too(dtype: torch.dtype, wide: bool) -> None:
    contents = Contents({"w": torch.nn.Parameter(torch.ones(2))}, wide=wide)
    found = contents.of_reply({"w": torch.tensor([3, 4]).to(dtype)})
    assert isinstance(found, Received)
    assert found.verdict is Verdict.TYPES
    assert "must be a dense tensor of" in found.reason


@pytest.mark.parametrize("dtype", WRONG)
def test_sums_and_means_of_them_are_refused(dtype: torch.dtype) -> None:
    wrong, nothing = {"w": torch.tensor([3, 4]).to(dtype)}, Diagnostics(1, 0, 0, 0.0)
    release = PoissonSampling(10, 2).release(1.0)
    for make in (
        lambda: ClippedSum(wrong, 1.0, nothing),
        lambda: NoisyMean(wrong, release),
        lambda: NoisedSum(wrong, 1.0, 1.0, present=1, shares=1),
    ):
        with pytest.raises(InvalidType, match=r"gradients\['w'\] must be real floating point, got torch\."):
            make()


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("shape", SHAPES)
def test_real_numbers_of_any_precision_and_shape_are_clipped_to_c(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """In half precision rounding alone made an update longer than C."""
    update = {"w": 3 * torch.rand(shape).to(dtype) + 1}
    found = prepare(update, asked(Placement.CENTRAL, 0.0), None)["w"]
    assert found.shape == shape
    assert found.dtype in (torch.float32, torch.float64)
    assert norm_of({"w": found}) <= 1.0
    if found.numel():
        assert norm_of({"w": found}) > 1 - 1e-5
    summed = ClippedSum({"w": update["w"]}, 10.0, Diagnostics(1, 0, 0, 0.0))
    assert privatise(summed, 1.0, PoissonSampling(10, 2), torch.Generator()).gradients["w"].shape == shape


@given(st.lists(st.floats(-100, 100, width=16), min_size=1, max_size=20), st.sampled_from(REAL))
def test_no_update_is_longer_than_c(values: list[float], dtype: torch.dtype) -> None:
    found = clip_update({"w": torch.tensor(values, dtype=dtype)}, 0.7)
    assert norm_of(found) <= 0.7


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_comes_back_through_flowers_arrays(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """A learned scalar came back with shape (1,), so that each reply was of wrong shapes."""
    sent = {"scale": torch.rand(shape).to(dtype), "w": torch.rand(3, 2).T}
    same(to_tensors(to_arrays(sent)), sent)
    again = Ask.from_content(Ask(asked(Placement.CENTRAL, 0.0), (3,), sent).to_content())
    same(again.weights, sent)
    answer = Answer("ab", 1, ((3, sent), (4, sent)))
    for _, update in Answer.from_content(answer.to_content()).updates:
        same(update, sent)


def same(found: object, sent: dict[str, Tensor]) -> None:
    assert isinstance(found, dict)
    for name, tensor in sent.items():
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor)


def test_noise_of_a_scalars_share_has_the_deviation_that_is_asked_for() -> None:
    """Of 1,500 replies; a deviation that is a fifth off would be seen."""
    update, drawn = {"scale": torch.tensor(0.25)}, []
    for number in range(1, 1_501):
        round_ = Round("ab", number, 9_000, 1.0, 2.0, Placement.DISTRIBUTED, 0.5)
        drawn.append(float(prepare(update, round_, Streams(1))["scale"]))
    found = torch.tensor(drawn)
    assert abs(float(found.mean()) - 0.25) < 5 * 0.5 / 1_500**0.5
    assert abs(float(found.std()) / 0.5 - 1) < 0.1
