"""One loss an example from what a Hugging Face model returns, whatever the other examples of its batch are."""

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor, nn

from decrescendo.clipping.clipped import Batch
from decrescendo.errors import InvalidType, InvalidValue, UnsupportedModel

# Positions of a label that do not count.
IGNORED = -100


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of each example: of its class, or its mean over the example's own labelled tokens.

    The loss that a model computes by itself divides by the tokens of all examples; this one leaves ``labels`` out of
    the call and reads the logits. Labels of a causal language model are those of the next token; those of a masked
    one, of a token classifier and of an encoder with a decoder stand where they are.

    Args:
        model: a model for sequence or token classification, or for causal, masked or sequence-to-sequence language
            modelling, from ``transformers``; adapters of ``peft`` on it are looked through.
        batch: what a collator of ``transformers`` makes: a mapping with ``labels``, of shape (batch,), or (batch,
            tokens) with -100 where nothing is asked.

    Edge cases:
        an example of which no token counts has a loss of zero.

    Raises:
        InvalidType: a batch without labels.
        InvalidValue: labels that do not fit the logits.
        UnsupportedModel: a model of another kind, which needs a loss of your own.

    >>> import torch
    >>> class Classifier(nn.Module):
    ...     def forward(self, x):
    ...         return {"logits": x}
    >>> x = torch.zeros(2, 4)
    >>> loss(Classifier(), {"x": x, "labels": torch.tensor([0, 3])})
    tensor([1.3863, 1.3863])
    """
    if not isinstance(batch, Mapping) or "labels" not in batch:
        shown = ", ".join(map(str, batch)) if isinstance(batch, Mapping) else type(batch).__name__
        raise InvalidType(
            f"a batch must be a mapping with labels, got {shown}. Name the column 'labels' (or 'label', with a "
            "collator of transformers); a Trainer drops columns that the model's forward does not take"
        )
    inputs = {str(key): value for key, value in cast("Mapping[str, Any]", batch).items() if key != "labels"}
    logits, labels = _logits(model(**inputs), model), cast("Tensor", batch["labels"])
    if labels.is_floating_point():
        raise InvalidValue(
            "labels must be whole numbers, got floating-point ones. For regression or several labels at once write a "
            "loss: one value an example from model(**inputs).logits"
        )
    if labels.dim() == 1 and logits.dim() == 2:
        return nn.functional.cross_entropy(logits, labels, reduction="none")
    if labels.dim() != 2 or logits.dim() != 3:
        raise InvalidValue(
            f"labels must be one an example or one a token, got shape {tuple(labels.shape)} for logits of shape "
            f"{tuple(logits.shape)}. Write a loss of your own: one value an example from model(**inputs).logits"
        )
    if _predicts_the_next(model):
        logits, labels = logits[:, :-1], labels[:, 1:]
    each = nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
    return each.sum(1) / (labels != IGNORED).sum(1).clamp(min=1)


def _logits(output: object, model: nn.Module) -> Tensor:
    found: object = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if not isinstance(found, Tensor):
        raise UnsupportedModel(
            f"the model must return logits, got {type(output).__name__} without them from {type(model).__name__}. "
            "Take the class with a head (..ForSequenceClassification), or write a loss of your own"
        )
    return found


def _predicts_the_next(model: nn.Module) -> bool:
    base = cast("Any", model).get_base_model() if hasattr(model, "get_base_model") else model
    name, config = type(base).__name__, getattr(base, "config", None)
    aligned = ("MaskedLM", "TokenClassification")
    if getattr(config, "is_encoder_decoder", False) or any(kind in name for kind in aligned):
        return False
    if any(kind in name for kind in ("CausalLM", "LMHead", "ForConditionalGeneration")):
        return True
    raise UnsupportedModel(
        f"a model with labels for tokens must be a causal or masked language model or a token classifier, got {name}. "
        "Whether its labels are those of the next token is not known: write a loss of your own"
    )
