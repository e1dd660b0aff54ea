"""Facts: both forms of the reviews give the same rows; the vocabulary is public and pinned; padding has no gradient."""

import hashlib
import io
import json
import lzma
import os
import re
import sys
import tarfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from decrescendo.clipping import Engine, Reference
from decrescendo.errors import DataUnavailable, FileRefused, InvalidValue, MissingExtra
from decrescendo_papers.data import Dataset, imdb, imdb_half, imdb_public, vocabulary
from decrescendo_papers.data.fetch import FOLDER_VARIABLE, RemoteFile
from decrescendo_papers.data.vocabulary import FIRST_WORD, TOKEN, encode, english_words, tokens
from decrescendo_papers.models import MeanEmbedding

module = sys.modules["decrescendo_papers.data.imdb"]
BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"
REAL = os.environ.get(FOLDER_VARIABLE) or (str(BESIDE) if BESIDE.is_dir() else None)
TEXTS = ("A film.<br /><br />GOOD", "it’s bad, it's bad", "élan ☃ 42", "unheardofword the")


@given(st.text())
def test_tokens_are_lower_case_words_of_the_text(text: str) -> None:
    found = tokens(text)
    assert all(TOKEN.fullmatch(token) and token == token.lower() for token in found)
    assert not re.search(r"[\d_\s]", "".join(found))
    assert tokens(" ".join(found)) == found


@given(st.lists(st.sampled_from(["the", "and", "zyzzyva", "42"]), max_size=12), st.integers(1, 6))
def test_codes_are_those_of_the_first_tokens(words: list[str], length: int) -> None:
    kept = [word for word in words if word != "42"][:length]
    expected = [{"the": 2, "and": 4}.get(word, 1) for word in kept]
    assert encode(" ".join(words), {"the": 2, "and": 4}, length) == expected


def test_the_vocabulary_has_ten_thousand_words_that_texts_can_have() -> None:
    words = english_words()
    assert sorted(words.values()) == list(range(FIRST_WORD, FIRST_WORD + 10_000))
    assert all(tokens(word) == [word] for word in words)


def test_another_list_of_words_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wordfreq.iter_wordlist", lambda language, wordlist: iter(["the", "cat"]))
    with pytest.raises(FileRefused, match=r"pip install wordfreq==3\.1\.1"):
        english_words()


def test_without_wordfreq_the_command_that_installs_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wordfreq", None)
    with pytest.raises(MissingExtra, match=r"wordfreq.*pip install"):
        imdb()


def test_a_length_must_be_at_least_one() -> None:
    with pytest.raises(InvalidValue, match="length"):
        encode("a", {}, 0)


def reviews(split: str) -> list[dict[str, object]]:
    return [
        {"id": i, "label": i % 2, "rating": 8 if i % 2 else 3, "movie": "tt1", "text": f"{split} {text}"}
        for i, text in enumerate(TEXTS)
    ]


def as_lines(split: str) -> bytes:
    lines = (json.dumps(review, ensure_ascii=False) + "\n" for review in reviews(split))
    return lzma.compress("".join(lines).encode())


def as_archive() -> bytes:
    """As the original: unlabelled reviews and lists beside the labelled ones, folders as members of their own."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        files = {
            "aclImdb/README": "x",
            "aclImdb/train/unsup/0_0.txt": "no label",
            "aclImdb/train/urls_pos.txt": "u",
        }
        for split in ("test", "train"):
            for review in reversed(reviews(split)):
                kind = "pos" if review["label"] else "neg"
                files[f"aclImdb/{split}/{kind}/{review['id']}_{review['rating']}.txt"] = str(review["text"])
        for folder in ("aclImdb", "aclImdb/train/pos"):
            info = tarfile.TarInfo(folder)
            info.type = tarfile.DIRTYPE
            archive.addfile(info)
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return target.getvalue()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small files in both forms, declared by their hashes."""
    (tmp_path / "imdb").mkdir()
    contents = {
        "ARCHIVE": as_archive(),
        "TRAIN_LINES": as_lines("train"),
        "TEST_LINES": as_lines("test"),
    }
    for variable, content in contents.items():
        declared: RemoteFile = getattr(module, variable)
        (tmp_path / "imdb" / declared.name).write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        url = None if declared.url is None else "http://127.0.0.1:9/"
        monkeypatch.setattr(module, variable, RemoteFile("imdb", declared.name, url, sha256))
    monkeypatch.setattr(module, "ROWS", 4)
    monkeypatch.setattr(module, "PUBLIC_ROWS", 2)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    return tmp_path / "imdb"


def same(a: Dataset, b: Dataset) -> bool:
    halves = zip((*a.train, *a.test), (*b.train, *b.test), strict=True)
    return all(torch.equal(one, other) for one, other in halves)


def test_both_forms_give_the_same_rows_in_the_same_order(folder: Path) -> None:
    from_lines = imdb()
    (folder / "train.jsonl.xz").unlink()  # one alone is not enough
    from_archive = imdb()
    assert same(from_lines, from_archive)
    # By hand: the order, the codes and the classes.
    paths = [f"train/{'pos' if i % 2 else 'neg'}/{i}_{8 if i % 2 else 3}.txt" for i in range(4)]
    order = sorted(range(4), key=lambda i: hashlib.sha256(paths[i].encode()).hexdigest())
    assert from_lines.train_targets.tolist() == [i % 2 for i in order]
    words = english_words()
    row = from_lines.train_inputs[order.index(1)].tolist()
    assert row[:6] == [words.get(word, 1) for word in ("train", "it's", "bad", "it's", "bad")] + [0]
    assert from_lines.train_inputs.shape == (4, 256)


def test_the_raw_reviews_are_those_of_the_rows(folder: Path) -> None:
    data, words = imdb(), english_words()
    for found, (inputs, targets) in zip(module.reviews(), (data.train, data.test), strict=True):
        assert torch.equal(torch.from_numpy(module.codes(found, words)), inputs)
        assert [review.positive for review in found] == targets.tolist()


def test_the_public_half_and_the_scored_half_are_the_test_reviews_cut_in_two(folder: Path) -> None:
    whole, public, half = imdb(), imdb_public(), imdb_half()
    assert torch.equal(torch.cat([public.train_inputs, public.test_inputs]), whole.test_inputs)
    assert torch.equal(torch.cat([public.train_targets, public.test_targets]), whole.test_targets)
    assert len(public) == 2
    for found, expected in zip((*half.train, *half.test), (*whole.train, *public.test), strict=True):
        assert torch.equal(found, expected)
    (folder / "test.jsonl.xz").unlink()
    assert same(imdb_public(), public)  # from the archive


def test_the_public_half_does_not_open_the_private_file(folder: Path) -> None:
    (folder / "train.jsonl.xz").write_bytes(b"damaged: refused if it were opened")
    (folder / "aclImdb_v1.tar.gz").unlink()
    assert len(imdb_public()) == 2
    with pytest.raises(FileRefused):
        imdb()


def test_a_wrong_number_of_reviews_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", 5)
    with pytest.raises(FileRefused, match="train half of imdb must have 5 reviews, got 4"):
        imdb()
    with pytest.raises(FileRefused, match="test half of imdb must have 5 reviews, got 4"):
        imdb_public()


def test_damaged_lines_are_refused_though_the_archive_is_there(folder: Path) -> None:
    content = (folder / "test.jsonl.xz").read_bytes()
    (folder / "test.jsonl.xz").write_bytes(content[:-1])
    with pytest.raises(FileRefused, match=r"test\.jsonl\.xz must have SHA-256"):
        imdb()


def test_nothing_local_and_no_network_says_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in folder.iterdir():
        path.unlink()
    monkeypatch.setattr("pooch.os_cache", lambda project: folder / "cache")
    with pytest.raises(DataUnavailable, match=r"aclImdb_v1\.tar\.gz.*DECRESCENDO_DATA"):
        imdb()


@pytest.mark.slow
@pytest.mark.skipif(REAL is None, reason="the real files are not here")
def test_the_real_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(REAL))
    data = imdb()
    for inputs, targets, digest in ((*data.train, TRAIN_DIGEST), (*data.test, TEST_DIGEST)):
        assert inputs.shape == (25_000, 256)
        assert torch.bincount(targets).tolist() == [12_500, 12_500]
        assert 0 <= int(inputs.min()) <= int(inputs.max()) <= 10_001
        assert int((inputs != 0).sum(1).min()) >= 1
        # What is trained on is pinned: rows and their order.
        assert hashlib.sha256(inputs.numpy().astype("<i4").tobytes()).hexdigest() == digest


TRAIN_DIGEST = "8da42721083b2332060107fc31646c8532dae7a6f1c946a55ac8ecdc0ea5bab1"
TEST_DIGEST = "53b75aff3b368b2122fadc6261c526e2fb0050788e7a653dd7180e980bc00197"


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def test_clipped_sums_are_those_of_the_slow_loop_and_padding_has_no_gradient() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(MeanEmbedding(9, 3), nn.Linear(3, 2)).double()
    inputs = torch.randint(1, 9, (5, 7), dtype=torch.int32)
    inputs *= torch.arange(7) < torch.tensor([7, 1, 3, 0, 5]).unsqueeze(1)
    batch = (inputs, torch.tensor([0, 1, 1, 0, 1]))
    reference = Reference(model, loss)
    limit = float(reference.per_example_norms(batch).median())
    expected = reference.clipped_sum(batch, limit).gradients
    found = Engine(model, loss).clipped_sum(batch, limit).gradients
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-8)
    assert not bool(found["0.embedding.weight"][vocabulary.PADDING].any())


def test_padding_does_not_change_a_score() -> None:
    model = MeanEmbedding(9, 3)
    short = torch.tensor([[3, 4]])
    long = torch.tensor([[3, 4, 0, 0, 0]])
    torch.testing.assert_close(model(short), model(long))
    torch.testing.assert_close(model(short)[0], model.embedding.weight[[3, 4]].mean(0))
