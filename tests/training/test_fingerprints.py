"""Fingerprints of tensors: equal for equal numbers in equal places, different otherwise."""

import pytest
import torch

from decrescendo.training.processes.bits import fingerprint


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.bool,
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("place", ["cpu", "elsewhere"])
def test_they_tell_places_and_signs_apart(dtype: torch.dtype, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if place == "elsewhere":  # the form of other devices, on this one
        monkeypatch.setattr("decrescendo.training.processes.bits._HASHED", "nowhere")
    for count in (2, 300_000):
        values = (torch.arange(count) % 7 + 1).to(dtype)
        values[0] = 0
        others = [values.flip(0), values.roll(1)] + ([-values] if dtype != torch.bool else [])
        for other in others:
            assert fingerprint(values) != fingerprint(other)
        last = values.clone()
        last[-1] = 0
        assert fingerprint(values) != fingerprint(last)
        assert fingerprint(values) == fingerprint(values.clone())
        assert fingerprint(values[::2]) == fingerprint(values[::2].clone())


def test_several_are_told_apart_by_where_one_ends() -> None:
    values = torch.arange(6.0)
    assert fingerprint(values[:2], values[2:]) != fingerprint(values[:3], values[3:])
    assert fingerprint(values) != fingerprint(values, torch.empty(0))
    assert fingerprint() == fingerprint()
    assert fingerprint(torch.tensor(1.0)) != fingerprint(torch.tensor(2.0))
