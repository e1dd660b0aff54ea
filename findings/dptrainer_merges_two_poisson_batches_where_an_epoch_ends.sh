#!/bin/bash
# DPTrainer 0.1.2 with Opacus 1.6.0: with gradient accumulation, parts of the last Poisson batch of an epoch go into one
# release with the first batch of the next epoch, and a record that is in both counts twice in it.
#
# A Poisson batch is cut into parts of at most per_device_train_batch_size rows, and Opacus' optimizer adds up clipped
# gradients until a part is marked as the batch's last. The Trainer of transformers decides by the expected number of
# parts, not by the drawn one, when an epoch is over: a batch whose last part is not reached stays in the optimizer,
# and the next epoch's first batch is added to it. A record drawn in both is clipped in each, so it can move that sum by 2 C;
# the noise is for C, and the accountant counts one step.
#
# DPTrainer pins opacus 1.5.4.post13, which is not on PyPI; 1.5.4 lacks a function that it imports, 1.6.0 has it.
#
# Seen, 64 records, parts of 2 rows, 4 accumulated, 30 epochs: 20 of 29 ends of an epoch left such a release, 12 of them
# with a record twice.
source "$(dirname "$0")/install.bash"
install torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 datasets==5.2.0 pandas==3.1.1 numpy==2.4.6 opacus==1.6.0
python -m pip install --quiet --no-deps --disable-pip-version-check DPTrainer==0.1.2

python -W ignore - <<'END'
from collections import Counter

import torch
from dptrainer import DPTrainer, PrivacyArguments
from opacus.optimizers import DPOptimizer
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import nn
from transformers import TrainingArguments

RECORDS, PART, ACCUMULATED, EPOCHS = 64, 2, 4, 30


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return RECORDS

    def __getitem__(self, index):
        return {"x": torch.tensor([float(index)]), "labels": torch.tensor([0.0])}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x, labels):
        last[:] = x.detach().flatten().int().tolist()
        return {"loss": (self.layer(x) - labels).square().mean()}


last, current, releases, drawn = [], [], [], []
draw, clip, noise = UniformWithReplacementSampler.__iter__, DPOptimizer.clip_and_accumulate, DPOptimizer.add_noise


def watched_draw(self):
    for batch in draw(self):
        drawn.append(sorted(batch))
        yield batch


def watched_clip(self):
    current.extend(last)
    return clip(self)


def watched_noise(self):
    releases.append(sorted(current))
    current.clear()
    return noise(self)


UniformWithReplacementSampler.__iter__ = watched_draw
DPOptimizer.clip_and_accumulate, DPOptimizer.add_noise = watched_clip, watched_noise
torch.manual_seed(0)
given = TrainingArguments(
    output_dir="out", num_train_epochs=EPOCHS, per_device_train_batch_size=PART, gradient_accumulation_steps=ACCUMULATED,
    report_to=[], save_strategy="no", logging_strategy="no", use_cpu=True, disable_tqdm=True, remove_unused_columns=False,
)
private = PrivacyArguments(noise_multiplier=1.0, target_delta=1e-3)
trainer = DPTrainer(model=Net(), args=given, train_dataset=Rows(), privacy_args=private)
trainer.train()

merged, twice = 0, 0
for release in releases:
    for before, batch in zip(drawn, drawn[1:]):
        rest = Counter(release) - Counter(batch)
        if rest and len(release) == len(batch) + rest.total() and not rest - Counter(before):
            merged += 1
            twice += bool(rest.keys() & set(batch))
            break
counted = sum(steps for _, _, steps in trainer.dp_callback.accountant.history)
print(
    f"{len(releases)} releases, {counted} counted; {merged} of {EPOCHS - 1} ends of an epoch left one with rows of two "
    f"Poisson batches, {twice} of these with a record twice"
)
assert counted == len(releases)
assert twice
END
