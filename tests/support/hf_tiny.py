"""Models of Hugging Face in tiny configurations, made-up words, and rows of them: nothing is downloaded."""

import random
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.utils.data import Dataset

from decrescendo.accounting.budget import Budget, Guarantee, Unit
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.plans.schedule import Schedule

ROWS = 40
SPECIAL = ["[PAD]", "[UNK]", "[EOS]", "[MASK]"]
WORDS = [f"w{number}" for number in range(28)]


def plan_of(noise: tuple[float, ...], clip: tuple[float, ...], batch: float) -> Plan:
    """With exactly these numbers, not calibrated; its guarantee is a stand-in."""
    stand_in = Guarantee(1.0, 1e-5, Unit.EXAMPLE, "nobody", "estimate")
    return Plan(Budget(1.0, 1e-5), PoissonSampling(ROWS, batch), Schedule(noise, clip), stand_in)


def tokenizer() -> Any:
    words = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    plain = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]", eos_token="[EOS]", mask_token="[MASK]",
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


def texts() -> Any:
    """Ragged: 2 to 18 words; the label says whether their number is odd."""
    draw = random.Random(0)
    found = [[draw.choice(WORDS) for _ in range(draw.randint(2, 18))] for _ in range(ROWS)]
    rows = {"text": [" ".join(words) for words in found], "label": [len(words) % 2 for words in found]}
    words = tokenizer()
    import datasets  # slow, and for the process alone that needs it

    return datasets.Dataset.from_dict({**rows, **words(rows["text"])})


def bert(dropout: float = 0.1, kind: str = "BertForSequenceClassification") -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=32, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=32, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    return getattr(transformers, kind)(config)


def gpt2(dropout: float = 0.1) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=32, n_embd=8, n_layer=2, n_head=2, n_positions=32, resid_pdrop=dropout, attn_pdrop=dropout,
        embd_pdrop=dropout, pad_token_id=0, bos_token_id=2, eos_token_id=2,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def vit() -> Any:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4,
        num_channels=3, num_labels=2,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


class Augmented(Dataset[Any]):
    """Pictures that are flipped, shifted and made noisy at each access."""

    def __init__(self) -> None:
        self.pixels = torch.randn(ROWS, 3, 8, 8, generator=torch.Generator().manual_seed(1))
        self.labels = (self.pixels.mean((1, 2, 3)) > 0).long()

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        picture = self.pixels[index]
        if random.random() < 0.5:
            picture = picture.flip(2)
        picture = picture.roll(int(torch.randint(3, ())), 1) + 0.01 * torch.randn(3, 8, 8)
        return {"pixel_values": picture, "labels": self.labels[index]}
