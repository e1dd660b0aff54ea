"""The noise of `rounded`, made on the sums' device: ChaCha20 (RFC 8439) and the rounding in one kernel, or by torch
operations.

Only the few coordinates whose rounding float64 leaves open go to the CPU. The bits of a coordinate depend on the key
and on its position in the stream alone. The key is derived from that of the AES stream.
"""

import functools
import hashlib
import struct
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from decrescendo.base.rng.keystream import ReservedWords
from decrescendo.base.rng.rounded import KERNEL_ERROR, SOURCE, grid
from decrescendo.base.rng.settling import QUANTILE_ERROR, rounded_exactly
from decrescendo.base.torch_private import kernel_of
from decrescendo.errors import check_real

# Coordinates per chunk.
_CHUNK = 2**23
_WORDS_PER_BLOCK = 8


def add_gaussian(
    values: Float[Tensor, " size"], std: float, words: ReservedWords, *, divisor: float = 1.0,
    step: float | None = None,
) -> Float[Tensor, " size"]:  # fmt: skip
    """``values`` plus independent N(0, std^2) on each, rounded to a multiple of ``step``, over ``divisor``.

    Args:
        values: float64 or float32, on any device that has float64.
        std: in [2^-900, 2^900]; public.
        words: which words of the stream the values take: one each.
        divisor: > 0; public.
        step: a power of two; public. ``None`` for `rounded.grid` (std).

    Guarantee:
        that of `rounded.add_gaussian`, with bits of another cipher: equal words give equal numbers.

    >>> words = ReservedWords(bytes(32), 0)
    >>> noisy = add_gaussian(torch.zeros(5), 1.0, words)
    >>> torch.equal(noisy[3:], add_gaussian(torch.zeros(2), 1.0, words.after(3)))
    True
    """
    step, inverse = step or grid(std), 1 / check_real("divisor", divisor, above=0)
    key, device = _own_key(words.key), values.device
    found = torch.empty_like(values)
    for start in range(0, len(values), _CHUNK):
        part, first = values[start : start + _CHUNK].double(), words.start + start
        if (kernel := _kernel(device)) is not None:
            numbers = torch.arange(first, first + len(part), device=device)
            sums = _by_kernel(kernel, key, part, numbers, std, step, inverse)
        else:
            sums = _by_torch(part, std, step, inverse, stream_words(words.key, first, len(part), device))
        found[start : start + len(part)] = sums
    unsure = found.isnan().nonzero().flatten()
    if len(unsure):
        places, drawn = unsure.cpu().numpy(), words_at(words.key, words.start + unsure).cpu().numpy()
        with np.errstate(over="ignore"):  # beyond float32
            exact = rounded_exactly(
                values[unsure].double().cpu().numpy(),
                std,
                step,
                inverse,
                drawn.view(np.uint64),
                words,
                places,
            )
        found[unsure] = torch.from_numpy(exact).to(values)
    return found


def _by_torch(
    values: Float64[Tensor, " size"], std: float, step: float, inverse: float, drawn: Int[Tensor, " size"]
) -> Float64[Tensor, " size"]:
    """The results; NaN where float64 leaves open which multiple of the grid is nearest."""
    # One bit is the sign; 63 are the beginning of a tail probability below one half.
    probability = ((drawn & (2**63 - 1)).double() + 0.5) * 2.0**-64
    size = -torch.special.ndtri(probability)
    total = values + std * torch.where(drawn < 0, -size, size)
    scaled = total / step
    nearest = torch.round(scaled)
    error = std * (2.0**-64.5 / probability + QUANTILE_ERROR * (1 + size)) + 2.0**-52 * total.abs()
    sure = (scaled - nearest).abs() + error / step < 0.5
    return torch.where(sure, nearest * (step * inverse), torch.nan)


def stream_words(key: bytes, first: int, count: int, device: torch.device) -> Int[Tensor, " count"]:
    """Words first .. first + count - 1 of the stream of ``key``: block i of ChaCha20 has 8 i .. 8 i + 7."""
    block, before = divmod(first, _WORDS_PER_BLOCK)
    blocks = torch.arange(block, block + -(-(before + count) // _WORDS_PER_BLOCK), device=device)
    return chacha20(_own_key(key), blocks).flatten()[before : before + count]


def words_at(key: bytes, numbers: Int[Tensor, " count"]) -> Int[Tensor, " count"]:
    """Words of the stream of ``key`` by their numbers."""
    if (kernel := _kernel(numbers.device)) is not None:
        return kernel(torch.zeros_like(numbers), numbers, **_numbers(_own_key(key)))
    blocks = chacha20(_own_key(key), numbers // _WORDS_PER_BLOCK)
    return blocks.gather(1, (numbers % _WORDS_PER_BLOCK).unsqueeze(1)).flatten()


# The bits of one result, from those of a value and its word's number, with the table and arithmetic of gaussian.c
# (tests/rng/test_kernel.py proves its error); the bits of NaN where gaussian.c would leave a value unchanged. With
# std 0, the word. (Each of eight threads computes the whole block of the cipher: cheaper than to share it.)
KERNEL = """
template <typename T> T rounded_gaussian(
    T value_bits, T word_number, T k0, T k1, T k2, T k3, T std_bits, T per_step_bits, T room_bits, T back_bits) {
    typedef unsigned long long wide;
    union either { wide bits; double real; };
    static const double power[DEGREE + 1][OCTAVES] = TABLE;
    const wide number = static_cast<wide>(word_number), block = number >> 3;
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
    wide word = 0;
    #pragma unroll
    for (int i = 0; i < 8; i++) {
        const wide low = x[2 * i] + begin[2 * i], high = x[2 * i + 1] + begin[2 * i + 1];
        if ((number & 7) == i) word = low | (high << 32);
    }
    if (std_bits == 0) return static_cast<T>(word);

    either value, deviation, per_step, room, back, tail, mantissa, noise, found;
    value.bits = static_cast<wide>(value_bits);
    deviation.bits = static_cast<wide>(std_bits);
    per_step.bits = static_cast<wide>(per_step_bits);
    room.bits = static_cast<wide>(room_bits);
    back.bits = static_cast<wide>(back_bits);
    tail.real = static_cast<double>(static_cast<long long>(word & 0x7fffffffffffffffULL)) + 0.5;
    const long long octave = 1023 + 62 - static_cast<long long>(tail.bits >> 52);
    mantissa.bits = (tail.bits & 0xfffffffffffffULL) | 0x3ff0000000000000ULL;
    mantissa.real -= 1.5;
    const double *row = &power[DEGREE][octave & (OCTAVES - 1)];
    double size = *row;
    #pragma unroll
    for (int degree = DEGREE - 1; degree >= 0; degree--)
        size = size * mantissa.real + *(row -= OCTAVES);
    noise.real = size * deviation.real;
    noise.bits ^= word & 0x8000000000000000ULL;
    const double scaled = (value.real + noise.real) * per_step.real;
    const double nearest = (scaled + 6755399441055744.0) - 6755399441055744.0; /* 1.5 2^52 */
    const double off = scaled < nearest ? nearest - scaled : scaled - nearest, large = scaled < 0 ? -scaled : scaled;
    const bool sure = octave >= 0 && octave < OCTAVES && off + large * 2.220446049250313e-16 < room.real;
    found.real = nearest * back.real;
    if (!sure) found.bits = 0x7ff8000000000000ULL;
    return static_cast<T>(found.bits);
}
"""


def kernel_code() -> str:
    """`KERNEL` with the table of gaussian.c.

    >>> "TABLE" in kernel_code()
    False
    """
    source = SOURCE.read_text(encoding="utf-8")
    table = source.split("power[DEGREE + 1][OCTAVES] = ")[1].split("};")[0] + "}"
    code = KERNEL.replace("TABLE", table)
    for name in ("DEGREE", "OCTAVES"):
        code = code.replace(name, source.split(f"#define {name} ")[1].split("\n")[0])
    return code


@functools.cache
def _kernel(device: torch.device) -> Callable[..., Tensor] | None:
    return checked_kernel(device) if device.type == "cuda" else None


def checked_kernel(device: torch.device) -> Callable[..., Tensor] | None:
    """The kernel compiled by torch; ``None`` if it cannot be compiled or differs from `_by_torch` in a test."""
    key, blocks = bytes(range(32)), torch.tensor([0, 1, 77, 2**32 - 1, 2**32, 2**40 + 3])
    numbers = (blocks.unsqueeze(1) * _WORDS_PER_BLOCK + torch.arange(_WORDS_PER_BLOCK)).flatten()
    numbers = torch.cat([numbers, torch.arange(5000)])
    words = chacha20(key, numbers // _WORDS_PER_BLOCK)
    words = words.gather(1, (numbers % _WORDS_PER_BLOCK).unsqueeze(1)).flatten()
    values, scales = torch.linspace(-3, 3, len(numbers), dtype=torch.float64), (1.7, grid(1.7), 1 / 3)
    expected, there = _by_torch(values, *scales, words), numbers.to(device)
    try:
        kernel = kernel_of(kernel_code(), **_numbers(bytes(32)))
        drawn = kernel(torch.zeros_like(there), there, **_numbers(key)).cpu()
        found = _by_kernel(kernel, key, values.to(device), there, *scales).cpu()
    except (RuntimeError, AttributeError):  # no compiler, or another device than NVIDIA's
        return None
    is_open = found.isnan()
    same = torch.equal(drawn, words) and bool(((found == expected) | is_open | expected.isnan()).all())
    return kernel if same and is_open.sum() < 100 else None


def _by_kernel(
    kernel: Callable[..., Tensor], key: bytes, values: Float64[Tensor, " size"], numbers: Int[Tensor, " size"],
    std: float, step: float, inverse: float,
) -> Float64[Tensor, " size"]:  # fmt: skip
    """The results as of `_by_torch`, with the words of these numbers."""
    scales = std, 1 / step, 0.5 - KERNEL_ERROR * (std / step), step * inverse
    return kernel(values.view(torch.int64), numbers, **_numbers(key, *scales)).view(torch.float64)


def _numbers(
    key: bytes, std: float = 0.0, per_step: float = 0.0, room: float = 0.0, back: float = 0.0
) -> dict[str, int]:
    """The kernel's numeric arguments: the key as four words, the bits of the other numbers."""
    names = "k0", "k1", "k2", "k3", "std_bits", "per_step_bits", "room_bits", "back_bits"
    numbers = struct.unpack("<8q", key + struct.pack("<4d", std, per_step, room, back))
    return dict(zip(names, numbers, strict=True))


def _own_key(key: bytes) -> bytes:
    return hashlib.sha256(b"decrescendo:chacha20:" + key).digest()


def chacha20(key: bytes, blocks: Int[Tensor, " blocks"], nonce: int = 0) -> Int[Tensor, "blocks 8"]:
    """Blocks of ChaCha20's stream, by number, as eight words of 64 bits each.

    The block number has 64 bits as in the original design; RFC 8439 uses 32, and below 2^32 both are the same.

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
    """Four quarter rounds of ChaCha20 at once, in place."""
    for first, second, left, right in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        left.bitwise_xor_(first.add_(second))
        high = left << right
        # A right shift of a signed number fills in copies of the sign.
        left.bitwise_right_shift_(32 - right).bitwise_and_(2**right - 1).bitwise_or_(high)
