"""What an examination with other people's scripts found to be missed, or found falsely, in a run."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import doctor_trainings as trainings
import pytest

from decrescendo.doctor import Certainty, examine

from .conftest import Observe

_NOISE = "torch.randn_like(p) * noise_multiplier * max_grad_norm"
_BY_HAND = trainings.CLEAN_BY_HAND["vmap"]
# A step of a generator with BatchNorm, which sees random numbers alone.
_GENERATOR = """
generator = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
for epoch in range(3):
    generator(torch.randn(60, 4))
"""


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        (f"{_NOISE} * (p.dim() > 1)", "of 178 numbers of the gradient move with a record and have no noise"),
        (
            _NOISE.replace("randn_like(p)", "randn(1)"),
            "178 numbers of the gradient have noise, and among it are ",
        ),
    ],
)
def test_noise_that_is_not_in_every_number_is_found(
    observed: Observe,
    tmp_path: Path,
    noise: str,
    words: str,
) -> None:
    assert _NOISE in _BY_HAND
    found = observed(tmp_path, _BY_HAND.replace(_NOISE, noise))
    proven = [f.says for f in found.findings if f.check == "noise" and f.certainty is Certainty.PROVEN]
    assert len(proven) == 1, found.describe()
    assert words in proven[0]


def test_noise_on_an_update_is_no_missing_noise_of_local_steps(observed: Observe, tmp_path: Path) -> None:
    """Clients train without noise, and the difference of the weights is clipped and noised."""
    text = trainings.FAULTY_BY_HAND["the batch is clipped"][1]
    step = text.index("        optimizer.zero_grad()")
    noisy = "p.grad += torch.randn_like(p) * noise_multiplier * max_grad_norm / 60"
    head, loop = text[:step].rstrip(), text[step:].replace(noisy, "pass")
    local = "for epoch in range(3):\n    for a, b in loader:"
    server = (
        "\ndef noised(update):\n    update = update * min(1.0, max_grad_norm / float(update.norm()))\n"
        "    noise = torch.randn_like(update) * noise_multiplier * max_grad_norm\n    return update + noise\n"
        "\ndef local_steps():\n    for a, b in loader:\n"
    )
    assert head.endswith(local)
    update = "nn.utils.parameters_to_vector(model.parameters()).detach()"
    rounds = f"\nfor epoch in range(3):\n    local_steps()\n    noised({update})\n"
    found = observed(tmp_path, head.removesuffix(local) + server + loop + rounds)
    (noise,) = (f for f in found.findings if f.check == "noise")
    assert noise.certainty is Certainty.SUSPECTED, found.describe()


def test_noise_on_a_copy_is_missing_noise(observed: Observe, tmp_path: Path) -> None:
    """The helper is called from the step, and what it noises is not what the optimiser takes."""
    assert _NOISE in _BY_HAND
    text = _BY_HAND.replace(f"noise = {_NOISE}", "noise = 0 * add_noise(p)")
    head, _, loop = text.partition("\nfor epoch in range(3):\n")
    body = "".join(f"    {line}\n" for line in loop.splitlines())
    kept = f"\ndef add_noise(p):\n    return p.clone() + {_NOISE}\n"
    script = f"{head}{kept}\ndef train():\n    for epoch in range(3):\n{body}\ntrain()\n"
    found = observed(tmp_path, script)
    assert any(f.check == "noise" for f in found.findings), found.describe()


def test_steps_without_an_optimiser_are_seen(observed: Observe, tmp_path: Path) -> None:
    """A loop that moves the weights itself: whether between two passes they were moved, and by how much with a record
    exchanged."""
    for name in ("clean", "silent"):
        (tmp_path / name).mkdir()
    clean = observed(tmp_path / "clean", trainings.CLEAN_BY_HAND["no optimiser"])
    assert not clean.findings, clean.describe()
    assert any("standard deviations of its noise" in fact for fact in clean.facts), clean.describe()
    silent = observed(tmp_path / "silent", trainings.FAULTY_BY_HAND["no optimiser, no noise"][1])
    (noise,) = (f for f in silent.findings if f.check == "noise")
    assert noise.certainty is not Certainty.SUSPECTED, silent.describe()


def test_statistics_that_no_record_moves_are_no_fault(observed: Observe, tmp_path: Path) -> None:
    made = _GENERATOR.replace("for epoch in range(3):\n    ", "")
    text = _BY_HAND.replace(
        "for epoch in range(3):", made.replace("\ngenerator(", "\nfor epoch in range(3):\n    generator(")
    )
    found = observed(tmp_path, text)
    assert not found.findings, found.describe()


@pytest.mark.parametrize(
    ("noise", "words"),
    [(0.2, "one pass over the rows alone has epsilon 81"), (0.05, "with noise multiplier 0.05")],
)
def test_too_little_noise_is_found_where_nobody_knows_how_long_it_trains(
    observed: Observe,
    tmp_path: Path,
    noise: float,
    words: str,
) -> None:
    text = trainings.FAULTY["hardly noise"][1].replace("for epoch in range(3):", "while True:")
    found = observed(tmp_path, text.replace("noise_multiplier=0.2", f"noise_multiplier={noise}"))
    assert any(f.check == "noise" and words in f.says for f in found.findings), found.describe()


def test_modules_beside_a_notebook_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = {"cell_type": "code", "source": ["import parts\n", "torch.optim.SGD\n"]}
    (tmp_path / "train.ipynb").write_text(json.dumps({"cells": [cell]}))
    places: list[str] = []
    monkeypatch.setattr(
        "subprocess.run",
        lambda *_, env, **__: (
            places.append(env["PYTHONPATH"].split(os.pathsep)[0]) or SimpleNamespace(stderr="")
        ),
    )
    examine(tmp_path / "train.ipynb")
    assert places == [str(tmp_path)]
