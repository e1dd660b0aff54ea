"""The noise of `rounded`, made where the sums are: ChaCha20 (RFC 8439) in integer operations of torch.

Nothing goes to the CPU but the few coordinates that float64 leaves open. Which bits a coordinate gets hangs on the key
and on its place in the stream alone. The key is derived from the stream's own, with which AES draws.
"""

import hashlib
import struct

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
    block, before = divmod(first, _WORDS_PER_BLOCK)
    blocks = torch.arange(block, block + -(-(before + count) // _WORDS_PER_BLOCK), device=device)
    return chacha20(own, blocks).flatten()[before : before + count]


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
