"""The Large Movie Review Dataset: 50,000 film reviews, good or bad."""

import hashlib
import io
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int

from decrescendo.base import strict_json
from decrescendo.errors import FileRefused
from decrescendo_papers.data.dataset import Dataset
from decrescendo_papers.data.fetch import RemoteFile, find_local, read
from decrescendo_papers.data.vocabulary import encode, english_words

LENGTH = 256
ROWS = 25_000
LARGEST = 2**30
PUBLIC_ROWS = ROWS // 2  # of the test half

ARCHIVE = RemoteFile(
    "imdb",
    "aclImdb_v1.tar.gz",
    "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
)
# The same reviews without the 50,000 unlabelled ones, a tenth of the size: taken where somebody has put them.
TRAIN_LINES = RemoteFile(
    "imdb", "train.jsonl.xz", None, "73ce258d1fcdad16b3bd57c49971a4cb9187ab3ab31c7851d8e353410ff11b67"
)
TEST_LINES = RemoteFile(
    "imdb", "test.jsonl.xz", None, "1317da8c824cc018bf8e40af247e066bbc28a9d5bfeaed8a064eb1b9a3e494ed"
)
MEMBER = re.compile(r"aclImdb/(train|test)/(pos|neg)/(\d+_\d+\.txt)")


class Review(NamedTuple):
    """One review: ``path`` is its original file, such as ``train/pos/0_9.txt``."""

    path: str
    text: str

    @property
    def positive(self) -> int:
        """1 for a good review, 0 for a bad one."""
        return int(self.path.split("/")[1] == "pos")


def imdb() -> Dataset:
    """Film reviews as (rows, 256) word codes 0 .. 10,001 (int32), class 1 for good ones: 25,000 train, 25,000 test.

    The original split. Codes are those of `vocabulary.english_words`, a public list: 0 is padding, at the end of
    a row, 1 any other word. Each row is the first 256 words; both numbers are constants, nothing is counted on
    the reviews. Rows are in the order of the SHA-256 of the original file name, classes mixed.

    Some reviews are in the set several times (123 texts in both halves), and a film has up to 30: "one example"
    hides a review, not a film or a reviewer.

    Read from ``imdb/train.jsonl.xz`` and ``imdb/test.jsonl.xz`` if both are in the folder named by
    ``DECRESCENDO_DATA``, otherwise from the original archive, 80 MB, downloaded once; see `data.fetch.read`.

    Raises:
        FileRefused: damaged files, or a wordfreq with another list of words.
        DataUnavailable: nothing local, and the download failed.
        MissingExtra: wordfreq (or pooch, for the download) is not installed.
    """
    words = english_words()
    train, test = reviews()
    return Dataset(
        name="imdb",
        train_inputs=torch.from_numpy(codes(train, words)),
        train_targets=torch.tensor([review.positive for review in train]),
        test_inputs=torch.from_numpy(codes(test, words)),
        test_targets=torch.tensor([review.positive for review in test]),
        classes=2,
    )


def reviews() -> tuple[list[Review], list[Review]]:
    """The train and the test reviews of `imdb` as they were written, in its order.

    Raises:
        FileRefused, DataUnavailable, MissingExtra: as `imdb` does.
    """
    lines = find_local(TRAIN_LINES), find_local(TEST_LINES)
    if lines[0] is not None and lines[1] is not None:
        train, test = from_lines(lines[0], "train"), from_lines(lines[1], "test")
    else:
        train, test = from_archive(read(ARCHIVE))
    for half, found in (("train", train), ("test", test)):
        if len(found) != ROWS:
            raise FileRefused(f"the {half} half of imdb must have {ROWS} reviews, got {len(found)}")
    return in_order(train), in_order(test)


def imdb_public() -> Dataset:
    """12,500 reviews to search settings or pre-train on: the first half of the official test reviews, declared public.

    Its test half are the other 12,500, those of `imdb_half`, which scores what was chosen here. Rows are in the order
    of `imdb`. The official train reviews, the private ones, are not kept (nor opened, where they are a file of their
    own).

    Raises:
        FileRefused, DataUnavailable, MissingExtra: as `imdb` does.
    """
    words = english_words()
    lines = find_local(TEST_LINES)
    test = from_archive(read(ARCHIVE))[1] if lines is None else from_lines(lines, "test")
    if len(test) != ROWS:
        raise FileRefused(f"the test half of imdb must have {ROWS} reviews, got {len(test)}")
    test = in_order(test)
    inputs = torch.from_numpy(codes(test, words))
    targets = torch.tensor([review.positive for review in test])
    return Dataset(
        name="imdb-public",
        train_inputs=inputs[:PUBLIC_ROWS],
        train_targets=targets[:PUBLIC_ROWS],
        test_inputs=inputs[PUBLIC_ROWS:],
        test_targets=targets[PUBLIC_ROWS:],
        classes=2,
    )


def imdb_half() -> Dataset:
    """`imdb` tested on the other 12,500 of its test reviews: those that are not in `imdb_public`.

    Raises:
        FileRefused, DataUnavailable, MissingExtra: as `imdb` does.
    """
    data = imdb()
    return replace(
        data,
        name="imdb-half",
        test_inputs=data.test_inputs[PUBLIC_ROWS:],
        test_targets=data.test_targets[PUBLIC_ROWS:],
    )


def from_lines(content: bytes, split: str) -> list[Review]:
    """The reviews in an xz-compressed file of JSON lines, each with ``id``, ``label``, ``rating`` and ``text``.

    Raises:
        FileRefused: not such a file.
    """
    try:
        with lzma.LZMAFile(io.BytesIO(content)) as packed:
            return [_review(strict_json.loads(line), split) for line in _bounded(packed.read).splitlines()]
    except (lzma.LZMAError, EOFError, KeyError, TypeError, ValueError) as error:
        raise FileRefused(f"the {split} reviews must be packed lines of JSON, got others ({error})") from None


def _bounded(read: Callable[[int], bytes | None]) -> bytes:
    """What is packed, if it is not more than there should be: a few kilobytes can unpack to gigabytes."""
    content = read(LARGEST + 1) or b""
    if len(content) > LARGEST:
        raise ValueError(f"more than {LARGEST} bytes")
    return content


def _review(fields: dict[str, int | str], split: str) -> Review:
    kind = "pos" if fields["label"] == 1 else "neg"
    return Review(f"{split}/{kind}/{fields['id']}_{fields['rating']}.txt", str(fields["text"]))


def from_archive(content: bytes) -> tuple[list[Review], list[Review]]:
    """The labelled train and test reviews in the original archive.

    Raises:
        FileRefused: not a whole archive of texts.
    """
    halves: dict[str, list[Review]] = {"train": [], "test": []}
    try:
        for half, review in _members(content):
            halves[half].append(review)
    except (tarfile.TarError, EOFError, OSError, TypeError, ValueError, zlib.error) as error:
        raise FileRefused(f"the reviews must be a whole archive of texts, got another ({error})") from None
    return halves["train"], halves["test"]


def _members(content: bytes) -> Iterator[tuple[str, Review]]:
    with tarfile.open(fileobj=io.BytesIO(content), mode="r|gz") as archive:  # in one pass, nothing is unpacked
        for member in archive:
            found = MEMBER.fullmatch(member.name)
            file = archive.extractfile(member) if found else None
            if found and file:
                half, kind, name = found.groups()
                yield half, Review(f"{half}/{kind}/{name}", _bounded(file.read).decode("utf-8"))


def in_order(reviews: Iterable[Review]) -> list[Review]:
    """By the SHA-256 of their paths."""
    return sorted(reviews, key=lambda review: hashlib.sha256(review.path.encode()).digest())


def codes(reviews: list[Review], words: dict[str, int]) -> Int[np.ndarray, "rows length"]:
    """One row a review, filled up with zeros."""
    rows = np.zeros((len(reviews), LENGTH), dtype=np.int32)
    for row, review in zip(rows, reviews, strict=True):
        found = encode(review.text, words, LENGTH)
        row[: len(found)] = found
    return rows
