#!/bin/bash
# transformers 5.23.0: with output_router_logits=True the loss of a mixture of experts is not the mean of its rows'
# losses.
#
# The load-balancing term multiplies two means over the tokens of the whole batch: what share of them an expert got, and
# how probable it was. The term for a batch is not the mean of the terms of its rows, so a row's gradient alone is not its
# part of the batch's gradient. Per-example gradients by vmap or by a loop over rows train another objective; whoever
# takes the batch's loss and clips per example through hooks clips gradients that depend on other examples.
#
# Seen, for a Mixtral of two layers and four rows of eight tokens:
#     loss without the term: batch 3.9020, mean of the rows 3.9020
#     load-balancing term:   batch 2.0009, mean of the rows 2.0051
source "$(dirname "$0")/install.bash"
install transformers==5.23.0 torch==2.13.0

python -W ignore - <<'END'
import torch
from transformers import MixtralConfig, MixtralForCausalLM

torch.manual_seed(0)
config = MixtralConfig(
    vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, num_local_experts=4, output_router_logits=True, router_aux_loss_coef=1.0,
)
model = MixtralForCausalLM(config).eval()
tokens = torch.randint(50, (4, 8))
batch = model(input_ids=tokens, labels=tokens)
rows = [model(input_ids=row[None], labels=row[None]) for row in tokens]
plain = [float(one.loss - one.aux_loss) for one in (batch, *rows)]
term = [float(one.aux_loss) for one in (batch, *rows)]
print(f"loss without the term: batch {plain[0]:.4f}, mean of the rows {sum(plain[1:]) / 4:.4f}")
print(f"load-balancing term:   batch {term[0]:.4f}, mean of the rows {sum(term[1:]) / 4:.4f}")
assert abs(plain[0] - sum(plain[1:]) / 4) < 1e-5
assert abs(term[0] - sum(term[1:]) / 4) > 1e-3
END
