"""Chest X-rays of children: healthy, or with pneumonia."""

import hashlib
import io
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8

from decrescendo.base import require
from decrescendo.errors import FileRefused, InvalidValue
from decrescendo_papers.data.dataset import Dataset
from decrescendo_papers.data.fetch import RemoteFile, find_local, read
from decrescendo_papers.data.splits import published_order

SIZE = 64
TRAIN_ROWS, TEST_ROWS = 5_232, 624
RANDOM_TRAIN_ROWS = 4_978
MEAN, STD = 0.5, 0.25
NAMES = ("x_train", "y_train", "x_test", "y_test")
LARGEST_SIDE, LARGEST_PICTURE = 8_192, 2**26
# Of the images of both official halves behind each other, as bytes.
PIXELS_SHA256 = "d9ced50d731e3fcca48eab375aac0efe703de04e4d714edb7ec74e487fcce1ed"

Split = Literal["official", "random"]
FOLDERS = {"NORMAL": 0, "PNEUMONIA": 1}
MEMBER = re.compile(r".*/(NORMAL|PNEUMONIA)/([^/]+\.jpeg)")


class Picture(NamedTuple):
    """One image file: its name, its folder's class, its content."""

    name: str
    pneumonia: int
    content: bytes


class Half(NamedTuple):
    """Images and classes of one half, rows in the order of the SHA-256 of the file name."""

    pixels: UInt8[np.ndarray, "n height width"]
    labels: UInt8[np.ndarray, " n"]


def chest_xray(split: Split = "official") -> Dataset:
    """5,856 chest X-rays of children, 1x64x64 grey, class 0 healthy, 1 pneumonia.

    Normalised by the declared constants 0.5 and 0.25: round numbers, not measured on these images.

    Args:
        split: ``"official"``: the publishers', 5,232 train and 624 test images, of different children as far as
            the file names tell, and with another share of classes (always answering "pneumonia" is right in
            62.5 % of the test half). ``"random"``: 4,978 (85 %) and 878 of all images, by
            `splits.published_order` with the name "chest-xray" over the official train and test rows. One child
            then has images in both halves: scores on this split say less about children not seen before.

    A child has up to several dozen images: "one example" hides an image, not a child.

    Read from ``chest-xray/chest_xray_64.npz`` in the folder named by ``DECRESCENDO_DATA``, otherwise made from
    a public repository (38 MB, downloaded once) that has each original resized to 224x224 as JPEG: one channel,
    area mean to 64x64. The pixels are verified however they came.

    Raises:
        InvalidValue: another split.
        FileRefused: damaged files, or JPEG images decoded to other pixels.
        DataUnavailable: nothing local, and the download failed.
        MissingExtra: pooch or Pillow is needed and not installed.
    """
    if split not in ("official", "random"):
        raise InvalidValue(f"split must be 'official' or 'random', got {split!r}")
    local = find_local(ARRAYS)
    train, test = from_arrays(local) if local is not None else from_pictures(pictures(read(ARCHIVE)))
    pixels, labels = np.concatenate([train.pixels, test.pixels]), np.concatenate([train.labels, test.labels])
    if hashlib.sha256(pixels.tobytes()).hexdigest() != PIXELS_SHA256:
        raise FileRefused(
            "the X-rays must be decoded to the pixels that the figures were made with, got others. "
            "Another JPEG decoder? Run pip install pillow==13.0.0"
        )
    rows = TRAIN_ROWS
    if split == "random":
        order = published_order("chest-xray", len(labels))
        pixels, labels, rows = pixels[order], labels[order], RANDOM_TRAIN_ROWS
    inputs = torch.from_numpy(pixels.astype(np.float32)).unsqueeze(1).div_(255).sub_(MEAN).div_(STD)
    targets = torch.from_numpy(labels.astype(np.int64))
    return Dataset(
        name=f"chest-xray-{split}",
        train_inputs=inputs[:rows],
        train_targets=targets[:rows],
        test_inputs=inputs[rows:],
        test_targets=targets[rows:],
        classes=2,
        scale=255.0,
        mean=MEAN,
        std=STD,
    )


def is_test(name: str) -> bool:
    """Whether the publishers put the image into their test half: it goes by the numbers in the file names.

    >>> [is_test(f"{name}.jpeg") for name in ("IM-0111-0001", "IM-0115-0001", "person100_bacteria_475")]
    [True, False, True]
    """
    healthy = re.match(r"(NORMAL2-)?IM-(\d+)", name)
    if healthy:
        return int(healthy[2]) <= (381 if healthy[1] else 111)
    ill = re.match(r"person(\d+)_(bacteria|virus)", name)
    if not ill:
        raise FileRefused(f"an X-ray's file name must be known, got {name}")
    person = int(ill[1])
    if ill[2] == "bacteria":
        return 78 <= person <= 175
    return person <= 79 or person == 1608 or person >= 1610


def from_arrays(content: bytes) -> tuple[Half, Half]:
    """Train and test from the file of arrays ``x_train``, ``y_train``, ``x_test``, ``y_test``.

    Raises:
        FileRefused: not such a file, or arrays of other kinds.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            found = {name: _array(arrays, name, 3 if name[0] == "x" else 1) for name in NAMES}
    except (
        OSError,
        EOFError,
        KeyError,
        TypeError,
        ValueError,
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise FileRefused(f"the X-rays must be a file of arrays, got another ({error})") from None
    train, test = (Half(found[f"x_{half}"], found[f"y_{half}"]) for half in ("train", "test"))
    for half in (train, test):
        if len(half.pixels) != len(half.labels):
            raise FileRefused(f"each X-ray must have a class, got {len(half.pixels)} and {len(half.labels)}")
    return train, test


def _array(arrays: Any, name: str, dimensions: int) -> UInt8[np.ndarray, "..."]:
    found = arrays[name]
    if not isinstance(found, np.ndarray) or found.dtype != np.uint8 or found.ndim != dimensions:
        raise TypeError(f"{name} must be bytes in {dimensions} dimensions")
    return found


def pictures(content: bytes) -> list[Picture]:
    """The JPEG files in the folders NORMAL and PNEUMONIA of a tar archive, wherever these are.

    Raises:
        FileRefused: not a whole archive.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r|gz") as archive:
            return list(_members(archive))
    except (tarfile.TarError, EOFError, OSError, TypeError, ValueError, zlib.error) as error:
        raise FileRefused(f"the X-rays must be a whole archive, got another ({error})") from error


def _members(archive: tarfile.TarFile) -> Iterator[Picture]:
    for member in archive:
        found, file = MEMBER.fullmatch(member.name), archive.extractfile(member)
        if found and file:
            content = file.read(LARGEST_PICTURE + 1)
            if len(content) > LARGEST_PICTURE:
                raise ValueError(f"{found[2]} is larger than {LARGEST_PICTURE} bytes")
            yield Picture(found[2], FOLDERS[found[1]], content)


def contents_digest(content: bytes) -> str:
    """SHA-256 over names, classes and contents of the pictures in an archive, in the order of their names."""
    total = hashlib.sha256()
    for name, pneumonia, picture in sorted(pictures(content)):
        total.update(f"{name} {pneumonia} {hashlib.sha256(picture).hexdigest()}\n".encode())
    return total.hexdigest()


def from_pictures(found: Iterable[Picture]) -> tuple[Half, Half]:
    """Train and test from JPEG files."""
    train, test = halves(found)
    return _half(train), _half(test)


def originals() -> tuple[list[Picture], list[Picture]]:
    """The train and test images of `chest_xray`, in its order, as 224x224 JPEG files.

    Read from ``chest-xray/images-224-jpeg.zip`` in the folder named by ``DECRESCENDO_DATA``, otherwise downloaded.

    Raises:
        FileRefused, DataUnavailable, MissingExtra: as `chest_xray` does.
    """
    local = find_local(PICTURES)
    if local is None:
        return halves(pictures(read(ARCHIVE)))
    with zipfile.ZipFile(io.BytesIO(local)) as archive:  # its bytes are known
        found = [(MEMBER.fullmatch(name), archive.read(name)) for name in archive.namelist()]
    return halves(Picture(name[2], FOLDERS[name[1]], content) for name, content in found if name)


def halves(found: Iterable[Picture]) -> tuple[list[Picture], list[Picture]]:
    """The publishers' train and test half, each in the order of the SHA-256 of the file name.

    Raises:
        FileRefused: too few or too many.
    """
    ordered = sorted(found, key=lambda picture: hashlib.sha256(picture.name.encode()).digest())
    train = [picture for picture in ordered if not is_test(picture.name)]
    test = [picture for picture in ordered if is_test(picture.name)]
    if (len(train), len(test)) != (TRAIN_ROWS, TEST_ROWS):
        raise FileRefused(
            f"there must be {TRAIN_ROWS} train and {TEST_ROWS} test X-rays, got {len(train)} and {len(test)}"
        )
    return train, test


def _half(found: list[Picture]) -> Half:
    image = require("PIL.Image")
    rows = [small(picture.content, image) for picture in found]
    return Half(np.stack(rows), np.array([picture.pneumonia for picture in found], dtype=np.uint8))


def small(content: bytes, image: Any) -> UInt8[np.ndarray, "height width"]:
    """One channel of a grey picture saved in three equal ones, reduced to 64x64 by area means."""
    try:
        with image.open(io.BytesIO(content), formats=("JPEG",)) as opened:
            if max(opened.size) > LARGEST_SIDE:
                raise ValueError(f"{opened.size} pixels")
            channel = opened.getchannel(0) if opened.mode == "RGB" else opened.convert("L")
            return np.asarray(channel.resize((SIZE, SIZE), image.Resampling.BOX))
    except (OSError, EOFError, SyntaxError, TypeError, ValueError, struct.error, zlib.error) as error:
        raise FileRefused(f"an X-ray must be a whole JPEG picture, got another file ({error})") from None


ARRAYS = RemoteFile(
    "chest-xray",
    "chest_xray_64.npz",
    None,
    "4260cf468b08a154e97cc451d81dc6f5d8e1a3505d58b2ef78a085b99341ad8e",
)
# The archive's pictures, where somebody has put them.
PICTURES = RemoteFile(
    "chest-xray",
    "images-224-jpeg.zip",
    None,
    "11e2cd3e2f591507b68d160398c2759c352fd111791f5cafa6ed5faa96acd6f4",
)
# An archive of one commit. Its bytes may be packed anew, so what is in it is verified.
ARCHIVE = RemoteFile(
    "chest-xray",
    "images-224.tar.gz",
    "https://codeload.github.com/szallik/Neural_networks_binary_classification/tar.gz/"
    "13b5ee8c7a77d1244a1d4e00c8d0a9f8819423db",
    "15c30a1e2d21f7d24c09fea4703c27accb45dfb4400da738b0b029da07bff17f",
    contents_digest,
)
