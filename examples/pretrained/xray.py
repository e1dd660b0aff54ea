"""Pneumonia on chest X-rays of children: a private head on frozen ImageNet features of EfficientNet-Lite0.

    python xray.py --epsilon 0.5

Private are the 5,232 train images of the official split; the score is of its 624 test images. Settings were chosen on
clothes (Fashion-MNIST), as many of two kinds as there are healthy and ill children.
"""

import argparse
import io
from collections.abc import Callable
from pathlib import Path

import lite
import numpy as np
import torch
from PIL import Image
from torch import nn

import decrescendo as dc
from decrescendo_papers.data.xray import originals

ROWS = 5_232
DELTA = 1 / (10 * ROWS)
# Steps, clip norm, learning rate at each epsilon.
SETTINGS = {0.5: (80, 1.0, 3.0), 1.0: (80, 1.0, 10.0), 3.0: (80, 1.0, 10.0)}
WEIGHTS = torch.tensor([3.0, 1.0]) / 2  # of healthy and ill: about the published counts, 1,349 and 3,883
CACHE = Path.home() / ".cache" / "decrescendo" / "lite0"
Rows = tuple[torch.Tensor, torch.Tensor]
Halves = tuple[Rows, Rows]


def xrays() -> Halves:
    """Pixels (rows, 224, 224) and classes of the train and the test images."""
    return tuple(
        (
            torch.from_numpy(np.stack([np.asarray(Image.open(io.BytesIO(row.content)).convert("L")) for row in half])),
            torch.tensor([row.pneumonia for row in half]),
        )
        for half in originals()
    )


def features(name: str, images: Callable[[], Halves], cache: Path) -> Halves:
    """Of both halves, from disk where they are there: each image is read once."""
    path = cache / f"{name}.npz"
    if not path.exists():
        model = lite.pretrained()
        made = {}
        for half, (pixels, classes) in zip(("train", "test"), images(), strict=True):
            made |= {f"{half}-x": lite.read(model, pixels).numpy(), f"{half}-y": classes.numpy()}
        cache.mkdir(parents=True, exist_ok=True)
        np.savez(path, **made)
    with np.load(path) as found:
        return tuple(tuple(torch.from_numpy(found[f"{half}-{part}"]) for part in "xy") for half in ("train", "test"))


class Head(nn.Module):
    """A linear layer over features, each row normalised by itself: nothing is measured on the images."""

    def __init__(self, width: int = lite.FEATURES) -> None:
        super().__init__()
        self.top = nn.Linear(width, 2)
        nn.init.zeros_(self.top.weight)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.top(nn.functional.layer_norm(rows, rows.shape[-1:]) / rows.shape[-1] ** 0.5)


def loss(model: nn.Module, batch: Rows) -> torch.Tensor:
    """One loss an image."""
    rows, classes = batch
    return WEIGHTS[classes] * nn.functional.cross_entropy(model(rows), classes, reduction="none")


def plan_for(epsilon: float, steps: int, clip: float, rows: int = ROWS) -> dc.Plan:
    """Every image in every step, constant noise and clipping."""
    return dc.calibrate(
        dc.Budget(epsilon, DELTA), dc.PoissonSampling(rows, rows), steps=steps,
        privacy=dc.curves.constant(1.0), clip=dc.curves.constant(clip),
    )  # fmt: skip


def train(data: Rows, plan: dc.Plan, rate: float, seed: int | dc.Secure) -> tuple[Head, dc.Run]:
    """A head trained by the plan, the learning rate falling to nothing along a cosine."""
    model = Head(data[0].shape[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, plan.steps)
    return model, dc.train(model, loss, data, plan, optimizer, seed=seed, scheduler=falling)


@torch.no_grad()
def accuracy(model: nn.Module, data: Rows) -> float:
    """Share of images that are classed rightly."""
    return (model(data[0]).argmax(1) == data[1]).float().mean().item()


def main() -> None:
    """Train once and score once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, choices=sorted(SETTINGS), default=0.5)
    parser.add_argument("--cache", type=Path, default=CACHE)
    asked = parser.parse_args()
    train_half, test_half = features("xray", xrays, asked.cache)
    steps, clip, rate = SETTINGS[asked.epsilon]
    model, run = train(train_half, plan_for(asked.epsilon, steps, clip), rate, dc.Secure())
    print(run.guarantee)
    print(f"accuracy {accuracy(model, test_half):.2%}, rows independent: {run.rows_independent}")


if __name__ == "__main__":
    main()
