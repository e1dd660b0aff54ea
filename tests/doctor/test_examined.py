"""What an examination with other people's scripts found to be missed, or found falsely, in a run."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import doctor_trainings as trainings
import numpy as np
import pytest

from decrescendo.doctor import Certainty, examine
from decrescendo.doctor.budgets import Observed, _total

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
        lambda *_, env, **__: places.append(env["PYTHONPATH"].split(os.pathsep)[0]) or SimpleNamespace(stderr=""),
    )
    examine(tmp_path / "train.ipynb")
    assert places == [str(tmp_path)]


_FED_BACK = """
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

x = torch.randn(600, 8)
y = (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
noise_multiplier, max_grad_norm, kept = 1.3, 0.2, {}

def loss(params, row, label):
    return nn.functional.cross_entropy(functional_call(model, params, (row[None],)), label[None])

each = vmap(grad(loss), in_dims=(None, 0, 0))
for step in range(30):
    drawn = torch.rand(600) < 0.1
    grads = each({k: p.detach() for k, p in model.named_parameters()}, x[drawn], y[drawn])
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    factors = (max_grad_norm / norms).clamp(max=1)
    for name, p in model.named_parameters():
        clipped = torch.einsum("b,b...->...", factors, grads[name])
        noise = noise_multiplier * max_grad_norm * torch.randn_like(p)
        p.grad = (clipped + noise + kept.get(name, 0)) / 60
        kept[name] = KEPT
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("kept", "is_found"),
    [
        ("grads[name].sum(0) - clipped", True),
        ("clipped + noise", False),
        ("0.9 * kept.get(name, 0) + noise", False),
    ],
)
def test_what_outlives_a_release_is_found_where_it_had_no_noise(
    observed: Observe, tmp_path: Path, kept: str, is_found: bool
) -> None:
    """What clipping cuts off is added to the next step; a moving average of what was released is not such a thing."""
    found = observed(tmp_path, _FED_BACK.replace("KEPT", kept))
    remembered = [f for f in found.findings if "still moves the gradients of later steps" in f.says]
    assert bool(remembered) is is_found, found.describe()
    assert all(f.certainty is Certainty.SUSPECTED for f in remembered)


def test_one_table_that_coins_draw_of_is_compared(observed: Observe, tmp_path: Path) -> None:
    """A generator is trained to match the mean of the rows that were drawn, after the private step."""
    private = _FED_BACK.replace("kept[name] = KEPT", "pass")
    for old, new in (
        (", y[drawn]", ""), (", label[None])", ").square().mean()"), ("row, label):", "row):"), (", 0, 0)", ", 0)"),
        ("nn.functional.cross_entropy(", "("),
    ):  # fmt: skip
        assert old in private
        private = private.replace(old, new)
    second = """
    other.zero_grad()
    (other(torch.randn(60, 8)).mean(0) - MEAN).square().sum().backward()
    second.step()
"""
    made = "other = nn.Linear(8, 8)\nsecond = torch.optim.Adam(other.parameters())\nfor step"
    for mean, is_found in (("x[drawn].mean(0)", True), ("0.0", False)):
        script = private.replace("for step", made) + second.replace("MEAN", mean)
        (tmp_path / mean).mkdir()
        found = observed(tmp_path / mean, script)
        assert any("later steps" in f.says for f in found.findings) is is_found, found.describe()


def test_inputs_with_noise_do_not_hide_that_gradients_have_none(observed: Observe, tmp_path: Path) -> None:
    text = trainings.FAULTY_BY_HAND["no noise"][1]
    jitter = text.replace(
        "for epoch in range(3):",
        "sigma_aug = 0.1\nx = x + sigma_aug * torch.randn_like(x)\nfor epoch in range(3):",
        1,
    )
    found = observed(tmp_path, jitter)
    assert any(f.check == "noise" for f in found.findings), found.describe()


def test_noisy_labels_are_no_missing_noise(observed: Observe, tmp_path: Path) -> None:
    """A student learns from votes that were noised before it: its own steps need none."""
    script = """
import torch
from torch import nn

sigma, epsilon = 5.0, 2.0
rows = torch.randn(200, 8)

def noisy_labels(votes):
    return (votes + sigma * torch.randn_like(votes)).argmax(1)

labels = noisy_labels(torch.nn.functional.one_hot((rows[:, 0] > 0).long(), 2) * 30.0)
student = nn.Linear(8, 2)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    nn.functional.cross_entropy(student(rows), labels).backward()
    optimizer.step()
print("student with epsilon", epsilon)
"""
    found = observed(tmp_path, script)
    assert not [f for f in found.findings if f.check == "noise"], found.describe()


@pytest.mark.parametrize(("asked", "is_found"), [("", True), ("engine.get_epsilon(1e-5)\n", False)])
def test_an_epsilon_that_is_stated_and_never_asked_for_is_found(
    observed: Observe, tmp_path: Path, asked: str, is_found: bool
) -> None:
    text = trainings.CLEAN["clip norms that move"].replace("engine.get_epsilon(1e-5)", "None")
    assert "noise_multiplier=" in text
    found = observed(tmp_path, f"settings = {{'epsilon': 0.3, 'delta': 1e-5}}\n{text}{asked}")
    assert any("names an epsilon of 0.3" in f.says for f in found.findings) is is_found, found.describe()


def test_a_clients_steps_have_no_noise_of_their_own(observed: Observe, tmp_path: Path) -> None:
    """The noise is in the sum of the updates."""
    text = """
import copy
import torch
from torch import nn

x = torch.randn(600, 8)
y = (x[:, 0] > 0).long()
model = nn.Linear(8, 2)
sigma, clip = 1.0, 0.5

def update_of(rows, labels):
    local = copy.deepcopy(model)
    optimizer = torch.optim.SGD(local.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(local(rows), labels).backward()
        optimizer.step()
    update = [new.detach() - old.detach() for new, old in zip(local.parameters(), model.parameters())]
    length = torch.stack([u.norm() for u in update]).norm()
    return [u * (clip / length).clamp(max=1) for u in update]

for turn in range(5):
    total = [torch.zeros_like(p) for p in model.parameters()]
    for start in range(0, 600, 10):
        if torch.rand(()) < 0.1:
            for t, u in zip(total, update_of(x[start : start + 10], y[start : start + 10])):
                t += u
    with torch.no_grad():
        for p, t in zip(model.parameters(), total):
            p += (t + torch.normal(0.0, sigma * clip, size=t.shape)) / 6
print("epsilon, by another program: 5.8")
"""
    for folder in ("right", "wrong"):
        (tmp_path / folder).mkdir()
    right = observed(tmp_path / "right", text)
    assert "noise" not in {one.check for one in right.findings}
    assert any("moved the round's sum" in one for one in right.facts), right.describe()
    unnoised = text.replace("t + torch.normal(0.0, sigma * clip, size=t.shape)", "t + 0 * sigma")
    assert "noise" in {one.check for one in observed(tmp_path / "wrong", unnoised).findings}


@pytest.mark.parametrize(("observed", "stepped"), [(1, 0), (3, 0), (10, 0), (13, 1), (25, 2), (3, 2), (12, 11)])
def test_a_schedule_goes_on_from_where_it_was_observed(observed: int, stepped: int) -> None:
    """3 epochs of 10 steps; the scheduler steps once an epoch, or (the last two) after each step."""
    each = stepped == observed - 1 > 0
    whole = [1.2 * 0.9 ** (step if each else step // 10) for step in range(30)]
    ahead = [whole[observed - 1] * 0.9**k for k in range(60)]
    events = [{"kind": "noise", "noise": noise, "optimizer": 1, "epochs": 3} for noise in whole[:observed]]
    events.append({"kind": "scheduler", "steps": stepped, "ahead": ahead})
    ledger = _total(Observed(events), {"asked": {}, "made": {"steps": 10}, "noise": 1.2, "optimizer": 1})
    assert ledger is not None
    assert sorted(np.repeat(ledger.noise_multiplier, ledger.count)) == pytest.approx(sorted(whole))


def test_a_clipped_batch_is_suspected_where_no_record_moves_it_too_far(observed: Observe, tmp_path: Path) -> None:
    """Noise for the clip norm, on a batch's clipped gradient: a record moves it by twice that, at most."""
    text = trainings.FAULTY_BY_HAND["the batch is clipped"][1]
    text = text.replace(", grad, vmap", "").replace("* max_grad_norm / 60", "* max_grad_norm")
    found = observed(tmp_path, text)
    assert [(f.check, f.certainty) for f in found.findings] == [("rows", Certainty.SUSPECTED)], found.describe()


def test_a_clip_norm_of_numpy_is_compared(observed: Observe, tmp_path: Path) -> None:
    text = trainings.CLEAN["plain"].replace("max_grad_norm=1.0", "max_grad_norm=np.float64(1.0)")
    found = observed(tmp_path, "import numpy as np\n" + text)
    assert not found.findings, found.describe()
    assert any("how much the sum moved" in fact for fact in found.facts), found.describe()


@pytest.mark.parametrize("delta", ["5e-3", "MOST", "1 / len(x)"])
def test_a_delta_that_is_asked_for_at_the_end_is_judged(observed: Observe, tmp_path: Path, delta: str) -> None:
    text = trainings.CLEAN["plain"].replace("target_delta=1e-5", "target_delta=1e-4")
    assert text.count("get_epsilon(1e-5)") == 1
    named = f"MOST = 0.004\ndelta = {delta}\n" if delta.startswith("1 /") else "MOST = 0.004\n"
    text = named.replace("len(x)", "600") + text.replace("get_epsilon(1e-5)", f"get_epsilon({delta})")
    found = observed(tmp_path, text)
    assert "delta" in {f.check for f in found.findings}, found.describe()
