"""Is a film review good? A private head on frozen features of MiniLM, or private LoRA in its fifth layer as well.

    python imdb.py --epsilon 1            # the head: seconds
    python imdb.py --epsilon 1 --lora     # adapters and head: minutes

Private are the 25,000 train reviews. Settings were chosen on half of the test reviews, declared public; the score is of
the other half.
"""

import argparse
from pathlib import Path

import minilm
import numpy as np
import peft
import torch
from torch import nn

import decrescendo as dc

PRIVATE, PUBLIC = 25_000, 12_500  # train reviews; the first half of the test reviews
DELTA = 1 / (10 * PRIVATE)
POOLED = slice(3, 7)  # means over the tokens of the layers 3 to 6
# By epsilon, chosen on the public half: expected batch, steps, clip norm, learning rate.
HEAD = dict.fromkeys((0.5, 1.0, 3.0), (5_000, 80, 1.0, 0.1))
# The best of five for the head alone on the public half at epsilon 1, of those with small batches.
LORA = dict.fromkeys((0.5, 1.0, 3.0), (1_024, 80, 1.0, 0.1))
Batch = dict[str, torch.Tensor]


def rows(part: str, cache: Path, lora: bool) -> Batch:
    """Columns of the ``train``, ``public`` or ``test`` reviews, from disk when they are asked for."""
    name = "train" if part == "train" else "test"
    columns = ("labels", "means", "lengths", "states") if lora else ("labels", "means")
    half = {"train": slice(None), "public": slice(PUBLIC), "test": slice(PUBLIC, None)}[part]
    return {key: torch.from_numpy(np.load(cache / f"{name}-{key}.npy", mmap_mode="c")[half]) for key in columns}


class Head(nn.Module):
    """A linear layer over the means of four layers, each normalised by itself: nothing is measured on the reviews."""

    def __init__(self, width: int = 384, layers: int = 4) -> None:
        super().__init__()
        self.top = nn.Linear(width * layers, 2)
        nn.init.zeros_(self.top.weight)

    def forward(self, batch: Batch) -> torch.Tensor:
        return self.score(batch["means"][:, POOLED].float())

    def score(self, means: torch.Tensor) -> torch.Tensor:
        """From means (rows, layers, width) to two scores a row."""
        scaled = nn.functional.layer_norm(means, means.shape[-1:]) / means.shape[-1] ** 0.5
        return self.top(scaled.flatten(1))


class Adapted(Head):
    """The same, with the layer above FROZEN read anew through low-rank adapters that start as nothing."""

    def __init__(self, bert: nn.Module, rank: int = 4) -> None:
        super().__init__(bert.config.hidden_size)
        # The layer's last matrix: the backward pass ends there. ["query", "value"] costs twice the time.
        config = peft.LoraConfig(r=rank, lora_alpha=rank, target_modules="output.dense")
        self.layer = peft.inject_adapter_in_model(config, bert.encoder.layer[minilm.FROZEN])
        self.top.requires_grad_()

    def forward(self, batch: Batch) -> torch.Tensor:
        states, lengths = batch["states"].float(), batch["lengths"]
        own = torch.arange(states.shape[1]) < lengths[:, None]
        with torch.autocast("cpu", minilm.DTYPE, enabled=minilm.DTYPE is not torch.float32):
            read = self.layer(states, attention_mask=own[:, None, None, :])
        means = list(batch["means"][:, POOLED].float().unbind(1))
        means[minilm.FROZEN + 1 - POOLED.start] = minilm.mean_of_tokens(read, lengths)
        return self.score(torch.stack(means, 1))


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """One loss a review."""
    return nn.functional.cross_entropy(model(batch), batch["labels"], reduction="none")


def plan_for(epsilon: float, batch: float, steps: int, clip: float) -> dc.Plan:
    """Constant noise and clipping within the budget."""
    return dc.calibrate(
        dc.Budget(epsilon, DELTA), dc.PoissonSampling(PRIVATE, batch), steps=steps,
        privacy=dc.curves.constant(1.0), clip=dc.curves.constant(clip),
    )  # fmt: skip


@torch.no_grad()
def accuracy(model: nn.Module, data: Batch) -> float:
    """Share of rows that are classed rightly."""
    right = 0
    for start in range(0, len(data["labels"]), 500):
        batch = {key: column[start : start + 500] for key, column in data.items()}
        right += int((model.eval()(batch).argmax(1) == batch["labels"]).sum())
    return right / len(data["labels"])


def fine_tune(model: nn.Module, data: Batch, plan: dc.Plan, rate: float, seed: int | dc.Secure) -> dc.Run:
    """Train by the plan, the learning rate falling to nothing along a cosine."""
    optimizer = torch.optim.Adam([weights for weights in model.parameters() if weights.requires_grad], lr=rate)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, plan.steps)
    return dc.train(
        model.eval(), loss, data, plan, optimizer, seed=seed, scheduler=falling,
        settings=dc.clipping.EngineSettings(microbatch_size=64) if "states" in data else None,
    )  # fmt: skip


def main() -> None:
    """Train once and score once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, choices=sorted(HEAD), default=1.0)
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--cache", type=Path, default=minilm.CACHE)
    asked = parser.parse_args()
    batch, steps, clip, rate = (LORA if asked.lora else HEAD)[asked.epsilon]
    torch.manual_seed(0)
    model = Adapted(minilm.pretrained()) if asked.lora else Head()
    plan = plan_for(asked.epsilon, batch, steps, clip)
    run = fine_tune(model, rows("train", asked.cache, asked.lora), plan, rate, dc.Secure())
    print(run.guarantee)
    score = accuracy(model, rows("test", asked.cache, asked.lora))
    print(f"accuracy {score:.2%}, rows independent: {run.rows_independent}")


if __name__ == "__main__":
    main()
