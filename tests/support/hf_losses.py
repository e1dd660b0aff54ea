"""`hf.loss` against the model's own loss of each example alone, for every class of Transformers with labels.

``python tests/support/hf_losses.py`` passes all classes and writes the table (a quarter of an hour); with names of
classes or tasks, those alone.
"""

import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers_sizes import LENGTH, VOCABULARY
from transformers_zoo import Batch, Subject, small_config, subjects
from transformers_zoo import _images as images
from transformers_zoo import _labelled as labelled
from transformers_zoo import _signals as signals
from transformers_zoo import _texts as texts

import decrescendo as dc
from decrescendo.errors import DecrescendoError

TABLE = Path(__file__).with_suffix(".json")
ROWS = 3
# Numbers of a model that this table calls small.
MOST = 2_000_000
TOLERANCE = 1e-4
IGNORED = -100


class LeftOut(Exception):
    """A class that cannot be built small, or whose own forward pass fails on these rows alone."""


def as_trained(task: str, batch: Batch) -> Batch | None:
    """A batch of the zoo's with labels as the model's forward takes them; ``None`` where there are none."""
    if task.startswith("features"):
        return None
    batch = dict(batch)
    if task == "questions":
        spans = batch.pop("labels")
        return {**batch, "start_positions": spans[:, 0].clone(), "end_positions": spans[:, 1].clone()}
    if task == "next token":
        return {**batch, "labels": batch["input_ids"].where(batch["attention_mask"] == 1, IGNORED)}
    if task == "translation":
        keep = batch.pop("labels_mask") == 1
        own = {key: value for key, value in batch.items() if not key.startswith("decoder")}
        return {**own, "labels": batch["labels"].where(keep, IGNORED)}
    if task in ("tokens", "masked token"):
        return {**batch, "labels": batch["labels"].where(batch["attention_mask"] == 1, IGNORED)}
    return batch


# Classes that no table of the zoo's has, by what they are given.


def _tokens(rows: int, high: int = VOCABULARY) -> Tensor:
    return labelled(rows, (LENGTH,), high).where(torch.rand(rows, LENGTH) < 0.5, IGNORED)


def _two_tasks(second: str) -> Callable[[int, Any], Batch]:
    return lambda rows, config: {**texts(rows), "labels": _tokens(rows), second: labelled(rows, (), 2)}


def _found(rows: int, config: Any) -> Batch:
    return {**texts(rows), "labels": labelled(rows, (LENGTH,), 2)}


def _spans(rows: int, config: Any) -> Batch:
    ends = {f"{end}_positions": labelled(rows, (), LENGTH) for end in ("start", "end")}
    return {**texts(rows), **ends}


def _spans_or_none(rows: int, config: Any) -> Batch:
    return {
        **_spans(rows, config),
        "cls_index": labelled(rows, ()),
        "is_impossible": torch.rand(rows).round(),
    }


def _heard(rows: int, config: Any) -> Batch:
    """A recording, and its words for a decoder."""
    kind = getattr(config, "model_type", "")
    if kind == "speech_to_text":
        width = config.input_feat_per_channel * config.input_channels
        heard = {"input_features": torch.randn(rows, 40, width)}
    else:
        heard = signals(rows, config)
    return {**heard, "labels": labelled(rows, (5,), VOCABULARY - 5) + 5}


def _frames(rows: int, config: Any) -> Batch:
    heard = signals(rows, config)
    frames = labelled(rows, (40 if "input_features" in heard else 19,))
    return {**heard, "labels": torch.nn.functional.one_hot(frames, 3).float()}


def _voices(rows: int, config: Any) -> Batch:
    return {**signals(rows, config), "labels": labelled(rows, ())}


def _seen(rows: int, config: Any) -> Batch:
    """A picture, and its words for a decoder."""
    pixels = images(rows, config.encoder)["pixel_values"]
    return {"pixel_values": pixels, "labels": _tokens(rows)}


def _translated(rows: int, config: Any) -> Batch:
    return {**texts(rows), "labels": _tokens(rows)}


def _contrasted(rows: int, config: Any) -> Any:
    pixels = images(rows, config.vision_config)["pixel_values"]
    return {**texts(rows), "pixel_values": pixels, "return_loss": True}


def _boxed(rows: int, config: Any) -> Any:
    boxes = [
        {"class_labels": labelled(1 + row, (), 3), "boxes": torch.rand(1 + row, 4) / 2 + 0.2} for row in range(rows)
    ]
    return {"pixel_values": torch.randn(rows, 3, 32, 32), "labels": boxes}


def _deep(rows: int, config: Any) -> Batch:
    return {"pixel_values": torch.randn(rows, 3, 32, 32), "labels": torch.rand(rows, 32, 32)}


def _chosen(rows: int, config: Any) -> Batch:
    """Two heads: which of two texts, and their next words."""
    pairs = {key: value.unflatten(0, (rows, 2)) for key, value in texts(rows * 2).items()}
    words = pairs["input_ids"].where(pairs["attention_mask"] == 1, IGNORED)
    places = {"mc_token_ids": pairs["attention_mask"].sum(2) - 1, "mc_labels": labelled(rows, (), 2)}
    return {**pairs, "labels": words, **places}


def _several(rows: int, config: Any) -> Batch:
    """Any of the classes, or none."""
    return {**texts(rows), "labels": torch.rand(rows, 3).round()}


def _measured(rows: int, config: Any) -> Batch:
    return {**texts(rows), "labels": torch.randn(rows, config.num_labels).squeeze(1)}


def _composed(kind: str, *parts: str) -> Callable[[], Any]:
    """An encoder and a decoder of classes that have small configurations."""

    def config() -> Any:
        import transformers

        encoder, decoder = (small_config(getattr(transformers, part), part) for part in parts)
        decoder.is_decoder = decoder.add_cross_attention = True
        made = getattr(transformers, kind).from_encoder_decoder_configs(encoder, decoder)
        made.decoder_start_token_id, made.pad_token_id = 1, 0
        return made

    return config


@dataclass(frozen=True)
class Case:
    """A class, its batch, and how its configuration differs from the usual small one."""

    name: str
    batch: Callable[[int, Any], Any]
    change: dict[str, Any] | None = None
    config: Callable[[], Any] | None = None

    def make(self) -> tuple[nn.Module, Any]:
        import transformers

        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            kind = getattr(transformers, self.name.split(" ")[0])
            config = self.config() if self.config else small_config(kind.config_class, kind.__name__)
            for key, value in (self.change or {}).items():
                setattr(config, key, value)
            return kind(config).eval(), self.batch(ROWS, config)


_HEADS = ("BertForSequenceClassification", "GPT2ForSequenceClassification", "T5ForSequenceClassification")
_SPEECH = ["Data2VecAudio", "UniSpeechSat", "Wav2Vec2Bert", "Wav2Vec2Conformer", "Wav2Vec2", "WavLM"]
CASES = (
    *(Case(f"{name}ForPreTraining", _two_tasks("next_sentence_label"))
      for name in ("Bert", "BigBird", "Ernie", "FNet", "MegatronBert")),
    Case("AlbertForPreTraining", _two_tasks("sentence_order_label"), {"num_labels": 2}),
    Case("MobileBertForPreTraining", _two_tasks("next_sentence_label")),
    Case("ElectraForPreTraining", _found),
    Case("FunnelForPreTraining", _found),
    *(Case(f"{name}ForQuestionAnswering", _spans) for name in ("XLM", "Flaubert", "XLNet")),
    *(Case(f"{name}ForQuestionAnswering with no answer", _spans_or_none) for name in ("XLM", "Flaubert", "XLNet")),
    *(Case(f"{name}ForAudioFrameClassification", _frames) for name in _SPEECH),
    *(Case(f"{name}ForXVector", _voices) for name in _SPEECH),
    *(Case(f"{name} of several labels", _several, {"problem_type": "multi_label_classification"}) for name in _HEADS),
    *(Case(f"{name} of several labels, unset", _several) for name in _HEADS[:1]),
    *(Case(f"{name} of a number", _measured, {"num_labels": 1}) for name in _HEADS),
    Case("WhisperForConditionalGeneration", _heard),
    Case("Speech2TextForConditionalGeneration", _heard),
    Case("GPT2DoubleHeadsModel", _chosen),
    Case("EncoderDecoderModel", _translated, config=_composed("EncoderDecoderConfig", "BertConfig", "BertConfig")),
    Case("VisionEncoderDecoderModel", _seen, config=_composed("VisionEncoderDecoderConfig", "ViTConfig", "GPT2Config")),
    Case(
        "SpeechEncoderDecoderModel",
        _heard,
        config=_composed("SpeechEncoderDecoderConfig", "Wav2Vec2Config", "BertConfig"),
    ),
    *(Case(f"{name}Model", _contrasted) for name in ("CLIP", "Siglip", "AltCLIP")),
    *(Case(f"{name}ForObjectDetection", _boxed) for name in ("Yolos",)),
    Case("GLPNForDepthEstimation", _deep),
    *(Case(f"{name} with balance", lambda rows, config: as_trained("next token", texts(rows)),
           {"output_router_logits": True}) for name in ("MixtralForCausalLM", "OlmoeForCausalLM")),
)  # fmt: skip


def cases() -> Iterator[tuple[str, Callable[[], tuple[nn.Module, Any]]]]:
    """Every class with labels, by name, and how it is made."""
    own = {case.name for case in CASES}
    for subject in subjects():
        if subject.name not in own and not subject.task.startswith("features"):
            yield subject.name, lambda subject=subject: _made(subject)
    for case in CASES:
        yield case.name, case.make


def _made(subject: Subject) -> tuple[nn.Module, Any]:
    if subject.size() > MOST:
        raise LeftOut("not small by the usual names of sizes")
    model, (batch,) = subject.make((ROWS,))
    return model, as_trained(subject.task, batch)


def row_of(batch: Any, row: int) -> Any:
    return {key: value if value is True else value[row : row + 1] for key, value in batch.items()}


def alone(model: nn.Module, batch: Any) -> Tensor:
    """The model's own loss of each row, passed alone."""
    config = model.config
    kept, found = getattr(config, "problem_type", None), []
    for row in range(len(next(iter(batch.values())))):
        torch.manual_seed(0)  # hashes of Reformer's attention are drawn
        found.append(model(**row_of(batch, row)).loss.reshape(()))
        config.problem_type = kept
    return torch.stack(found)


def outcome(make: Callable[[], tuple[nn.Module, Any]]) -> dict[str, str]:
    """Whether `hf.loss` is the model's own for each row, refuses, or has nothing to be compared with.

    Raises:
        AssertionError: it is another.
    """
    with warnings.catch_warnings(), torch.random.fork_rng(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        try:
            model, batch = make()
            expected = alone(model, batch)
        except Exception as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())[:120]
            return {"outcome": "left out", "why": str(error) if isinstance(error, LeftOut) else why}
        if not bool(expected.isfinite().all()):
            return {"outcome": "left out", "why": "no finite loss of a row alone"}
        torch.manual_seed(0)
        try:
            found = dc.hf.loss(model, batch)
        except DecrescendoError as refusal:
            return {"outcome": "refused", "why": str(refusal)}
        close = torch.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE / 10)
        assert close, f"{found.tolist()} are not {expected.tolist()}"
        return {"outcome": "equal"}


def read() -> dict[str, dict[str, str]]:
    """The table: of each class its outcome."""
    return json.loads(TABLE.read_text(encoding="utf-8"))


def main(names: list[str]) -> None:
    """Pass what is asked for and write the table."""
    torch.set_num_threads(1)
    table = read() if TABLE.exists() and names else {}
    for name, make in cases():
        if not names or any(part in name for part in names):
            try:
                table[name] = outcome(make)
            except Exception as error:  # the fault that this looks for
                table[name] = {"outcome": "different", "why": f"{type(error).__name__}: {error}"[:300]}
            if table[name]["outcome"] != "equal":
                print(name, table[name], flush=True)
    TABLE.write_text(json.dumps(table, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    print(Counter(row["outcome"] for row in table.values()))


if __name__ == "__main__":
    main(sys.argv[1:])
