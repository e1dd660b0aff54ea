"""Noise made in torch: ChaCha20 to the bit, and the same rounding as on the CPU."""

import ctypes
import hashlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import example, given, settings
from hypothesis import strategies as st
from often import some

from decrescendo.base.rng import Keystream, on_device, rounded, settling
from decrescendo.base.rng.keystream import ReservedWords
from decrescendo.clipping import ClippedSum, Diagnostics
from decrescendo.optim.noise import privatise
from decrescendo.plans.sampling import PoissonSampling

KEY = bytes(range(32))
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def reference(key: bytes, block: int, count: int, nonce: int = 0) -> bytes:
    """``count`` blocks by the package ``cryptography``, which counts to 2^32 only."""
    most = 2**32 - block % 2**32
    if count > most:
        return reference(key, block, most, nonce) + reference(key, block + most, count - most, nonce)
    place = block.to_bytes(8, "little") + nonce.to_bytes(8, "little")
    return Cipher(algorithms.ChaCha20(key, place), mode=None).encryptor().update(bytes(64 * count))


class Reference:
    """The words of `on_device`, by ``cryptography``, as `rounded` takes them."""

    def __init__(self, words: ReservedWords) -> None:
        self.words, self.key = words, hashlib.sha256(b"decrescendo:chacha20:" + words.key).digest()
        self.further: Callable[[int], Iterator[int]] = words.further

    def reader(self, most: int) -> Callable[[int, int], np.ndarray]:
        def read(start: int, count: int) -> np.ndarray:
            block, before = divmod(self.words.start + start, 8)
            drawn = np.frombuffer(reference(self.key, block, (before + count) // 8 + 1), dtype="<u8")
            return drawn[before : before + count].copy()

        return read


def test_the_block_of_rfc_8439() -> None:
    """Section 2.3.2: counter 1, nonce 00:00:00:09:00:00:00:4a:00:00:00:00, of which the first word is the upper half of
    our number."""
    expected = (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    nonce = bytes.fromhex("000000090000004a00000000")
    number = torch.tensor([1 + (int.from_bytes(nonce[:4], "little") << 32)])
    found = on_device.chacha20(KEY, number, int.from_bytes(nonce[4:], "little"))
    assert found.numpy().tobytes().hex() == expected


@pytest.mark.parametrize(
    ("key", "block", "start"),
    [
        (bytes(32), 0, "76b8e0ada0f13d90405d6ae55386bd28"),
        (bytes(32), 1, "9f07e7be5551387a98ba977c732d080d"),
        (bytes(31) + b"\1", 1, "3aeb5224ecf849929b9d828db1ced4dd"),
        (b"\0\xff" + bytes(30), 2, "72d54dfbf12ec44b362692df94137f32"),
    ],
)
def test_the_vectors_of_rfc_8439(key: bytes, block: int, start: str) -> None:
    """Appendix A.1, test vectors 1 to 4."""
    found = on_device.chacha20(key, torch.tensor([block]))
    assert found.numpy().tobytes()[:16].hex() == start


@pytest.mark.parametrize("device", DEVICES)
@settings(deadline=None)  # the first call there takes long
@given(key=st.binary(min_size=32, max_size=32), block=st.integers(0, 2**62), nonce=st.integers(0, 2**64 - 1))
@example(key=KEY, block=2**32 - 2, nonce=0)  # the carry into the upper half
def test_equals_the_package_cryptography(device: str, key: bytes, block: int, nonce: int) -> None:
    found = on_device.chacha20(key, torch.arange(block, block + 5, device=device), nonce)
    assert found.cpu().numpy().tobytes() == reference(key, block, 5, nonce)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("start", some([2**40 + 5, 0, 3], 1))
def test_equal_words_are_rounded_as_on_the_cpu(
    dtype: torch.dtype, start: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, with what is open settled by the same further words, in several chunks."""
    monkeypatch.setattr(on_device, "_CHUNK", 50_000)
    count = 101_001
    values = torch.randn(count, dtype=dtype, generator=torch.Generator().manual_seed(0)) * 3
    values[5], values[7] = torch.inf, torch.nan
    words = ReservedWords(KEY, start)
    expected = rounded.add_gaussian(values.numpy(), 1.7, Reference(words), divisor=3.0)
    found = on_device.add_gaussian(values.to(device), 1.7, words, divisor=3.0)
    np.testing.assert_array_equal(found.cpu().numpy(), expected)


_ALL = """
extern "C" void all(const long long *values, const long long *words, const long long *s,
                    long long *out, long long count) {
    for (long long i = 0; i < count; i++)
        out[i] = rounded_gaussian<long long>(values[i], words[i], s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]);
}
"""


@pytest.fixture(scope="module")
def compiled_here(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., torch.Tensor]:
    """The kernel for GPUs by a compiler for this processor, in place of the one that `_kernel` makes."""
    compiler = next(filter(None, map(shutil.which, ("g++", "clang++"))), None)
    if compiler is None:
        pytest.skip("no C++ compiler on this machine")
    folder = tmp_path_factory.mktemp("kernel")
    source, library = folder / "kernel.cpp", folder / "kernel.so"
    source.write_text(on_device.kernel_code() + _ALL)
    command = [compiler, "-O2", "-w", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    function = ctypes.CDLL(str(library)).all

    def kernel(values: torch.Tensor, numbers: torch.Tensor, **scales: int) -> torch.Tensor:
        found, given = torch.empty_like(values), np.array(list(scales.values()), dtype=np.int64)
        pointers = (
            values.contiguous().data_ptr(),
            numbers.contiguous().data_ptr(),
            given.ctypes.data,
            found.data_ptr(),
        )
        function(*map(ctypes.c_void_p, pointers), ctypes.c_longlong(len(values)))
        return found

    return kernel


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("start", [0, 2**40 + 5])
def test_the_kernel_for_gpus_gives_the_same_noise(
    compiled_here: Callable[..., torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    start: int,
) -> None:
    """To the bit, as any C++ compiler makes it: what is sure, what is beyond its octaves, what is not finite."""
    values = torch.randn(200_001, dtype=dtype, generator=torch.Generator().manual_seed(0)) * 3
    values[5], values[7], values[9] = torch.inf, torch.nan, 1e30
    words = ReservedWords(KEY, start)
    expected = on_device.add_gaussian(values, 1.7, words, divisor=3.0)
    monkeypatch.setattr(on_device, "_kernel", lambda device: compiled_here)
    opened: list[int] = []
    settled = on_device.rounded_exactly

    def counted(sums: np.ndarray, *rest: Any) -> np.ndarray:
        opened.append(len(sums))
        return settled(sums, *rest)

    monkeypatch.setattr(on_device, "rounded_exactly", counted)
    monkeypatch.setattr(on_device, "_CHUNK", 70_000)
    found = on_device.add_gaussian(values, 1.7, words, divisor=3.0)
    np.testing.assert_array_equal(found.numpy(), expected.numpy())
    (count,) = opened
    assert 3 < count < 30  # three that are not finite or far off, and one in 2^16


def test_the_kernel_is_compared_before_its_first_use(
    compiled_here: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is off by a last bit, or by a word, or that leaves much open, is not used."""
    made, device = compiled_here, torch.device("cpu")
    for name, change, taken in (
        ("as it is", lambda found, word: found, True),
        ("a word", lambda found, word: found + (torch.arange(len(found)) == 7) * word, False),
        ("a bit", lambda found, word: found + (torch.arange(len(found)) == 70) * (not word), False),
        (
            "open",
            lambda found, word: found if word else torch.where(torch.arange(len(found)) < 200, -1, found),
            False,
        ),
    ):

        def kernel(values: torch.Tensor, numbers: torch.Tensor, **scales: int) -> torch.Tensor:
            return change(made(values, numbers, **scales), not scales["std_bits"])  # noqa: B023

        monkeypatch.setattr(torch.cuda.jiterator, "_create_jit_fn", lambda code, **scales: kernel)
        assert (on_device.checked_kernel(device) is kernel) == taken, name


@pytest.mark.parametrize("device", DEVICES)
def test_the_quantile_is_within_its_bound(device: str) -> None:
    """`settling.QUANTILE_ERROR` has room for what torch's quantile is off, by 8 at least."""
    generator = np.random.default_rng(0)
    tails = np.concatenate(
        [
            generator.integers(0, 2**63, 500, dtype=np.int64),
            (2.0 ** generator.uniform(0, 63, 500)).astype(np.int64),
            np.array([0, 1, 2**63 - 1, 2**62]),
        ]
    )
    probability = (torch.from_numpy(tails).double() + 0.5) * 2.0**-64
    found = (-torch.special.ndtri(probability.to(device))).cpu().tolist()
    with mpmath.workprec(300):
        for p, size in zip(probability.tolist(), found, strict=True):
            exact = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(p))
            assert abs(exact - size) <= settling.QUANTILE_ERROR / 8 * (1 + exact), p


def test_what_is_open_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bound so wide that much is open, the results are the same."""
    values, words = torch.zeros(2000), ReservedWords(KEY, 9)
    expected = on_device.add_gaussian(values, 1.0, words)
    monkeypatch.setattr(on_device, "QUANTILE_ERROR", 2.0**-22)
    opened: list[int] = []
    settled = on_device.rounded_exactly

    def counted(sums: np.ndarray, *rest: object) -> np.ndarray:
        opened.append(len(sums))
        return settled(sums, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(on_device, "rounded_exactly", counted)
    assert torch.equal(on_device.add_gaussian(values, 1.0, words), expected)
    assert sum(opened) > 200


def test_no_word_is_drawn_twice() -> None:
    """Of one vector after another, and of the parts of one."""
    stream = Keystream(KEY)
    vectors = [(stream.reserve(count), count) for count in (1, 7, 8, 9, 30)]
    drawn = torch.cat(
        [on_device.stream_words(words.key, words.start, count, torch.device("cpu")) for words, count in vectors]
    )
    assert len(drawn.unique()) == len(drawn)
    words, count = vectors[-1]
    whole = drawn[-count:]
    parts = [(0, 13), (13, 4), (17, 13)]
    for first, size in parts:
        own = words.after(first)
        assert torch.equal(
            on_device.stream_words(own.key, own.start, size, torch.device("cpu")), whole[first : first + size]
        )


@pytest.mark.gpu
def test_sums_on_cuda_get_their_noise_there() -> None:
    """Without a copy of them on the CPU."""
    sums = {"a": torch.randn(300, 7, device="cuda"), "b": torch.randn(5, device="cuda", dtype=torch.float64)}
    clipped = ClippedSum(sums, 2.0, Diagnostics(1, 0, 0, 0.0))
    noisy = privatise(clipped, 1.5, PoissonSampling(100, 10), Keystream(KEY))
    first, second = Keystream(KEY), Keystream(KEY, 8 * 2100)
    for name, stream in (("a", first), ("b", second)):
        words = stream.reserve(sums[name].numel())
        expected = rounded.add_gaussian(sums[name].cpu().numpy().reshape(-1), 3.0, Reference(words), divisor=10.0)
        assert noisy.gradients[name].device.type == "cuda"
        np.testing.assert_array_equal(noisy.gradients[name].cpu().numpy().reshape(-1), expected)
