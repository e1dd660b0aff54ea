#!/bin/bash
# opacus 1.6.0 with torch 2.13.0: a loop that leaves an epoch early under BatchMemoryManager ("at most N batches", an early
# stop) puts records of several Poisson batches into one noisy sum, some of them twice or three times, at the same epsilon.
#
# BatchMemoryManager gives out parts of a Poisson batch, and tells the optimiser for each part, in a queue, whether it ends its
# batch. step() takes one word from the queue, and adds noise where that says "ends". Nothing empties the queue or the half
# summed batch where the loop leaves:
# - left before step(), as `if number == N: break` at the head of a loop does, or by one look at a part (`next(iter(parts))`):
#   the word of the part that was taken stays in the queue, and in all later epochs each part is judged by the word of another:
#   the noise comes at the wrong places, and more so with each epoch left.
# - left after step() within a batch: its sum waits, and the next epoch's first batch is added to it.
# The two batches were drawn independently, and a record of both counts twice: it moves the sum by two clip norms. Nothing is
# said; the accountant counts one Poisson batch a step. Without the memory manager the same loops are right. No issue about it
# was found upstream.
#
# Seen, 96 records, each with a coordinate of its own, rate 1/4, parts of 8, 20 epochs, clip norm 1:
#     whole epochs: 80 noisy steps, at most 1.00 clip norms of one record in a sum, above one in 0 % of the steps
#     left at the head: 21 noisy steps, at most 3.00 clip norms of one record in a sum, above one in 76 % of the steps
#     left after the step: 31 noisy steps, at most 2.00 clip norms of one record in a sum, above one in 35 % of the steps
#     one look at a part: 79 noisy steps, at most 2.00 clip norms of one record in a sum, above one in 30 % of the steps
#     left at the head, no memory manager: 60 noisy steps, at most 1.00 clip norms of one record in a sum, above one in 0 % of the steps
source "$(dirname "$0")/install.bash"
install opacus==1.6.0 torch==2.13.0 numpy==2.4.6

python -W ignore - <<'END'
from contextlib import nullcontext

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROWS, EPOCHS, PART, CLIP = 96, 20, 8, 1.0


def sums(kind, managed=True):
    """How often, in clip norms, the record that is most in it is in each sum that noise was added to."""
    torch.manual_seed(0)
    model = nn.Linear(ROWS, 1, bias=False)
    nn.init.zeros_(model.weight)
    data = TensorDataset(10 * torch.eye(ROWS), torch.ones(ROWS, 1))  # each gradient is long, on its own coordinate
    private, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.0), noise_multiplier=1.0, max_grad_norm=CLIP,
        data_loader=DataLoader(data, batch_size=ROWS // 4),
    )
    found = []
    optimizer.attach_step_hook(lambda stepped: found.append(float(stepped.params[0].summed_grad.abs().max()) / CLIP))

    def parts_of_batches():
        if not managed:
            return nullcontext(loader)
        return BatchMemoryManager(data_loader=loader, max_physical_batch_size=PART, optimizer=optimizer)

    if kind == "one look at a part":
        with parts_of_batches() as parts:
            next(iter(parts))
    for _ in range(EPOCHS):
        with parts_of_batches() as parts:
            for number, (inputs, targets) in enumerate(parts):
                if kind == "left at the head" and number == (5 if managed else 3):
                    break
                optimizer.zero_grad()
                (private(inputs) - targets).square().mean().backward()
                optimizer.step()
                if kind == "left after the step" and number == 5:
                    break
    return torch.tensor(found)


seen = {}
for kind, managed in (
    ("whole epochs", True), ("left at the head", True), ("left after the step", True), ("one look at a part", True),
    ("left at the head", False),
):
    found = sums(kind, managed)
    seen[kind, managed] = float(found.max()), float((found > 1.001).float().mean())
    print(f"{kind}{'' if managed else ', no memory manager'}: {len(found)} noisy steps, at most {seen[kind, managed][0]:.2f} "
          f"clip norms of one record in a sum, above one in {100 * seen[kind, managed][1]:.0f} % of the steps")
assert seen["whole epochs", True][0] < 1.001 and seen["left at the head", False][0] < 1.001
assert seen["left at the head", True][0] > 2.9
assert seen["left after the step", True][0] > 1.9 and seen["one look at a part", True][0] > 1.9
assert min(seen[kind, True][1] for kind in ("left at the head", "left after the step", "one look at a part")) > 0.1
END
