"""Parsers of data sets. Hashes are compared before any of them sees a byte; they must be clear without that too."""

import gzip
import hashlib
import io
import json
import lzma
import tarfile
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from decrescendo_papers.data.idx import parse_idx
from decrescendo_papers.data.imdb import from_archive, from_lines
from decrescendo_papers.data.names import parse
from decrescendo_papers.data.xray import contents_digest, from_arrays, is_test, pictures, small
from fuzzing.decisions import Decisions
from fuzzing.mutations import mutated_bytes, mutated_json
from fuzzing.target import Files, Target

FILE = "file"


def _idx(shape: tuple[int, ...]) -> bytes:
    header = bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
    return gzip.compress(header + bytes(int(np.prod(shape))), mtime=0)


def _inside(pack: Any, unpack: Any) -> Any:
    """Changes what is packed, and packs it again."""

    def bend(files: Files, choose: Decisions) -> Files:
        try:
            content = unpack(files[FILE])
        except (OSError, EOFError, ValueError, KeyError, zlib.error, lzma.LZMAError):
            return files
        change = mutated_json if choose.below(2) and content.startswith(b"{") else None
        changed = change(content, choose) if change else mutated_bytes(content, choose, [])
        return {FILE: pack(changed)}

    return bend


def _tar(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def _jpeg() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 8), (9, 9, 9)).save(out, "JPEG")
    return out.getvalue()


@cache
def _lines() -> list[Files]:
    rows = [{"id": number, "label": number % 2, "rating": 7, "text": "a film"} for number in range(3)]
    return [{FILE: lzma.compress("\n".join(map(json.dumps, rows)).encode())}]


@cache
def _reviews() -> list[Files]:
    members = {
        "aclImdb/train/pos/0_9.txt": b"good",
        "aclImdb/test/neg/1_2.txt": b"bad",
        "aclImdb/README": b"x",
    }
    return [{FILE: gzip.compress(_tar(members), mtime=0)}]


@cache
def _pictures() -> list[Files]:
    members = {"x/train/NORMAL/IM-0115-0001.jpeg": _jpeg(), "x/test/PNEUMONIA/person1_virus_6.jpeg": _jpeg()}
    return [{FILE: gzip.compress(_tar(members), mtime=0)}]


@cache
def _arrays() -> list[Files]:
    made: list[Files] = []
    for save in (np.savez, np.savez_compressed):
        out = io.BytesIO()
        images, labels = np.zeros((2, 4, 4), dtype=np.uint8), np.zeros(2, dtype=np.uint8)
        save(out, x_train=images, y_train=labels, x_test=images, y_test=labels)
        made.append({FILE: out.getvalue()})
    return made


def _file(folder: Path) -> bytes:
    path = folder / FILE
    return path.read_bytes() if path.exists() else b""


def _read_pictures(folder: Path) -> list[Any]:
    content = _file(folder)
    found = pictures(content)
    contents_digest(content)
    for picture in found:
        is_test(picture.name)
        small(picture.content, Image)
    return found


def _read_arrays(folder: Path) -> str:
    train, test = from_arrays(_file(folder))
    return hashlib.sha256(train.pixels.tobytes() + test.labels.tobytes()).hexdigest()


DATA = (
    Target(
        "idx", lambda: [{FILE: _idx((2, 4, 4))}, {FILE: _idx((5,))}], lambda folder: parse_idx(_file(folder)).tolist(),
        bend=_inside(lambda raw: gzip.compress(raw, 1, mtime=0), gzip.decompress),
    ),
    Target(
        "names", lambda: [{FILE: "Adamczyk\nNuñez\nO'Neal\n".encode()}], lambda folder: parse(_file(folder), "names"),
    ),
    Target(
        "imdb-lines", _lines, lambda folder: from_lines(_file(folder), "train"),
        bend=_inside(lzma.compress, lzma.decompress),
    ),
    Target(
        "imdb-archive", _reviews, lambda folder: from_archive(_file(folder)),
        bend=_inside(lambda raw: gzip.compress(raw, 1, mtime=0), gzip.decompress),
    ),
    Target("xray-arrays", _arrays, _read_arrays),
    Target(
        "xray-archive", _pictures, _read_pictures,
        bend=_inside(lambda raw: gzip.compress(raw, 1, mtime=0), gzip.decompress),
    ),
)  # fmt: skip
