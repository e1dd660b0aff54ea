"""Facts: only bytes with the declared hash are ever taken for data, wherever they come from."""

import gzip
import hashlib
import http.server
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from decrescendo.errors import DataUnavailable, FileRefused, MissingExtra
from decrescendo_papers.data import fetch
from decrescendo_papers.data.fetch import RemoteFile, read

CONTENT = gzip.compress(bytes(range(256)) * 40, mtime=0)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server:
    """A local web server that answers every request with ``body``, announcing ``announced`` bytes (or no number)."""

    def __init__(self) -> None:
        outer = self
        self.body, self.requests = CONTENT, 0
        self.announced: int | None = len(CONTENT)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests += 1
                self.send_response(200)
                if outer.announced is not None:
                    self.send_header("Content-Length", str(outer.announced))
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/toy.gz"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    it = Server()
    yield it
    it.http.shutdown()
    it.http.server_close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("pooch.os_cache", lambda project: tmp_path / "cache" / project)
    monkeypatch.delenv(fetch.FOLDER_VARIABLE, raising=False)
    return tmp_path / "cache"


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("layout", ["toy-set/toy.gz", "toy.gz"])
def test_the_named_folder_is_looked_in_first_in_both_layouts(
    layout: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine" / layout
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    monkeypatch.setenv(fetch.FOLDER_VARIABLE, str(tmp_path / "mine"))
    assert read(RemoteFile("toy-set", "toy.gz", server.url, SHA256)) == CONTENT
    assert server.requests == 0


def test_a_flat_file_of_another_set_does_not_hide_the_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # MNIST and Fashion-MNIST use the same file names.
    (tmp_path / "toy.gz").write_bytes(CONTENT)
    (tmp_path / "toy-set").mkdir()
    (tmp_path / "toy-set" / "toy.gz").write_bytes(b"another set")
    monkeypatch.setenv(fetch.FOLDER_VARIABLE, str(tmp_path))
    assert read(RemoteFile("toy-set", "toy.gz", "http://127.0.0.1:9/", SHA256)) == CONTENT


@pytest.mark.parametrize("damage", [CONTENT[:-1], CONTENT + b"\0", b"", CONTENT[:50] + b"x" + CONTENT[51:]])
def test_a_damaged_local_file_is_refused_and_left_alone(
    damage: bytes, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy.gz").write_bytes(damage)
    monkeypatch.setenv(fetch.FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(FileRefused, match=r"toy\.gz must have SHA-256"):
        read(RemoteFile("toy-set", "toy.gz", server.url, SHA256))
    assert server.requests == 0
    assert (tmp_path / "toy.gz").read_bytes() == damage


def test_a_download_is_verified_and_happens_once(server: Server, cache: Path) -> None:
    file = RemoteFile("toy-set", "toy.gz", server.url, SHA256)
    assert read(file) == CONTENT
    assert read(file) == CONTENT
    assert server.requests == 1
    assert files_in(cache) == ["toy.gz"]


def test_a_wrong_download_is_refused_and_leaves_nothing(server: Server, cache: Path) -> None:
    server.body = CONTENT[:-1] + b"!"
    with pytest.raises(FileRefused, match=r"the download of toy\.gz must have SHA-256"):
        read(RemoteFile("toy-set", "toy.gz", server.url, SHA256))
    assert files_in(cache) == []


def contents(content: bytes) -> str:
    """A digest of what is packed, not of the file; refuses what does not unpack."""
    try:
        return hashlib.sha256(gzip.decompress(content)).hexdigest()
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(str(error)) from error


UNPACKED = hashlib.sha256(gzip.decompress(CONTENT)).hexdigest()
KINDS = {"whole file": (SHA256, fetch.sha256_hex), "contents": (UNPACKED, contents)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("body", "announced"),
    [
        (CONTENT[: len(CONTENT) // 2], len(CONTENT)),  # the connection ends in mid-body
        (CONTENT[: len(CONTENT) // 2], None),  # likewise, and nobody said how long the body is
        (CONTENT[:-1], len(CONTENT) - 1),  # a server whose own file is cut off
        (b"", None),
        (b"", 0),
        (CONTENT + b"more", len(CONTENT) + 4),
        (b"<html>try again later</html>", None),
    ],
)
def test_a_cut_or_wrong_download_is_an_error_and_leaves_nothing(
    body: bytes, announced: int | None, kind: str, server: Server, cache: Path
) -> None:
    server.body, server.announced = body, announced
    file = RemoteFile("toy-set", "toy.gz", server.url, *KINDS[kind])
    with pytest.raises((FileRefused, DataUnavailable), match=r"toy\.gz"):
        read(file)
    assert files_in(cache) == []
    # And the next attempt is not misled by the last one.
    server.body, server.announced = CONTENT, len(CONTENT)
    assert read(file) == CONTENT


@pytest.mark.parametrize("damage", [b"", CONTENT[:-3], CONTENT[: len(CONTENT) // 2], b"other"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_in_the_cache_is_downloaded_again(damage: bytes, kind: str, server: Server, cache: Path) -> None:
    file = RemoteFile("toy-set", "toy.gz", server.url, *KINDS[kind])
    assert read(file) == CONTENT
    next(cache.rglob("toy.gz")).write_bytes(damage)
    assert read(file) == CONTENT
    assert read(file) == CONTENT
    assert server.requests == 2


def test_an_archive_packed_anew_is_known_by_its_contents(server: Server) -> None:
    server.body = gzip.compress(gzip.decompress(CONTENT), compresslevel=1, mtime=7)
    server.announced = len(server.body)
    assert server.body != CONTENT
    assert read(RemoteFile("toy-set", "toy.gz", server.url, UNPACKED, contents)) == server.body
    with pytest.raises(FileRefused):
        read(RemoteFile("toy-set", "other.gz", server.url, SHA256))


def test_no_network_says_what_to_do() -> None:
    with pytest.raises(DataUnavailable, match="DECRESCENDO_DATA"):
        read(RemoteFile("toy-set", "toy.gz", "http://127.0.0.1:9/toy.gz", SHA256))


def test_without_pooch_the_command_that_installs_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pooch", None)
    with pytest.raises(MissingExtra, match=r"pip install"):
        read(RemoteFile("toy-set", "toy.gz", "http://127.0.0.1:9/toy.gz", SHA256))


def test_a_file_without_an_address_says_what_to_do() -> None:
    with pytest.raises(DataUnavailable, match=r"toy-set/toy\.gz must be in a folder named in DECRESCENDO_DATA"):
        read(RemoteFile("toy-set", "toy.gz", None, SHA256))
