"""The noise of `rounded`, made where the sums are: ChaCha20 (RFC 8439) by integer operations of torch, or by a kernel.

Nothing goes to the CPU but the few coordinates that float64 leaves open. Which bits a coordinate gets hangs on the key
and on its place in the stream alone. The key is derived from the stream's own, with which AES draws.
"""

import functools
import hashlib
import struct
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from decrescendo.base.rng.keystream import ReservedWords
from decrescendo.base.rng.rounded import QUANTILE_ERROR, grid, settled
from decrescendo.errors import check_real

# Coordinates worked on at once.
_CHUNK = 2**21
_WORDS_PER_BLOCK = 8


def add_gaussian(
    values: Float[Tensor, " size"], std: float, words: ReservedWords, *, divisor: float = 1.0
) -> Float[Tensor, " size"]:
    """``values`` plus independent N(0, std^2) on each, rounded to a multiple of `rounded.grid` (std), over ``divisor``.

    Args:
        values: float64 or float32, on any device that has float64.
        std: in [2^-900, 2^900]; public.
        words: which words of the stream the values take: one each.
        divisor: > 0; public.

    Guarantee:
        that of `rounded.add_gaussian`, of the bits of another cipher: equal words give equal numbers.

    >>> words = ReservedWords(bytes(32), 0)
    >>> noisy = add_gaussian(torch.zeros(5), 1.0, words)
    >>> torch.equal(noisy[3:], add_gaussian(torch.zeros(2), 1.0, words.after(3)))
    True
    """
    step, inverse = grid(std), 1 / check_real("divisor", divisor, above=0)
    found = torch.empty_like(values)
    for start in range(0, len(values), _CHUNK):
        part = values[start : start + _CHUNK].double()
        drawn = stream_words(words.key, words.start + start, len(part), values.device)
        # One bit is the sign; 63 are the beginning of a tail probability below one half.
        probability = ((drawn & (2**63 - 1)).double() + 0.5) * 2.0**-64
        size = -torch.special.ndtri(probability)
        total = part + std * torch.where(drawn < 0, -size, size)
        scaled = total / step
        nearest = torch.round(scaled)
        error = std * (2.0**-64.5 / probability + QUANTILE_ERROR * (1 + size)) + 2.0**-52 * total.abs()
        found[start : start + len(part)] = (nearest * (step * inverse)).to(values.dtype)
        unsure = (~((scaled - nearest).abs() + error / step < 0.5)).nonzero().flatten()
        if len(unsure):
            sums, bits = part[unsure].cpu().numpy(), drawn[unsure].cpu().numpy().view(np.uint64)
            places = unsure.cpu().numpy() + start
            with np.errstate(over="ignore"):  # beyond float32
                exact = settled(sums, std, step, inverse, bits, words, places)
            found[unsure + start] = torch.from_numpy(exact).to(values)
    return found


def stream_words(key: bytes, first: int, count: int, device: torch.device) -> Int[Tensor, " count"]:
    """Words first .. first + count - 1 of the stream of ``key``: block i of ChaCha20 has 8 i .. 8 i + 7."""
    own = hashlib.sha256(b"decrescendo:chacha20:" + key).digest()
    if device.type == "cuda" and (kernel := _kernel(device)) is not None:
        return kernel(torch.arange(first, first + count, device=device), *_numbers(own, device))
    block, before = divmod(first, _WORDS_PER_BLOCK)
    blocks = torch.arange(block, block + -(-(before + count) // _WORDS_PER_BLOCK), device=device)
    return chacha20(own, blocks).flatten()[before : before + count]


# One word of 64 bits: its block, of which it takes its part. (Eight threads make each block; that costs less than what
# they would have to tell each other.)
_CODE = """
template <typename T> T chacha20_word(T word, T k0, T k1, T k2, T k3) {
    typedef unsigned long long wide;
    const wide number = static_cast<wide>(word), block = number >> 3;
    const wide keys[4] = {static_cast<wide>(k0), static_cast<wide>(k1), static_cast<wide>(k2), static_cast<wide>(k3)};
    unsigned begin[16] = {0x61707865u, 0x3320646eu, 0x79622d32u, 0x6b206574u};
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        begin[4 + 2 * i] = static_cast<unsigned>(keys[i]);
        begin[5 + 2 * i] = static_cast<unsigned>(keys[i] >> 32);
    }
    begin[12] = static_cast<unsigned>(block);
    begin[13] = static_cast<unsigned>(block >> 32);
    begin[14] = begin[15] = 0u;
    unsigned x[16];
    #pragma unroll
    for (int i = 0; i < 16; i++) x[i] = begin[i];
    #define TURNED(v, n) (((v) << (n)) | ((v) >> (32 - (n))))
    #define QUARTER(a, b, c, d) \
        a += b; d = TURNED(d ^ a, 16); c += d; b = TURNED(b ^ c, 12); \
        a += b; d = TURNED(d ^ a, 8); c += d; b = TURNED(b ^ c, 7);
    for (int i = 0; i < 10; i++) {
        QUARTER(x[0], x[4], x[8], x[12])
        QUARTER(x[1], x[5], x[9], x[13])
        QUARTER(x[2], x[6], x[10], x[14])
        QUARTER(x[3], x[7], x[11], x[15])
        QUARTER(x[0], x[5], x[10], x[15])
        QUARTER(x[1], x[6], x[11], x[12])
        QUARTER(x[2], x[7], x[8], x[13])
        QUARTER(x[3], x[4], x[9], x[14])
    }
    wide found = 0;
    #pragma unroll
    for (int i = 0; i < 8; i++) {
        const wide low = x[2 * i] + begin[2 * i], high = x[2 * i + 1] + begin[2 * i + 1];
        if ((number & 7) == i) found = low | (high << 32);
    }
    return static_cast<T>(found);
}
"""


@functools.cache
def _kernel(device: torch.device) -> Callable[..., Tensor] | None:
    """The kernel that makes words by their numbers; ``None`` where none can be made that gives those of `chacha20`."""
    key, blocks = bytes(range(32)), torch.tensor([0, 1, 77, 2**32 - 1, 2**32, 2**40 + 3], device=device)
    words = (blocks.unsqueeze(1) * _WORDS_PER_BLOCK + torch.arange(_WORDS_PER_BLOCK, device=device)).flatten()
    try:
        kernel = cast("Any", torch).cuda.jiterator._create_jit_fn(_CODE)
        same = torch.equal(kernel(words, *_numbers(key, device)), chacha20(key, blocks).flatten())
    except (RuntimeError, AttributeError):  # no compiler, or another device than NVIDIA's
        return None
    return kernel if same else None


@functools.lru_cache(maxsize=4)
def _numbers(key: bytes, device: torch.device) -> tuple[Tensor, ...]:
    """A key of 32 bytes as four words."""
    return torch.tensor(struct.unpack("<4q", key), device=device).split(1)


def chacha20(key: bytes, blocks: Int[Tensor, " blocks"], nonce: int = 0) -> Int[Tensor, "blocks 8"]:
    """Blocks of ChaCha20's stream, by number, as eight words of 64 bits each.

    The number takes the 64 bits that the first design gave it, of which RFC 8439 uses 32; below 2^32 both are the same.

    Args:
        key: 32 bytes.
        blocks: their numbers, >= 0.
        nonce: the other 64 bits, below 2^64.

    >>> chacha20(bytes(32), torch.tensor([0]))[0, 0].item().to_bytes(8, "little", signed=True).hex()
    '76b8e0ada0f13d90'
    """

    def row(content: bytes) -> Tensor:
        numbers = torch.tensor(struct.unpack("<4i", content), dtype=torch.int32, device=blocks.device)
        return numbers.unsqueeze(1).expand(-1, len(blocks))

    last = row(bytes(8) + nonce.to_bytes(8, "little")).clone()
    last[0], last[1] = blocks.to(torch.int32), (blocks >> 32).to(torch.int32)
    begin = row(b"expand 32-byte k"), row(key[:16]), row(key[16:]), last
    a, b, c, d = (part.clone() for part in begin)
    for _ in range(10):
        _quarters(a, b, c, d)
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)  # diagonals as columns
        _quarters(a, b, c, d)
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    found = torch.cat([part.add_(first) for part, first in zip((a, b, c, d), begin, strict=True)])
    return found.T.flatten().view(torch.int64).view(-1, _WORDS_PER_BLOCK)


def _quarters(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> None:
    """Four quarter rounds side by side."""
    for first, second, left, right in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        left.bitwise_xor_(first.add_(second))
        high = left << right
        # A shift to the right brings copies of the sign.
        left.bitwise_right_shift_(32 - right).bitwise_and_(2**right - 1).bitwise_or_(high)
