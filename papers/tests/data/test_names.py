"""Facts: every line becomes one row of fixed length; the split is public; padding changes no gradient."""

import hashlib
import os
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from often import some
from torch import Tensor, nn

from decrescendo.clipping import Engine, Reference
from decrescendo.errors import FileRefused, InvalidValue
from decrescendo_papers.data import names
from decrescendo_papers.data import names as load
from decrescendo_papers.data.fetch import FOLDER_VARIABLE, RemoteFile
from decrescendo_papers.data.splits import published_order
from decrescendo_papers.models import LastStateClassifier

module = sys.modules["decrescendo_papers.data.names"]
BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"
REAL = os.environ.get(FOLDER_VARIABLE) or (str(BESIDE) if BESIDE.is_dir() else None)


@given(st.text())
def test_every_text_becomes_codes_of_the_fixed_length(text: str) -> None:
    codes = module.encode(text)
    kept = [c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn"]
    assert len(codes) == module.LENGTH
    assert all((code != 0) == (place < len(kept)) for place, code in enumerate(codes))
    for code, character in zip(codes, kept, strict=False):
        assert code == (module.LETTERS.index(character) + 1 if character in module.LETTERS else module.OTHER)


def test_accents_are_dropped_and_letters_stay_apart() -> None:
    assert module.encode("Ñ") == module.encode("N")
    assert module.encode("ß")[0] == module.OTHER
    assert len({tuple(module.encode(letter)) for letter in module.LETTERS}) == 57


def test_the_order_is_a_permutation_that_depends_on_name_and_count_alone() -> None:
    assert sorted(published_order("a", 50).tolist()) == list(range(50))
    assert published_order("a", 50).tolist() != published_order("b", 50).tolist()
    # The same, spelled out: a change of this list would change every published split.
    keys = {hashlib.sha256(b"a %d" % i).hexdigest(): i for i in range(50)}
    assert published_order("a", 50).tolist() == [keys[key] for key in sorted(keys)]
    assert published_order("a", 0).shape == (0,)
    with pytest.raises(InvalidValue, match="count"):
        published_order("a", -1)


def write(folder: Path, texts: dict[str, str]) -> tuple[RemoteFile, ...]:
    folder.mkdir(parents=True)
    files = []
    for name, text in texts.items():
        (folder / name).write_bytes(text.encode())
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        files.append(RemoteFile(folder.name, name, "http://127.0.0.1:9/", sha256))
    return tuple(files)


def test_lines_are_split_at_line_feeds_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"A.txt": "Ab\nC\u2028d\n", "B.txt": " e\n"}
    monkeypatch.setattr(module, "FILES", write(tmp_path / "names", texts))
    monkeypatch.setattr(module, "ROWS", 3)
    monkeypatch.setattr(module, "TRAIN_ROWS", 2)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    data = load()
    found = [*data.train_inputs.tolist(), *data.test_inputs.tolist()]
    expected = [module.encode(name) for name in ("Ab", "C\u2028d", " e")]
    order = published_order("names", 3).tolist()
    assert found == [expected[i] for i in order]
    assert [*data.train_targets.tolist(), *data.test_targets.tolist()] == [[0, 0, 1][i] for i in order]


def test_files_with_another_number_of_lines_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILES", write(tmp_path / "names", {"A.txt": "Ab\nCd\n"}))
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(FileRefused, match=r"must have 20074 lines, got 2"):
        load()


@pytest.mark.skipif(REAL is None, reason="the real files are not here")
def test_the_real_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(REAL))
    data = names()
    assert data.train_inputs.shape == (16_059, 20)
    assert data.test_inputs.shape == (4_015, 20)
    every = torch.bincount(data.train_targets) + torch.bincount(data.test_targets)
    russian, vietnamese = module.LANGUAGES.index("Russian"), module.LANGUAGES.index("Vietnamese")
    assert (int(every[russian]), int(every[vietnamese])) == (9_408, 73)
    assert int(torch.bincount(data.test_targets).min()) >= 10
    assert int(data.train_inputs.max()) == module.OTHER
    assert int((data.train_inputs != 0).sum(1).min()) >= 1
    # What is trained on is pinned: rows and their order.
    content = data.train_inputs.numpy().astype(np.uint8).tobytes()
    assert hashlib.sha256(content).hexdigest() == PINNED


PINNED = "88950c19a43e9f59806957f1f4bd53aac88de3abe536743c6ea51cbdc16ae626"


class Padded(nn.Module):
    """The same network without packing: through all columns, then the state at the last true letter."""

    def __init__(self, inner: LastStateClassifier) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor) -> Tensor:
        outputs, _ = self.inner.lstm(self.inner.embedding(inputs))
        last = (inputs != 0).sum(dim=1) - 1
        return self.inner.linear(outputs[torch.arange(len(inputs)), last])


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


@pytest.mark.parametrize("lengths", some([[3, 1, 6, 6, 2], [6], [1, 1], [2, 2, 2], [6, 5, 4, 3, 2, 1]], 2))
def test_packing_leaves_every_gradient_as_it_is_at_full_length(lengths: list[int]) -> None:
    torch.manual_seed(0)
    model = LastStateClassifier(7, embedding=3, hidden=4, classes=3).double()
    inputs = torch.randint(1, 7, (len(lengths), 6))
    inputs *= torch.arange(6) < torch.tensor(lengths).unsqueeze(1)
    batch = (inputs, torch.randint(0, 3, (len(lengths),)))
    reference = Reference(Padded(model), loss)
    engine = Engine(model, loss)
    norms = reference.per_example_norms(batch)
    torch.testing.assert_close(engine.per_example_norms(batch), norms, rtol=1e-8, atol=0.0)
    limit = float(norms.median())
    expected = reference.clipped_sum(batch, limit).gradients
    for name, gradient in engine.clipped_sum(batch, limit).gradients.items():
        torch.testing.assert_close(gradient, expected[f"inner.{name}"], rtol=1e-5, atol=1e-8)


def test_a_row_of_padding_alone_is_read_as_one_letter() -> None:
    model = LastStateClassifier(7, embedding=3, hidden=4, classes=3)
    rows = torch.tensor([[1, 2, 3], [0, 0, 0]])
    scores = model(rows)
    torch.testing.assert_close(scores[1:], model(torch.tensor([[0]])))
    torch.testing.assert_close(scores[:1], model(rows[:1]))
