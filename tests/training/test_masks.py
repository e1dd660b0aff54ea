"""A model's own random numbers (dropout) come from the run's stream "model", not from torch's global generators."""

import ast
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from decrescendo.base.rng import Secure
from decrescendo.clipping import Batch, ClippedSum
from decrescendo.training import Trainer, train
from decrescendo.training.persistence.checkpoint import Checkpoints

from .conftest import ROWS, loss, make_model, make_plan, sgd

Data = tuple[torch.Tensor, torch.Tensor]
WIDTH = 200


def dropping() -> nn.Module:
    inner = make_model()
    return nn.Sequential(nn.Dropout(0.3), *inner, nn.Dropout(0.2))


def bits(model: nn.Module) -> bytes:
    return b"".join(value.numpy().tobytes() for value in model.state_dict().values())


def trained(data: Data, seed: int, start: int) -> bytes:
    """With the global generator anywhere."""
    model = dropping()
    torch.manual_seed(start)
    torch.randn(start % 7)
    before = torch.get_rng_state()
    trainer = Trainer(model, loss, make_plan(), sgd(model), seed=seed)
    for batch in trainer.batches(data):
        trainer.step(batch)
        assert torch.equal(torch.get_rng_state(), before)
    trainer.finish()
    assert torch.equal(torch.get_rng_state(), before)
    return bits(model)


def test_the_global_generator_is_neither_read_nor_moved(data: Data) -> None:
    assert trained(data, 5, 0) == trained(data, 5, 123456)


def test_masks_are_drawn_anew_in_every_step_and_depend_on_the_seed(data: Data) -> None:
    without = make_model()
    plan = make_plan()
    train(without, loss, data, plan, sgd(without), seed=5)
    found = {trained(data, 5, 0), trained(data, 6, 0), bits(without)}
    assert len(found) == 3


class Shown(nn.Module):
    """Its gradient shows the masks: example i has row i of the weights, and a coin for each of them."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, WIDTH))

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(nn.functional.embedding(index, self.weight), 0.5, self.training).sum(1)


def coins(seed: int | Secure, *, rows: int = ROWS, start: int = 0, steps: int = 3) -> torch.Tensor:
    """Of each step and example, +1 or -1; all examples take part in every step."""
    plan = make_plan((2.0,) * steps, (1e4,) * steps, batch=rows, rows=rows)
    model, found = Shown(rows), []
    torch.manual_seed(start)  # as in everybody's script: whoever reads it knows the state of the global generator
    trainer = Trainer(model, lambda model, batch: model(batch), plan, sgd(model), seed=seed)
    clip: Callable[[Batch | None, float], ClippedSum] = trainer._engine.clipped_sum

    def seen(batch: Batch | None, clip_norm: float) -> ClippedSum:
        clipped = clip(batch, clip_norm)
        found.append((clipped.gradients["weight"] > 0).double() * 2 - 1)
        return clipped

    trainer._engine.clipped_sum = seen  # type: ignore[method-assign]
    for batch in trainer.batches(torch.arange(rows)):
        trainer.step(batch)
    return torch.stack(found)


def agreement(one: torch.Tensor, other: torch.Tensor) -> float:
    """In standard deviations of independent fair coins."""
    return abs(float((one * other).mean())) * one.numel() ** 0.5


def test_secure_masks_cannot_be_known_from_a_published_script() -> None:
    """One row more shifted the masks of all others, which whoever read ``torch.manual_seed(0)`` could compute: then two
    neighbours' sums are far apart. Now neither the state of the generator nor the number of rows says anything."""
    first, again, fewer = coins(Secure()), coins(Secure()), coins(Secure(), rows=ROWS - 1)
    assert agreement(first, again) < 5
    assert agreement(first[:, :-1], fewer) < 5  # at the same places
    assert agreement(first[:, 1:], fewer) < 5  # of the same rows
    # Power: of masks that are the same in a twentieth of all places this would say so.
    mixed = torch.where(torch.rand(first.shape, generator=torch.Generator().manual_seed(1)) < 0.05, first, again)
    assert agreement(first, mixed) > 5


def test_a_seed_gives_the_same_masks_wherever_the_global_generator_stands() -> None:
    assert torch.equal(coins(3, start=0), coins(3, start=99))
    assert agreement(coins(3), coins(4)) < 5


@pytest.mark.parametrize("seed", [7, Secure()], ids=["seeded", "secure"])
def test_masks_of_examples_and_steps_are_independent(seed: int | Secure) -> None:
    """All 7,140 pairs of examples' masks, of one step and of two, and the coins themselves."""
    found = coins(seed)
    flat = found.flatten(0, 1)

    def worst(masks: torch.Tensor) -> float:
        together = (masks @ masks.T / WIDTH**0.5).abs()
        return float(together.fill_diagonal_(0).max())

    assert worst(flat) < 5.8
    assert abs(float(found.mean())) * found.numel() ** 0.5 < 5
    for earlier, later in ((0, 1), (0, 2), (1, 2)):
        assert agreement(found[earlier], found[later]) < 5
    # Power: an example whose mask is that of another, in three quarters of the places (10.6, give or take 0.5).
    shared = flat.clone()
    shared[17, : WIDTH * 3 // 4] = shared[60, : WIDTH * 3 // 4]
    assert worst(shared) > 5.8


@pytest.mark.parametrize("seed", [5, Secure()], ids=["seeded", "secure"])
def test_a_resumed_run_has_its_masks_wherever_the_global_generator_stands(
    data: Data, tmp_path: Path, seed: int | Secure
) -> None:
    def life(start: int, until: int) -> dict[int, bytes]:
        model, shown = dropping(), {}
        torch.manual_seed(start)
        kept = Checkpoints(tmp_path, 2, resume=True)
        plan = make_plan((2.0,) * 7, (1.0,) * 7)
        trainer = Trainer(model, loss, plan, sgd(model), seed=seed, checkpoints=kept)
        for batch in trainer.batches(data):
            step = trainer.step(batch).step
            shown[step] = bits(model)
            if step == until:
                break
        return shown

    first, second, third = life(0, 5), life(1, 6), life(2, 7)
    assert (min(second), min(third)) == (5, 5)
    assert second[5] == first[5]
    assert third[5] == first[5]
    assert third[6] == second[6]
    (state,) = [json.loads(path.read_text()) for path in tmp_path.glob("step-000000006/state.json")]
    names = {pair[0] for pair in state["state"]["items"]}
    assert "masks" in names
    assert "random" not in names


def test_every_engine_of_the_package_has_seeds_of_its_own() -> None:
    """Where one is made without them, masks are not the run's."""
    calls: list[tuple[str, bool]] = []
    root = Path(__file__).resolve().parents[2]
    for path in (*(root / "src").rglob("*.py"), *(root / "papers/src").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "clipping" in path.parts or "Engine(" not in text:
            continue
        calls += [
            (path.name, "seeds" in {keyword.arg for keyword in node.keywords})
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Engine"
        ]
    assert len(calls) >= 5
    assert all(given for _, given in calls), calls
