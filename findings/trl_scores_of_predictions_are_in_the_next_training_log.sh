#!/bin/bash
# trl 1.16.0: after SFTTrainer.predict in a callback, the training log's next line holds the entropy and the token
# accuracy of the rows that were predicted, in the place of the training's own.
#
# compute_loss notes metrics by the mode of the model, and log() empties those of the mode that it finds. evaluate()
# logs at its end; predict() logs nothing. What it noted waits for the next call of log(), which is the training's, in
# a callback before the model is back in training mode. The line goes into log_history, and with it into the
# trainer_state.json of every later checkpoint. Whoever keeps evaluation scores out of what is published (private rows,
# a blind test set) and calls predict for that reason publishes them all the same.
#
# Expected: the lines of a training with predict at step 2 have the keys of one without.
# Seen, keys of the four lines that differ from those of the first:
#     step 1: none
#     step 2: eval_entropy, eval_mean_token_accuracy, eval_num_tokens; without entropy, mean_token_accuracy, num_tokens
#     step 3: none
#     step 4: none
source "$(dirname "$0")/install.bash"
install trl==1.16.0 transformers==5.23.0 datasets==5.2.0 accelerate==1.15.0 torch==2.13.0

HF_HUB_OFFLINE=1 python -W ignore - 2>/dev/null <<'END'
import contextlib
import io
import json
import pathlib
import tempfile

import datasets
import torch
import transformers
import trl
from tokenizers import Tokenizer, models, pre_tokenizers

torch.manual_seed(0)
words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[EOS]", *(f"w{i}" for i in range(20))])}
plain = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
plain.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]", eos_token="[EOS]"
)
rows = datasets.Dataset.from_dict({"text": [f"w{i % 20} w{(i + 1) % 20} w{(i + 2) % 20}" for i in range(32)]})
kept = datasets.Dataset.from_dict({"text": ["w3 w9 w1 w17", "w5 w5 w5"] * 4})


class Predicting(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **rest):
        if state.global_step == 2:
            trainer.predict(trainer.eval_dataset)


folder = tempfile.mkdtemp()
config = transformers.GPT2Config(vocab_size=23, n_positions=16, n_embd=8, n_layer=1, n_head=1)
trainer = trl.SFTTrainer(
    model=transformers.GPT2LMHeadModel(config), processing_class=tokenizer, train_dataset=rows, eval_dataset=kept,
    callbacks=[Predicting()],
    args=trl.SFTConfig(
        folder, max_steps=4, per_device_train_batch_size=8, logging_steps=1, save_strategy="steps", save_steps=4,
        report_to=[], use_cpu=True, bf16=False, disable_tqdm=True, max_length=16,
    ),
)
with contextlib.redirect_stdout(io.StringIO()):
    trainer.train()
saved = json.loads((pathlib.Path(folder) / "checkpoint-4/trainer_state.json").read_text())["log_history"]
usual, changed = set(saved[0]), {}
for line in saved:
    more, less = ", ".join(sorted(set(line) - usual)), ", ".join(sorted(usual - set(line)))
    changed[line["step"]] = f"{more}; without {less}" if more else "none"
    print(f"step {line['step']}: {changed[line['step']]}")
assert changed[1] == changed[3] == changed[4] == "none"
assert "eval_mean_token_accuracy" in changed[2]
END
