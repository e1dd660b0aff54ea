#!/bin/bash
# opacus 1.6.0 with torch 2.13.0: an nn.Embedding's padding_idx does not hold, so that where a batch is padded to its longest
# text one record changes the clipped gradients of all.
#
# By torch's documentation the row padding_idx has no part in the gradient and is not updated: it stays a fixed pad, zero unless
# set otherwise. A sum over a text's words is then the same with any padding. opacus' own gradients of an embedding
# (grad_sample_mode "hooks"; torch's expanded weights, "ew", too) give that row a gradient, once for each pad. Ghost clipping
# has it in the norm only. How many pads a text has is decided by the longest text of its batch, which thereby changes every
# other record's gradient or clip factor. It moves the sum by many clip norms; the noise and the epsilon are for one. With
# "functorch" the first step is right. But the noise goes to that row in every mode, it does not stay zero, and from then on
# the outputs depend on the padding too. Nothing is said, and no issue about it was found upstream.
#
# Seen, 64 texts of 4 to 8 words and one of 400, all in one batch, clip norm 1; 30 private steps of Adam, noise multiplier 1:
#     torch: the long text is 1.00 clip norms of the sum; padding changes no gradient
#     hooks: the long text moves the sum by 9.05 clip norms, after 30 steps by 7.03 (by 10.63 if the padding row, then 0.26 long, is
#     set to zero)
#     ghost: 5.91, 8.17 (6.14; 0.30 long)
#     functorch: 1.00, 9.28 (1.00; 0.30 long)
source "$(dirname "$0")/install.bash"
install opacus==1.6.0 torch==2.13.0 numpy==2.4.6

python -W ignore - <<'END'
import copy

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

CLIP, TEXTS, STEPS, RATE = 1.0, 64, 30, 0.01
torch.manual_seed(0)
texts = [(torch.randint(1, 500, (int(torch.randint(4, 9, ())),)), int(torch.randint(2, ()))) for _ in range(TEXTS)]
texts.append((torch.randint(1, 500, (400,)), 1))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.hidden, self.classes = nn.Embedding(500, 16, padding_idx=0), nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, tokens):
        return self.classes(self.hidden(self.words(tokens).sum(1)).tanh())


def padded(rows):
    return pad_sequence([tokens for tokens, _ in rows], batch_first=True), torch.tensor([label for _, label in rows])


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).double()


def steps(mode, weights, rows, count):
    """The last sum before its noise, and the weights, of a few private steps on all rows together."""
    torch.manual_seed(1)
    model = copy.deepcopy(weights)
    private = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.Adam(model.parameters(), lr=RATE), criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(rows, batch_size=len(rows), collate_fn=padded), noise_multiplier=1.0, max_grad_norm=CLIP,
        grad_sample_mode=mode, poisson_sampling=False,
    )
    criterion = private[2] if mode == "ghost" else nn.CrossEntropyLoss()
    for _ in range(count):
        for tokens, labels in private[-1]:
            private[1].zero_grad()
            criterion(private[0](tokens), labels).backward()
            private[1].step()
    clean = Words()
    clean.load_state_dict(model.state_dict())
    return flat(parameter.summed_grad for parameter in private[1].params), clean


first = Words()
# Without opacus: pads change nothing, and the long text moves the sum by at most the clip norm.
tokens, labels = padded(texts)
alone = []
for (own, label), row in zip(texts, tokens):
    both = []
    for words in (own, row):
        loss = nn.functional.cross_entropy(first(words[None]), torch.tensor([label]))
        both.append(flat(torch.autograd.grad(loss, first.parameters())))
    assert torch.allclose(*both, atol=1e-6)
    alone.append(both[0])
alone = torch.stack(alone)
clipped = alone * (CLIP / alone.norm(dim=1, keepdim=True)).clamp(max=1)
print(f"torch: the long text is {float(clipped[-1].norm()):.2f} clip norms of the sum; padding changes no gradient")

seen = {}
for mode in ("hooks", "ghost", "functorch"):
    moved = []
    _, later = steps(mode, first, texts, STEPS)
    for weights in (first, later):
        with_it, _ = steps(mode, weights, texts, 1)
        without, _ = steps(mode, weights, texts[:-1], 1)
        moved.append(float((with_it - without).norm()) / CLIP)
    row = float(later.words.weight[0].norm())
    reset = copy.deepcopy(later)  # a control: the same weights, with the row as torch would have kept it
    with torch.no_grad():
        reset.words.weight[0] = 0
    moved.append(float((steps(mode, reset, texts, 1)[0] - steps(mode, reset, texts[:-1], 1)[0]).norm()) / CLIP)
    seen[mode] = moved
    print(f"{mode}: the long text moves the sum by {moved[0]:.2f} clip norms, after {STEPS} steps by {moved[1]:.2f} (by "
          f"{moved[2]:.2f} if the padding row, then {row:.2f} long, is set to zero)")
    assert row > 0.1
assert float(first.words.weight[0].norm()) == 0
assert abs(seen["functorch"][0] - 1) < 0.01 and seen["functorch"][2] < 1.01
assert seen["hooks"][0] > 5 and seen["ghost"][0] > 5 and seen["functorch"][1] > 5
END
