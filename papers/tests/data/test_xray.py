"""Facts: pictures become the published pixels or are refused; the halves are declared."""

import hashlib
import io
import os
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from decrescendo.errors import FileRefused, MissingExtra
from decrescendo_papers.data import chest_xray, xray
from decrescendo_papers.data.fetch import FOLDER_VARIABLE, RemoteFile
from decrescendo_papers.data.splits import published_order

Image = pytest.importorskip("PIL.Image")
BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"
REAL = os.environ.get(FOLDER_VARIABLE) or (str(BESIDE) if BESIDE.is_dir() else None)
# Two train and two test pictures, by their names.
NAMES = {
    "IM-0111-0001.jpeg": "NORMAL",
    "NORMAL2-IM-0383-0001.jpeg": "NORMAL",
    "person1608_virus_2786.jpeg": "PNEUMONIA",
    "person1609_virus_2790.jpeg": "PNEUMONIA",
}


def jpeg(number: int) -> bytes:
    grey = np.random.default_rng(number).integers(0, 256, (14, 14), dtype=np.uint8).repeat(16, 0).repeat(16, 1)
    target = io.BytesIO()
    Image.fromarray(np.stack([grey] * 3, axis=2)).save(target, "JPEG", quality=95)
    return target.getvalue()


def as_archive(folders: tuple[str, ...] = ("test", "val", "train")) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        files = {
            f"repository-1/data/{folders[i % len(folders)]}/{kind}/{name}": jpeg(i)
            for i, (name, kind) in enumerate(NAMES.items())
        }
        files |= {"repository-1/README.md": b"x"}
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return target.getvalue()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small archive, declared by the digest of its contents."""
    (tmp_path / "images-224.tar.gz").write_bytes(as_archive())
    expected = expected_pixels()
    declared = RemoteFile(
        "chest-xray", "images-224.tar.gz", None, xray.contents_digest(as_archive()), xray.contents_digest
    )
    monkeypatch.setattr(xray, "ARCHIVE", declared)
    monkeypatch.setattr(xray, "TRAIN_ROWS", 2)
    monkeypatch.setattr(xray, "TEST_ROWS", 2)
    monkeypatch.setattr(xray, "RANDOM_TRAIN_ROWS", 3)
    monkeypatch.setattr(xray, "PIXELS_SHA256", hashlib.sha256(expected.tobytes()).hexdigest())
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    return tmp_path


def rows_in_order() -> list[str]:
    def key(name: str) -> str:
        return hashlib.sha256(name.encode()).hexdigest()

    train = sorted(("NORMAL2-IM-0383-0001.jpeg", "person1609_virus_2790.jpeg"), key=key)
    return train + sorted(("IM-0111-0001.jpeg", "person1608_virus_2786.jpeg"), key=key)


def expected_pixels() -> np.ndarray:
    """One channel of each, by area means."""
    made = []
    for name in rows_in_order():
        grey = Image.open(io.BytesIO(jpeg(list(NAMES).index(name)))).getchannel(0)
        made.append(np.asarray(grey.resize((64, 64), Image.Resampling.BOX)))
    return np.stack(made)


def test_pictures_become_rows_in_the_published_halves(folder: Path) -> None:
    data = chest_xray()
    expected = (expected_pixels().astype(np.float64) / 255 - 0.5) / 0.25
    found = torch.cat([data.train_inputs, data.test_inputs])
    assert found.shape == (4, 1, 64, 64)
    assert np.allclose(found[:, 0].numpy(), expected, atol=1e-6)
    classes = [int(NAMES[name] == "PNEUMONIA") for name in rows_in_order()]
    assert [*data.train_targets.tolist(), *data.test_targets.tolist()] == classes


def test_the_random_split_is_the_published_permutation(folder: Path) -> None:
    official, random = chest_xray(), chest_xray("random")
    every = torch.cat([official.train_inputs, official.test_inputs])
    order = torch.from_numpy(published_order("chest-xray", 4))
    assert torch.equal(torch.cat([random.train_inputs, random.test_inputs]), every[order])
    assert len(random) == 3


def test_the_contents_are_known_wherever_the_folders_are() -> None:
    assert xray.contents_digest(as_archive()) == xray.contents_digest(as_archive(("train",)))
    with pytest.raises(ValueError, match="must be a whole archive"):
        xray.contents_digest(as_archive()[:-200])


def test_the_zip_and_the_archive_hold_the_same_pictures_in_the_same_order(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_archive = xray.originals()
    assert [picture.name for half in from_archive for picture in half] == rows_in_order()
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.mkdir("train/NORMAL")
        for number, (name, kind) in enumerate(NAMES.items()):
            archive.writestr(f"train/{kind}/{name}", jpeg(number))
    sha256 = hashlib.sha256(target.getvalue()).hexdigest()
    monkeypatch.setattr(xray, "PICTURES", RemoteFile("chest-xray", "pictures.zip", None, sha256))
    (folder / "pictures.zip").write_bytes(target.getvalue())
    (folder / "images-224.tar.gz").unlink()
    assert xray.originals() == from_archive


def test_other_pixels_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xray, "PIXELS_SHA256", "0" * 64)
    with pytest.raises(FileRefused, match=r"pillow==13\.0\.0"):
        chest_xray()


def test_missing_pictures_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xray, "TRAIN_ROWS", 3)
    with pytest.raises(FileRefused, match="3 train and 2 test X-rays, got 2 and 2"):
        chest_xray()


def test_a_cut_archive_is_refused(folder: Path) -> None:
    (folder / "images-224.tar.gz").write_bytes(as_archive()[:-200])
    with pytest.raises(FileRefused, match=r"images-224\.tar\.gz must have SHA-256"):
        chest_xray()


def test_unknown_names_are_refused() -> None:
    with pytest.raises(FileRefused, match=r"got cat\.jpeg"):
        xray.is_test("cat.jpeg")


def test_without_pillow_the_command_that_installs_it_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtra, match=r"pillow.*pip install"):
        chest_xray()


@pytest.mark.skipif(REAL is None, reason="the real files are not here")
def test_the_real_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(REAL))
    data = chest_xray()
    assert data.train_inputs.shape == (5_232, 1, 64, 64)
    assert torch.bincount(data.train_targets).tolist() == [1_349, 3_883]
    assert torch.bincount(data.test_targets).tolist() == [234, 390]
    random = chest_xray("random")
    assert (len(random), len(random.test_targets)) == (4_978, 878)
    assert float(random.train_inputs.min()) >= -2
    assert float(random.train_inputs.max()) <= 2


@pytest.mark.skipif(REAL is None, reason="the real files are not here")
def test_the_rule_for_names_gives_the_published_halves() -> None:
    with np.load(Path(str(REAL)) / "chest-xray" / "chest_xray_64.npz") as arrays:
        for half in ("train", "test"):
            names = [name.decode() for name in arrays[f"name_{half}"]]
            assert {xray.is_test(name) for name in names} == {half == "test"}
            assert names == sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
