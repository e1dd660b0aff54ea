"""Transformers' classes from its own auto-mapping tables, in tiny random configurations, with batches and losses.

Nothing is downloaded. Sizes are made small by the names that configurations give them; a few have overrides.
"""

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers_sizes import LENGTH, OVERRIDES, VOCABULARY, small_sizes

Batch = dict[str, Tensor]
# Classes a choice and labels, everywhere: a number that is no batch size of the test.
_LABELS = 3


def _texts(rows: int, length: int = LENGTH) -> Batch:
    """Texts padded to a fixed public length; the first has no padding."""
    lengths = torch.randint(3, length + 1, (rows,))
    lengths[0] = length
    mask = (torch.arange(length) < lengths[:, None]).long()
    ids = torch.randint(5, VOCABULARY, (rows, length)) * mask
    ids[torch.arange(rows), lengths - 1] = 2  # the end of each text
    return {"input_ids": ids, "attention_mask": mask}


def _labelled(rows: int, labels: tuple[int, ...], high: int = _LABELS) -> Tensor:
    return torch.randint(high, (rows, *labels))


def _own(each: Tensor, keep: Tensor) -> Tensor:
    """The mean over the row's own places."""
    keep = keep.to(each.dtype)
    return (each * keep).sum(1) / keep.sum(1).clamp(min=1)


def _inputs(batch: Batch) -> Batch:
    return {key: value for key, value in batch.items() if not key.startswith("labels")}


def _places(logits: Tensor, labels: Tensor, keep: Tensor) -> Tensor:
    return _own(functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none"), keep)


def next_token_loss(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(**batch).logits
    return _places(logits[:, :-1], batch["input_ids"][:, 1:], batch["attention_mask"][:, 1:])


def token_loss(model: nn.Module, batch: Batch) -> Tensor:
    return _places(model(**_inputs(batch)).logits, batch["labels"], batch["attention_mask"])


def choice_loss(model: nn.Module, batch: Batch) -> Tensor:
    out = model(**_inputs(batch))
    logits = out.logits if "logits" in out else out[0]
    return functional.cross_entropy(logits, batch["labels"], reduction="none")


def span_loss(model: nn.Module, batch: Batch) -> Tensor:
    out = model(**_inputs(batch))
    ends = zip((out.start_logits, out.end_logits), batch["labels"].unbind(1), strict=True)
    return sum(functional.cross_entropy(each, label, reduction="none") for each, label in ends) / 2


def translation_loss(model: nn.Module, batch: Batch) -> Tensor:
    return _places(model(**_inputs(batch)).logits, batch["labels"], batch["labels_mask"])


def pixel_loss(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(**_inputs(batch)).logits
    labels = functional.interpolate(batch["labels"][:, None].float(), logits.shape[-2:]).long().squeeze(1)
    return functional.cross_entropy(logits, labels, reduction="none").mean((1, 2))


def ctc_loss(model: nn.Module, batch: Batch) -> Tensor:
    scores = model(**_inputs(batch)).logits.log_softmax(2).transpose(0, 1)
    rows, length = batch["labels"].shape
    sizes = torch.full((rows,), scores.shape[0]), torch.full((rows,), length)
    return functional.ctc_loss(scores, batch["labels"], *sizes, reduction="none")


def features_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Of a model without a head: the last hidden states, squared, over the row's own places."""
    hidden = model(**_inputs(batch)).last_hidden_state
    each = hidden.sub(0.1).square()
    if each.dim() == 3 and "attention_mask" in batch and each.shape[1] == batch["attention_mask"].shape[1]:
        return _own(each.mean(2), batch["attention_mask"])
    return each.flatten(1).mean(1)


def _classified_texts(rows: int, config: Any) -> Batch:
    return {**_texts(rows), "labels": _labelled(rows, ())}


def _following_texts(rows: int, config: Any) -> Batch:
    return {**_texts(rows), "labels": _labelled(rows, (), 2)}


def _tagged_texts(rows: int, config: Any) -> Batch:
    return {**_texts(rows), "labels": _labelled(rows, (LENGTH,))}


def _filled_texts(rows: int, config: Any) -> Batch:
    return {**_texts(rows), "labels": _labelled(rows, (LENGTH,), VOCABULARY)}


def _questions(rows: int, config: Any) -> Batch:
    return {**_texts(rows), "labels": _labelled(rows, (2,))}


def _choices(rows: int, config: Any) -> Batch:
    texts = _texts(rows * _LABELS)
    folded = {key: value.unflatten(0, (rows, _LABELS)) for key, value in texts.items()}
    return {**folded, "labels": _labelled(rows, ())}


def _pairs(rows: int, config: Any) -> Batch:
    target = _texts(rows, LENGTH - 1)
    decoder = {f"decoder_{key}": value for key, value in target.items()}
    labels = {
        "labels": _labelled(rows, (LENGTH - 1,), VOCABULARY),
        "labels_mask": target["attention_mask"],
    }
    return {**_texts(rows), **decoder, **labels}


def _pixels(rows: int, config: Any) -> Tensor:
    size = getattr(config, "image_size", 32) or 32
    high, wide = (size, size) if isinstance(size, int) else (size[-2], size[-1])
    return torch.randn(rows, getattr(config, "num_channels", 3) or 3, high, wide)


def _images(rows: int, config: Any) -> Batch:
    return {"pixel_values": _pixels(rows, config), "labels": _labelled(rows, ())}


def _segmented(rows: int, config: Any) -> Batch:
    pixels = _pixels(rows, config)
    return {"pixel_values": pixels, "labels": _labelled(rows, tuple(pixels.shape[2:]))}


def _signals(rows: int, config: Any) -> Batch:
    """Sound as it is, or as a spectrum."""
    if config.model_type == "whisper":
        return {"input_features": torch.randn(rows, 16, 128), "labels": _labelled(rows, ())}
    if config.model_type == "audio-spectrogram-transformer":
        return {"input_values": torch.randn(rows, 24, 16), "labels": _labelled(rows, ())}
    if config.model_type in ("wav2vec2-bert", "lasr_ctc", "parakeet_ctc", "granite_speech5_ctc"):
        wide = getattr(config, "feature_projection_input_dim", 16)
        return {"input_features": torch.randn(rows, 40, wide), "labels": _labelled(rows, ())}
    return {"input_values": torch.randn(rows, 400), "labels": _labelled(rows, ())}


def _transcribed(rows: int, config: Any) -> Batch:
    return {**_signals(rows, config), "labels": 1 + _labelled(rows, (2,))}


def _plain_texts(rows: int, config: Any) -> Batch:
    return _texts(rows)


@dataclass(frozen=True)
class Task:
    """What a head is for: its table of classes in transformers, a batch, and a loss per example."""

    table: str
    batch: Callable[[int, Any], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]


TASKS = {
    "sequences": Task("SEQUENCE_CLASSIFICATION", _classified_texts, choice_loss),
    "next token": Task("CAUSAL_LM", _plain_texts, next_token_loss),
    "masked token": Task("MASKED_LM", _filled_texts, token_loss),
    "tokens": Task("TOKEN_CLASSIFICATION", _tagged_texts, token_loss),
    "questions": Task("QUESTION_ANSWERING", _questions, span_loss),
    "choices": Task("MULTIPLE_CHOICE", _choices, choice_loss),
    "next sentence": Task("NEXT_SENTENCE_PREDICTION", _following_texts, choice_loss),
    "translation": Task("SEQ_TO_SEQ_CAUSAL_LM", _pairs, translation_loss),
    "images": Task("IMAGE_CLASSIFICATION", _images, choice_loss),
    "pixels": Task("SEMANTIC_SEGMENTATION", _segmented, pixel_loss),
    "signals": Task("AUDIO_CLASSIFICATION", _signals, choice_loss),
    "transcripts": Task("CTC", _transcribed, ctc_loss),
    "features of texts": Task("TEXT_ENCODING", _plain_texts, features_loss),
    "features of images": Task("IMAGE", _images, features_loss),
}


@dataclass(frozen=True)
class Subject:
    """One class of transformers with one task."""

    task: str
    model_type: str
    name: str

    def make(self, rows: tuple[int, ...], *, dropout: bool = False) -> tuple[nn.Module, list[Batch]]:
        """The model in evaluation mode, its zeros and ones moved a little, and a batch of each number of rows."""
        import transformers

        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            kind = getattr(transformers, self.name)
            config = small_config(kind.config_class, self.name, dropout=dropout)
            model = kind(config).eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter), alpha=0.02)
            batches = [TASKS[self.task].batch(count, config) for count in rows]
        return model, batches

    def size(self) -> int:
        """How many numbers the model has, found without making them; zero where that fails."""
        import transformers

        kind = getattr(transformers, self.name)
        config = small_config(kind.config_class, self.name)
        try:
            with torch.device("meta"):
                return sum(parameter.numel() for parameter in kind(config).parameters())
        except (RuntimeError, NotImplementedError):
            return 0

    @property
    def loss(self) -> Callable[[nn.Module, Batch], Tensor]:
        return TASKS[self.task].loss


def small_config(kind: Any, name: str, *, dropout: bool = False) -> Any:
    """A configuration of that class with everything small."""
    own: Mapping[str, Any] = OVERRIDES.get(name, OVERRIDES.get(kind.model_type, {}))
    labels = {"num_labels": 2} if "QuestionAnswering" in name else {}  # where an answer begins, and ends
    config = kind(**{**small_sizes(kind, dropout=dropout), **labels, **own})
    config.use_cache = False
    return config


def subjects() -> list[Subject]:
    """Every class of the tables, once."""
    from transformers.models.auto import modeling_auto

    found: dict[str, Subject] = {}
    for task, known in TASKS.items():
        table = getattr(modeling_auto, f"MODEL_FOR_{known.table}_MAPPING_NAMES")
        for model_type, names in table.items():
            for name in names if isinstance(names, (list, tuple)) else (names,):
                found.setdefault(name, Subject(task, model_type, name))
    return list(found.values())
