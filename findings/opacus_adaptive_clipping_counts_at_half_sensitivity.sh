#!/bin/bash
# opacus 1.6.0: clipping="adaptive" accounts the count of unclipped gradients at half its sensitivity.
#
# The optimiser releases two things a step: the sum of the clipped gradients, and a noisy share of examples that were not
# clipped, which moves the next clip norm. By theorem 1 of Andrew et al. 2021 (arXiv 1905.03871) both together are as
# private as one sum with the noise multiplier z if the gradients' is (z^-2 - (2 s)^-2)^-1/2, s being the standard
# deviation of the noise on the count: for a count of b - 1/2 with b in {0, 1}, which one example moves by 1/2. opacus
# counts b itself, and divides by the number of examples that happen to be in the batch: one example moves it by up to 1.
# So the two together have a noise multiplier as low as (z^-2 + 3/4 s^-2)^-1/2, and the accountant records z.
#
# Seen: 40 examples without a gradient, and one more that is clipped; z = 1, s = 0.6 (opacus asks for z < 2 s); all are
# in every batch; 4,000 first steps each. The best linear test on what a step releases finds the additional example in
# 55 % of the cases at 5 % false alarms. A noise multiplier of 1 allows 26 %. With s a twentieth of a large batch, as is
# usual, the difference is small: 9 % in the noise multiplier at batches of 40, 0.01 % at 1,000.
source "$(dirname "$0")/install.bash"
install opacus==1.6.0 torch==2.13.0

python -W ignore - <<'END'
import math
from statistics import NormalDist

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

Z, COUNT_STD, ROWS, STEPS = 1.0, 0.6, 40, 4000

def released(extra: bool) -> torch.Tensor:
    """(noisy sum of the gradients, noisy share of unclipped ones) of many first steps; all rows are drawn."""
    torch.manual_seed(int(extra))
    rows = torch.zeros(ROWS + extra, 1)
    rows[ROWS:] = 100.0  # its gradient is clipped, those of the others are 0
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        data_loader=DataLoader(TensorDataset(rows), batch_size=len(rows)), noise_multiplier=Z, max_grad_norm=1.0,
        clipping="adaptive", target_unclipped_quantile=0.0, clipbound_learning_rate=1.0, max_clipbound=1e9,
        min_clipbound=1e-9, unclipped_num_std=COUNT_STD,
    )
    found = []
    for _ in range(STEPS):
        for (inputs,) in loader:
            optimizer.zero_grad()
            model(inputs).mean().backward()
            optimizer.step()
            gradient = float(model._module.weight.grad) * optimizer.expected_batch_size
            found.append((gradient, -math.log(float(optimizer.max_grad_norm))))
            optimizer.max_grad_norm = 1.0
    assert {noise for noise, _, _ in engine.accountant.history} == {Z}
    return torch.tensor(found, dtype=torch.float64)

without, with_one = released(False), released(True)
mean, spread = without.mean(0), without.std(0)
apart = (with_one.mean(0) - mean) / spread

weights = apart / spread
score = [((one - mean) * weights).sum(1) for one in (without, with_one)]
threshold = score[0].quantile(0.95)
power = float((score[1] > threshold).double().mean())
most = NormalDist().cdf(NormalDist().inv_cdf(0.05) + 1 / Z)
print(f"found with 5 % false alarms: {power:.0%}; noise multiplier {Z:g} allows {most:.0%}")
assert power > most + 0.15
END
