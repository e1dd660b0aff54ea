"""Facts: IDX files are read exactly or refused; the data sets have their declared shape and constants."""

import gzip
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from decrescendo.errors import FileRefused, InvalidValue
from decrescendo_papers.data import Dataset, digits, fashion_mnist, images, mnist
from decrescendo_papers.data.fetch import FOLDER_VARIABLE, RemoteFile
from decrescendo_papers.data.idx import parse_idx

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"
REAL = os.environ.get(FOLDER_VARIABLE) or (str(BESIDE) if BESIDE.is_dir() else None)


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return gzip.compress(header + array.tobytes(), mtime=0)


@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, max_side=5)))
def test_what_was_written_is_read(array: np.ndarray) -> None:
    assert np.array_equal(parse_idx(idx(array)), array)


@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=3, max_side=4)), st.data())
def test_every_cut_is_refused(array: np.ndarray, data: st.DataObject) -> None:
    raw = gzip.decompress(idx(array))
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    with pytest.raises(FileRefused):
        parse_idx(gzip.compress(cut))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not gzip at all",
        idx(np.zeros(9, np.uint8))[:-4],  # a gzip stream without its end
        gzip.compress(bytes([0, 0, 13, 1]) + (1).to_bytes(4, "big") + bytes(4), mtime=0),  # floats
        gzip.compress(bytes([0, 0, 8, 0]), mtime=0),  # no dimension
        gzip.compress(gzip.decompress(idx(np.zeros(3, np.uint8))) + b"\0", mtime=0),  # one byte too many
    ],
)
def test_foreign_files_are_refused(content: bytes) -> None:
    with pytest.raises(FileRefused, match="toy must"):
        parse_idx(content, "toy")


def write_family(folder: Path, images_of: dict[str, np.ndarray]) -> tuple[RemoteFile, ...]:
    folder.mkdir(parents=True)
    files = []
    for name, array in images_of.items():
        (folder / name).write_bytes(idx(array))
        sha256 = hashlib.sha256(idx(array)).hexdigest()
        files.append(RemoteFile(folder.name, name, "http://127.0.0.1:9/", sha256))
    return tuple(files)


def tiny_family() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(0, 256, (7, 28, 28)),
        np.arange(7),
        rng.integers(0, 256, (3, 28, 28)),
        np.arange(3),
    ]
    return {name: array.astype(np.uint8) for name, array in zip(images.NAMES, arrays, strict=True)}


@pytest.mark.parametrize(
    ("load", "variable", "mean", "std"),
    [(mnist, "MNIST_FILES", 0.1307, 0.3081), (fashion_mnist, "FASHION_FILES", 0.2860, 0.3530)],
)
def test_pixels_are_normalised_by_the_declared_constants(
    load, variable: str, mean: float, std: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = tiny_family()
    monkeypatch.setattr(images, variable, write_family(tmp_path / "set", family))
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    data = load()
    expected = (family[images.NAMES[0]] / 255.0 - mean) / std
    assert data.train_inputs.shape == (7, 1, 28, 28)
    assert np.allclose(data.train_inputs[:, 0].numpy(), expected, atol=1e-6)
    assert data.train_targets.tolist() == list(range(7))
    assert data.test_targets.tolist() == [0, 1, 2]
    assert (data.mean, data.std, data.scale) == (mean, std, 255.0)


def test_files_in_each_others_place_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_family(tmp_path / "set", tiny_family())
    monkeypatch.setattr(images, "MNIST_FILES", (files[1], files[0], files[2], files[3]))
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(FileRefused, match="must have 3 dimensions"):
        mnist()


@pytest.mark.skipif(REAL is None, reason="the real files are not here")
@pytest.mark.parametrize("load", [mnist, fashion_mnist])
def test_the_real_files(load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(REAL))
    data = load()
    assert data.train_inputs.shape == (60_000, 1, 28, 28)
    assert data.test_inputs.shape == (10_000, 1, 28, 28)
    # The declared constants are the known mean and deviation to four digits.
    assert abs(float(data.train_inputs.mean())) < 2e-3
    assert abs(float(data.train_inputs.std()) - 1) < 2e-3
    if load is mnist:
        counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
        assert torch.bincount(data.train_targets).tolist() == counts


def test_digits_are_split_by_number_and_every_class_is_in_both_halves() -> None:
    sklearn_datasets = pytest.importorskip("sklearn.datasets")
    bunch = sklearn_datasets.load_digits()
    data = digits()
    assert data.test_targets.tolist() == bunch.target[4::5].tolist()
    assert torch.equal(data.test_inputs[:, 0], torch.from_numpy(bunch.images[4::5]).float() / 16)
    assert len(data) + data.test_targets.numel() == 1797
    assert int(torch.bincount(data.train_targets).min()) > 100
    assert int(torch.bincount(data.test_targets).min()) > 20
    assert float(data.train_inputs.min()) == 0
    assert float(data.train_inputs.max()) == 1


def test_a_data_set_says_what_is_wrong_with_it() -> None:
    x, y = torch.zeros(3, 2), torch.tensor([0, 1, 1])
    with pytest.raises(InvalidValue, match="train_inputs and train_targets"):
        Dataset("toy", x, y[:2], x, y, classes=2)
    with pytest.raises(InvalidValue, match=r"test_targets\[1\]=1"):
        Dataset("toy", x, torch.zeros(3, dtype=torch.long), x, y, classes=1)
