"""Facts: a file is whole or not there, with the rights asked for and nothing beside it."""

import os
import stat
from pathlib import Path

import pytest

from decrescendo.base.whole_file import write_whole


@pytest.mark.parametrize(("content", "raw"), [("é\n", b"\xc3\xa9\n"), (b"\x00\xff", b"\x00\xff"), ("", b"")])
def test_it_has_the_bytes_and_the_rights_that_were_asked_for(
    tmp_path: Path, content: str | bytes, raw: bytes
) -> None:
    path = tmp_path / "file"
    path.write_text("what was there")
    for mode in (0o644, 0o600):
        write_whole(path, content, mode=mode)
        assert path.read_bytes() == raw
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_what_was_there_stays_if_the_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "file"
    path.write_text("what was there")

    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, "new")
    assert path.read_text() == "what was there"
    assert list(tmp_path.iterdir()) == [path]


def test_who_keeps_files_to_himself_keeps_these_too(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_whole(tmp_path / "file", "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_no_folder_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "nowhere" / "file", "new")
    with pytest.raises(ValueError, match="null"):
        write_whole(tmp_path / "a\0b", "new")
