"""Surnames and their languages: the data of the PyTorch tutorial on character-level classification."""

import string
import unicodedata

import numpy as np
import torch
from jaxtyping import Int

from decrescendo.errors import FileRefused
from decrescendo_papers.data.dataset import Dataset
from decrescendo_papers.data.fetch import RemoteFile, read
from decrescendo_papers.data.splits import published_order

LENGTH = 20
PADDING = 0
LETTERS = string.ascii_letters + " .,;'"
OTHER = len(LETTERS) + 1
CODES = OTHER + 1
ROWS, TRAIN_ROWS = 20_074, 16_059

# One commit, so that the addresses always lead to the same bytes.
NAMES_URL = (
    "https://raw.githubusercontent.com/spro/practical-pytorch/ff2b4c46224c8f887910da343211a2e468eef9ac/data/names/"
)
HASHES = {
    "Arabic": "6f424a8dbe51cbbbabab7a57d38b617210125e4e3991f3c657cb79b8f104bafc",
    "Chinese": "49263ef55a8cb1740e841d65cad8214b2f9b5b869bc534c811746422496fa91e",
    "Czech": "145bbbd6d0816578f03388e92c264d39ef1c60df920b081d371fa5c5cc055a8e",
    "Dutch": "924f32b635170eae561f84538632138fc07d4c8bbd70ba3fb980de1ecc4d2af3",
    "English": "9cca037066d3d5989e24bc01801416162de506b5e28e15b7c092a47905d29bf2",
    "French": "81e65b36c60ed5b89a17422f6edcadbb89546f38ad69e960e64e7ba682012a95",
    "German": "7449cd590b97a733e18d613a4155decd77ec35dc5f8aadd7a82204dce4f051db",
    "Greek": "3555b5186de7f401e6d991b088e9e644ca3099116477818c25ab5793801389e6",
    "Irish": "cf8c7013256252a88d2503127b87282a11f21b2ff6db1bded68834c19a1ec058",
    "Italian": "f88414c27d0606a11a678b4859277828c2565d6cc4d9ee932deef6e94f3b35e4",
    "Japanese": "e0e717e114fec3e7eade4d9dabe0067c475f43147e36a22b47902ee76ad9e67f",
    "Korean": "cd54221ccb362a6cba4c78828838cf3268a0e59744767a37cf6ec4b74036b136",
    "Polish": "45bab898af2f60ed3a728bbf6980e28821011a7caa53227553b5785903a40826",
    "Portuguese": "50a8735f41f4f73757c8ce5b16cb0275cd86b2b214bcbc8c9805f508cb131c53",
    "Russian": "43b3e64ce351f77f1ac9e0cdf7566012d127f4371875fd25208845b5c9d6f7c3",
    "Scottish": "78d0252711d87d948ea86fe34826c51d2d794a8e52d15b5d6f7b6244d45d62dd",
    "Spanish": "1bcb462ed3316756a85781d68232bddae04498fdddd5d9219c53fd1fbdeba7a7",
    "Vietnamese": "f3f9e4164ab47601178a6e45b216464a64122f49d05541f24bf18a757253281d",
}
LANGUAGES = tuple(HASHES)
FILES = tuple(
    RemoteFile("names", f"{language}.txt", f"{NAMES_URL}{language}.txt", sha256) for language, sha256 in HASHES.items()
)


def encode(name: str) -> list[int]:
    """``name`` as `LENGTH` letter codes, cut or filled up with `PADDING`.

    Letters are reduced to ASCII as the tutorial does: taken apart (Unicode NFD), combining marks dropped. Then
    a-z, A-Z, blank and ``.,;'`` have the codes 1 .. 57, anything else (a digit, an "ß") has 58.

    >>> encode("Nuñez")[:6]
    [40, 21, 14, 5, 26, 0]
    >>> encode("Urbanek1")[7], len(encode("Urbanek1"))
    (58, 20)
    """
    parts = [c for c in unicodedata.normalize("NFD", name) if unicodedata.category(c) != "Mn"]
    codes = [LETTERS.find(c) + 1 or OTHER for c in parts[:LENGTH]]
    return codes + [PADDING] * (LENGTH - len(codes))


def parse(content: bytes, name: str = "file") -> list[list[int]]:
    """The codes of the names in a file, one a line.

    Raises:
        FileRefused: not text in UTF-8.

    >>> [row[:3] for row in parse(b"Abe\\nLi\\n")]
    [[27, 2, 5], [38, 9, 0]]
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise FileRefused(f"{name} must be text in UTF-8, got other bytes") from None
    # Only line feeds end a line: str.splitlines would also cut at rarer characters.
    return [encode(line) for line in text.removesuffix("\n").split("\n")]


def names() -> Dataset:
    """20,074 surnames of 18 languages: 16,059 train and 4,015 test, (rows, 20) letter codes 0 .. 58 (int64).

    Code 0 is padding, at the end of a row; 1 .. 58 are letters, see `encode`. The length is a public constant,
    not that of the longest name at hand. Classes are the languages in alphabetical order, very unequal: always
    answering "Russian" is right in 46.9 % of the cases.

    The set has no split of its own. Ours puts the files behind each other in alphabetical order, permutes the
    lines by `splits.published_order` with the name "names", and takes the first 16,059 (80 %) for training.
    Some names are in the set several times, and so in both halves, as with every random split of it.
    About 0.2 MB in 18 files, downloaded once; see `data.fetch.read` for where it is looked for.

    Raises:
        FileRefused, DataUnavailable, MissingExtra: as `data.fetch.read` does.
    """
    codes: list[list[int]] = []
    classes: list[int] = []
    for language, file in enumerate(FILES):
        rows = parse(read(file), file.name)
        codes += rows
        classes += [language] * len(rows)
    if len(codes) != ROWS:
        raise FileRefused(f"the {len(FILES)} files of names must have {ROWS} lines, got {len(codes)}")
    order = torch.from_numpy(published_order("names", ROWS))
    inputs = _tensor(np.array(codes, dtype=np.int64))[order]
    targets = _tensor(np.array(classes, dtype=np.int64))[order]
    return Dataset(
        name="names",
        train_inputs=inputs[:TRAIN_ROWS],
        train_targets=targets[:TRAIN_ROWS],
        test_inputs=inputs[TRAIN_ROWS:],
        test_targets=targets[TRAIN_ROWS:],
        classes=len(LANGUAGES),
    )


def _tensor(values: Int[np.ndarray, "..."]) -> torch.Tensor:
    return torch.from_numpy(values)
