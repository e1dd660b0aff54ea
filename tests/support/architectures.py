"""Real architectures, from public configurations and with random weights: what people bring, unmodified.

Each comes small enough for seconds, and at its published size. Nothing is downloaded.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

os.environ.setdefault("HF_HUB_OFFLINE", "1")

Sizes = dict[str, Any]


@dataclass(frozen=True)
class Architecture:
    """A model in two sizes, the loss people train it with, and batches of random data.

    Args:
        build: makes the model from ``small`` or ``published``.
        loss: one loss per example.
        batch: rows from a generator and the sizes.
    """

    build: Callable[..., nn.Module]
    loss: Callable[[nn.Module, Any], Tensor]
    batch: Callable[[int, Sizes], Any]
    small: Sizes
    published: Sizes

    def make(self, dtype: torch.dtype, rows: int, *, full: bool = False, seed: int = 0) -> tuple[nn.Module, Any]:
        """The model in training mode, its biases and unit gains moved a little, and a batch."""
        sizes = self.published if full else self.small
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = self.build(**sizes).to(dtype).train()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter), alpha=0.02)
            rows_of = self.batch(rows, sizes)
        return model, cast_floats(rows_of, dtype)


def cast_floats(batch: Any, dtype: torch.dtype) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(dtype) if batch.is_floating_point() else batch
    if isinstance(batch, tuple):
        return tuple(cast_floats(item, dtype) for item in batch)
    return type(batch)({key: cast_floats(item, dtype) for key, item in batch.items()})


# ---- what is learned: texts, images, signals ----


def next_token_loss(model: nn.Module, batch: Any) -> Tensor:
    """The mean over the positions of a text that count; ignored ones are -100, as transformers has it."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    labels = batch["labels"][:, 1:]
    each = functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="none")
    return each.sum(1) / (labels != -100).sum(1).clamp(min=1)


def text_loss(model: nn.Module, batch: Any) -> Tensor:
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    return functional.cross_entropy(model(**inputs).logits, batch["labels"], reduction="none")


def pixel_values_loss(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(pixel_values=batch[0]).logits, batch[1], reduction="none")


def image_loss(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def places_loss(model: nn.Module, batch: Any) -> Tensor:
    """One class a place: segmentation, or the next sample of a signal."""
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none").flatten(1).mean(1)


def texts(rows: int, sizes: Sizes) -> dict[str, Tensor]:
    """Padded to one public length, padding masked out and ignored; every text has its own length."""
    length, vocabulary = (
        sizes.get("n_positions", sizes.get("max_position_embeddings", 16)),
        sizes["vocab_size"],
    )
    length = min(length, 16)
    ids = torch.randint(vocabulary, (rows, length))
    mask = (torch.arange(length) < torch.randint(3, length + 1, (rows, 1))).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def labelled_texts(rows: int, sizes: Sizes) -> dict[str, Tensor]:
    found = texts(rows, sizes)
    return {**found, "labels": torch.randint(2, (rows,))}


def images(rows: int, sizes: Sizes) -> tuple[Tensor, Tensor]:
    size = sizes["image_size"]
    return torch.randn(rows, 3, size, size), torch.randint(sizes["num_labels"], (rows,))


def segmented(rows: int, sizes: Sizes) -> tuple[Tensor, Tensor]:
    size = sizes["image_size"]
    return torch.randn(rows, 3, size, size), torch.randint(sizes["num_labels"], (rows, size, size))


def signals(rows: int, sizes: Sizes) -> tuple[Tensor, Tensor]:
    levels = sizes["levels"]
    samples = torch.randint(levels, (rows, sizes["length"] + 1))
    return samples[:, :-1], samples[:, 1:]


# ---- transformers ----


def gpt2(**sizes: Any) -> nn.Module:
    """Linear layers as ``addmm`` with transposed weights, tied output, learned positions, causal masks."""
    from transformers import GPT2Config, GPT2LMHeadModel

    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2LMHeadModel(GPT2Config(**dropout, **sizes))


def bert(**sizes: Any) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    return BertForSequenceClassification(BertConfig(**dropout, **sizes))


def vit(**sizes: Any) -> nn.Module:
    """A class token, position embeddings, patches by a convolution."""
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(**sizes))


def convnext(**sizes: Any) -> nn.Module:
    """Depthwise convolutions, layer scale, channels last and first."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    return ConvNextForImageClassification(ConvNextConfig(layer_scale_init_value=0.1, **sizes))


def adapted_gpt2(**sizes: Any) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    adapter = LoraConfig(r=4, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True, lora_dropout=0.0)
    return get_peft_model(gpt2(**sizes), adapter)


def adapted_bert(**sizes: Any) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    adapter = LoraConfig(r=4, target_modules=["query", "value"], task_type="SEQ_CLS", lora_dropout=0.0, use_rslora=True)
    return get_peft_model(bert(**sizes), adapter)


# ---- written out here, small and plain ----


class Residual(nn.Module):
    """The basic block of ResNet (He et al. 2015), with group normalisation."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.GroupNorm(8, outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.GroupNorm(8, outputs),
        )
        same = stride == 1 and inputs == outputs
        self.skip = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(8, outputs))
        )
        self.out = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(x)
        out += self.skip(x)
        return self.out(out)


def resnet18(*, width: int, num_labels: int, image_size: int) -> nn.Module:
    """ResNet-18 of two blocks in each of four stages."""
    blocks: list[nn.Module] = []
    before = width
    for stage in range(4):
        after = width * 2**stage
        blocks += [Residual(before, after, 1 if stage == 0 else 2), Residual(after, after, 1)]
        before = after
    return nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.GroupNorm(8, width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(before, num_labels),
    )


def double(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU(),
    )  # fmt: skip


class UNet(nn.Module):
    """Ronneberger et al. 2015: down by pooling, up by transposed convolutions, joined at each level."""

    def __init__(self, *, width: int, depth: int, num_labels: int, image_size: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            double(before, after) for before, after in zip([3, *widths[:-1]], widths, strict=True)
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(after, before, 2, stride=2)
            for before, after in zip(widths[-2::-1], widths[:0:-1], strict=True)
        )
        self.joined = nn.ModuleList(double(2 * size, size) for size in widths[-2::-1])
        self.head = nn.Conv2d(width, num_labels, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for level, down in enumerate(self.down):
            x = down(functional.max_pool2d(x, 2) if level else x)
            skips.append(x)
        for up, joined, skip in zip(self.up, self.joined, skips[-2::-1], strict=True):
            x = joined(torch.cat([skip, up(x)], 1))
        return self.head(x)


class WaveNet(nn.Module):
    """Oord et al. 2016: dilated causal convolutions with gates, a residual and a skip path."""

    def __init__(self, *, width: int, skip: int, layers: int, stacks: int, levels: int, length: int) -> None:
        super().__init__()
        self.levels = levels
        self.first = nn.utils.parametrizations.weight_norm(nn.Conv1d(levels, width, 1))
        steps = [2**layer for layer in range(layers)] * stacks
        self.gated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=step) for step in steps)
        self.residual = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in steps)
        self.skips = nn.ModuleList(nn.Conv1d(width, skip, 1) for _ in steps)
        self.last = nn.Sequential(nn.ReLU(), nn.Conv1d(skip, skip, 1), nn.ReLU(), nn.Conv1d(skip, levels, 1))
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(functional.one_hot(x, self.levels).transpose(1, 2).to(self.last[1].weight))
        total = torch.zeros((), dtype=hidden.dtype, device=hidden.device)
        for step, gated, residual, skip in zip(self.steps, self.gated, self.residual, self.skips, strict=True):
            left, right = gated(functional.pad(hidden, (step, 0))).chunk(2, 1)
            out = torch.tanh(left) * torch.sigmoid(right)
            total = total + skip(out)
            hidden = hidden + residual(out)
        return self.last(total)


_GPT2_SMALL: Sizes = {"vocab_size": 97, "n_positions": 16, "n_embd": 64, "n_layer": 2, "n_head": 4}
_GPT2: Sizes = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}


class Names(nn.Module):
    """The tutorial's: letters of a name, packed by length, the last state of an LSTM, languages."""

    def __init__(self, letters: int, width: int, hidden: int, languages: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.letters = nn.Embedding(letters, width, padding_idx=0)
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        self.out = nn.Linear(hidden, languages)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(self.letters(ids), lengths, batch_first=True, enforce_sorted=False)
        _, (last, _) = self.lstm(packed)
        return self.out(last[-1])


def names(rows: int, sizes: Sizes) -> tuple[Tensor, ...]:
    lengths = torch.randint(1, sizes["length"] + 1, (rows,))
    ids = torch.randint(1, sizes["letters"], (rows, sizes["length"]))
    ids = ids * (torch.arange(sizes["length"]) < lengths.unsqueeze(1))
    return ids, lengths, torch.randint(sizes["languages"], (rows,))


def names_loss(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(*batch[:2]), batch[2], reduction="none")


_BERT_SMALL: Sizes = {
    "vocab_size": 97, "max_position_embeddings": 16, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 128,
}  # fmt: skip
_BERT: Sizes = {
    "vocab_size": 30522, "max_position_embeddings": 512, "hidden_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 512,
}  # fmt: skip
ARCHITECTURES: dict[str, Architecture] = {
    "GPT-2 small": Architecture(gpt2, next_token_loss, texts, _GPT2_SMALL, _GPT2),
    "BERT-tiny": Architecture(bert, text_loss, labelled_texts, _BERT_SMALL, _BERT),
    "ViT-tiny": Architecture(
        vit, pixel_values_loss, images,
        {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
         "image_size": 32, "patch_size": 8, "num_labels": 3},
        {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768,
         "image_size": 224, "patch_size": 16, "num_labels": 1000},
    ),
    "ConvNeXt-tiny": Architecture(
        convnext, pixel_values_loss, images,
        {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 2, 1], "image_size": 32, "num_labels": 3},
        {"hidden_sizes": [96, 192, 384, 768], "depths": [3, 3, 9, 3], "image_size": 224, "num_labels": 1000},
    ),
    "ResNet-18 with GroupNorm": Architecture(
        resnet18, image_loss, images,
        {"width": 8, "image_size": 32, "num_labels": 3}, {"width": 64, "image_size": 224, "num_labels": 1000},
    ),
    "U-Net": Architecture(
        UNet, places_loss, segmented,
        {"width": 8, "depth": 2, "image_size": 16, "num_labels": 3},
        {"width": 64, "depth": 4, "image_size": 64, "num_labels": 2},
    ),
    "WaveNet": Architecture(
        WaveNet, places_loss, signals,
        {"width": 8, "skip": 12, "layers": 4, "stacks": 2, "levels": 16, "length": 24},
        {"width": 32, "skip": 256, "layers": 10, "stacks": 2, "levels": 256, "length": 512},
    ),
    "LSTM of the tutorial": Architecture(
        Names, names_loss, names,
        {"letters": 11, "width": 6, "hidden": 8, "languages": 4, "length": 7},
        {"letters": 60, "width": 64, "hidden": 128, "languages": 18, "length": 20},
    ),
    "LoRA on GPT-2 (peft)": Architecture(adapted_gpt2, next_token_loss, texts, _GPT2_SMALL, _GPT2),
    "LoRA on BERT (peft)": Architecture(adapted_bert, text_loss, labelled_texts, _BERT_SMALL, _BERT),
}  # fmt: skip


# ---- other families of transformers, small only: they bring operations that the ones above do not have ----


def _family(model: str, loss: Any, batch: Any, **sizes: Any) -> Architecture:
    def build(**small: Any) -> nn.Module:
        import transformers

        kind = getattr(transformers, model)
        return kind(kind.config_class(**small))

    return Architecture(build, loss, batch, sizes, sizes)


def translation_loss(model: nn.Module, batch: Any) -> Tensor:
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    logits = model(**inputs, decoder_input_ids=batch["input_ids"]).logits
    return functional.cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none").mean(1)


_TEXT = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 32, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
_IMAGE = {"image_size": 32, "num_labels": 3, "drop_path_rate": 0.0, "hidden_dropout_prob": 0.0}
OTHERS: dict[str, Architecture] = {
    "Llama": _family("LlamaForCausalLM", next_token_loss, texts, **_TEXT),
    "OPT": _family(
        "OPTForCausalLM", next_token_loss, texts, **_TEXT, ffn_dim=48, word_embed_proj_dim=32, dropout=0.0
    ),
    "RoBERTa": _family("RobertaForMaskedLM", next_token_loss, texts, **_TEXT),
    "DistilBERT": _family(
        "DistilBertForSequenceClassification", text_loss, labelled_texts, vocab_size=97, dim=32, n_layers=2, n_heads=2,
        hidden_dim=48, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0,
    ),
    "DeBERTa": _family(
        "DebertaV2ForSequenceClassification", text_loss, labelled_texts, **_TEXT, relative_attention=True,
        pos_att_type=["p2c", "c2p"], position_buckets=8,
    ),
    "T5": _family(
        "T5ForConditionalGeneration", translation_loss, texts, vocab_size=97, d_model=32, d_kv=16, d_ff=48,
        num_layers=2, num_heads=2, dropout_rate=0.0,
    ),
    "Mamba": _family(
        "MambaForCausalLM", next_token_loss, texts, vocab_size=97, hidden_size=16, num_hidden_layers=1, state_size=4
    ),
    "Swin": _family(
        "SwinForImageClassification", pixel_values_loss, images, **_IMAGE, patch_size=2, embed_dim=16, depths=[1, 1],
        num_heads=[2, 2], window_size=4,
    ),
    "BEiT": _family(
        "BeitForImageClassification", pixel_values_loss, images, **_IMAGE, patch_size=8, hidden_size=32,
        num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, use_relative_position_bias=True,
        layer_scale_init_value=0.1,
    ),
}  # fmt: skip
