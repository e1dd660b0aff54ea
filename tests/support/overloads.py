"""Operations of torch's, called with random tensors: what the proof's labels promise is held against what comes out.

``python tests/support/overloads.py --seconds 2 [NAME..]`` prints one line of JSON for each overload: how often it ran,
how often it was accepted, and the first call at which a promise was broken. Each has its own process: some crash.

A label says that a row of the output belongs to one example, or that the output is public. So another example's
numbers are changed: no row but its own may move, and nothing that is public; and the examples change places: the rows
do likewise.
"""

import argparse
import json
import math
import os
import random
import signal
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decrescendo.errors import DecrescendoError
from decrescendo.row_independence.known_memory import Memory
from decrescendo.row_independence.labels import Label, Mixed, RowLayout
from decrescendo.row_independence.torch_schemas import REJECTING
from decrescendo.row_independence.tracer import Tracer
from decrescendo.row_independence.unobserved_reads import UnobservedReads

N, SEED = 4, 5
ORDER = torch.tensor([1, 2, 3, 0])
SHAPES: Sequence[tuple[int, ...]] = [
    (N,), (N,), (N, 3), (N, 3), (N, N), (N, 1), (N, 3, 3), (N, 2, 3, 3), (3,), (), (1,), (3, 3), (2, N), (3, N), (1, N),
    (N, N, N), (2, N, 3), (N, 2, N), (N, 4, 4),
]  # fmt: skip
DTYPES = (
    [torch.float32] * 8 + [torch.int64] * 3 + [torch.bool, torch.complex64, torch.int32, torch.float64, torch.uint8]
)
WORDS = [
    "none",
    "mean",
    "sum",
    "left",
    "ij",
    "floor",
    "trunc",
    "amax",
    "prod",
    "fro",
    "nearest",
    "linear",
    "reduced",
    "gels",
    "gelsd",
    "gelsy",
]
NUMBERS: dict[str, Sequence[Any]] = {
    "int": (-1, 0, 0, 1, 1, 2, 3, N), "SymInt": (-1, 0, 0, 1, 1, 2, 3, N), "float": (0.5, 1.0, 2.0, 0.0),
    "bool": (True, False), "number": (1, 2, 0.5, 0, True), "str": WORDS,
}  # fmt: skip
# What no program calls, or what would stop the test.
ASIDE = (
    "set_", "_cuda", "nccl", "record_stream", "_thnn", "cudnn", "miopen", "mps", "_sync", "rename", "_pin", "is_pinned",
    "from_file", "_debug", "dispatch_self", "_triton", "to_mkldnn", "_foobar", "hspmm", "_test_", "sleep",
    "manual_seed",    "_batch_dim", "_version", "mkldnn_rnn",
)  # fmt: skip
# How many random numbers they draw hangs on the data: with one seed the next rows have others, of the same law.
LAWS = REJECTING | {"rrelu"}
# With numbers that torch's own functions refuse (a negative delta), the last entries of a line are computed otherwise.
ODD = frozenset({"huber_loss_backward"})


@dataclass(frozen=True)
class Given:
    """A tensor, by what it is made from. ``dim``: where the examples are, of data."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    seed: int
    dim: int | None = None
    alike: bool = False

    def numbers(self, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        if self.dtype == torch.bool:
            return torch.rand(self.shape, generator=generator) > 0.5
        if self.dtype in (torch.int64, torch.int32, torch.uint8):
            return torch.randint(0, 3, self.shape, generator=generator).to(self.dtype)
        found = torch.randn(self.shape, generator=generator, dtype=self.dtype)
        return found if self.dtype.is_complex or self.seed % 2 else found.abs() + 0.05

    def tensor(self, changed: int | None, turned: bool) -> Tensor:
        """With the numbers of one example changed, or the examples at other places."""
        if self.alike:
            return torch.ones(self.shape).to(self.dtype)
        found = self.numbers(self.seed)
        if self.dim is not None and changed is not None:
            found.select(self.dim, changed).copy_(self.numbers(self.seed + 1).select(self.dim, changed))
        if self.dim is not None and turned:
            found = found.index_select(self.dim, ORDER).contiguous()
        return found


def tensor(rng: random.Random, before: list[tuple[int, ...]], dtype: torch.dtype, share: float) -> Given:
    shape = rng.choice(before) if before and rng.random() < share else rng.choice(SHAPES)
    before.append(shape)
    dims = [dim for dim, size in enumerate(shape) if size == N]
    own = rng.choice([dims[0], *dims]) if dims and rng.random() < 0.65 else None
    dtype = dtype if rng.random() < 0.6 else rng.choice(DTYPES)
    return Given(shape, dtype, rng.randrange(2**30), own, own is None and rng.random() < 0.5)


def argument(
    rng: random.Random, kind: str, name: str, before: list[tuple[int, ...]], dtype: torch.dtype, share: float
) -> Any:
    if kind.startswith("Optional["):
        return None if rng.random() < 0.5 else argument(rng, kind[9:-1], name, before, dtype, share)
    if kind.startswith("List["):
        sizes = rng.choice([1, 2, 2, 3, 4])
        return [argument(rng, kind[5:-1], name, before, dtype, share) for _ in range(sizes)]
    if kind == "Tensor":
        if any(part in name for part in ("ind", "target", "offset", "sorter", "zero_point", "length", "sizes")):
            dtype = torch.int64 if rng.random() < 0.7 else dtype
        return tensor(rng, before, torch.bool if "mask" in name and rng.random() < 0.6 else dtype, share)
    if name in ("dtype", "layout", "memory_format", "pin_memory"):
        return None
    if name in ("quant_min", "quant_max"):
        return -128 if name == "quant_min" else 127
    if "Device" in kind:
        return torch.device("cpu")
    return rng.choice(NUMBERS[kind]) if kind in NUMBERS else None


def call(rng: random.Random, op: Any) -> tuple[list[Any], dict[str, Any]]:
    before, args, kwargs = list[tuple[int, ...]](), list[Any](), dict[str, Any]()
    dtype, share = rng.choice(DTYPES), rng.choice((0.9, 0.45))
    for one in op._schema.arguments:
        usual = one.has_default_value() and rng.random() < 0.55
        value = one.default_value if usual else argument(rng, str(one.type), one.name, before, dtype, share)
        if one.kwarg_only and not usual:
            kwargs[one.name] = value
        elif not one.kwarg_only:
            args.append(value)
    return args, kwargs


def flat(values: Any) -> Iterator[Any]:
    if isinstance(values, (list, tuple)):
        for value in values:
            yield from flat(value)
    else:
        yield values


def outcome(
    op: Any, args: Any, kwargs: Any, changed: int | None = None, *, turned: bool = False
) -> list[tuple[Any, Label | None]]:
    """What an operation returns and leaves in its arguments, each with its label.

    Raises:
        DecrescendoError: it is refused.
    """
    watch = Tracer(N, Memory(), SEED)
    given = list[Tensor]()

    def made(value: Any) -> Any:
        if isinstance(value, list):
            return [made(item) for item in value]
        if not isinstance(value, Given):
            return value
        found = value.tensor(changed, turned)
        if value.dim is not None:
            watch.assign(found, RowLayout(value.dim))
        given.append(found)
        return found

    args, kwargs = made(args), {name: made(value) for name, value in kwargs.items()}
    torch.manual_seed(SEED)
    with watch, UnobservedReads(watch):
        returned = op(*args, **kwargs)
    found = [*flat(returned), *given]
    labels = [watch.label(one) if isinstance(one, Tensor) else None for one in found]
    watch.end()
    # Where the generator is now is public.
    return [(hash(torch.get_rng_state().numpy().tobytes()), None), *zip(found, labels, strict=True)]


def plain(value: Tensor) -> Tensor:
    value = value.detach() if value.layout == torch.strided else value.detach().to_dense()
    return (value.dequantize() if value.is_quantized else value).resolve_conj().resolve_neg()


def is_same(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape:
        return False
    if one.is_floating_point() or one.is_complex():
        one, two = one.to(torch.complex128), two.to(torch.complex128)
        return torch.allclose(one, two, rtol=1e-3, atol=1e-4, equal_nan=True)
    return torch.equal(one, two)


def rows(value: Tensor, place: RowLayout, example: int) -> Tensor:
    units = torch.arange(N) if place.owners is None else place.owners.example
    along = units[torch.arange(value.shape[place.dim]) // place.inner % max(len(units), 1)]
    return value.index_select(place.dim, (along == example).nonzero().flatten())


def broken(one: list[Any], two: list[Any], *, changed: int | None) -> str:
    """Which promise does not hold of two outcomes; the examples of the second are at other places if none changed."""
    for (first, label), (second, other) in zip(one, two, strict=True):
        if not isinstance(first, Tensor):
            both = isinstance(first, float) and math.isnan(first) and math.isnan(second)
            if first != second and not both:
                return f"a number, {first} and {second}"
        elif isinstance(label, Mixed) or isinstance(other, Mixed):
            continue
        elif isinstance(label, RowLayout) and not label.constant:
            if not isinstance(other, RowLayout) or other.dim != label.dim:
                continue
            for example in range(N):
                where = example if changed is not None else ORDER.tolist().index(example)
                mine, its = rows(plain(first), label, example), rows(plain(second), other, where)
                if example != changed and not is_same(mine, its):
                    return f"rows of example {example}, {label}"
        elif changed is not None and not is_same(plain(first), plain(second)):
            return f"what is public, {label}"
    return ""


def tried(op: Any, tries: int, seconds: float) -> dict[str, Any]:
    """Call an overload as often as there is time."""
    name, seeded = op._schema.name.partition("::")[2], torch.Tag.nondeterministic_seeded in op.tags
    rng, end = random.Random(zlib.crc32(str(op).encode())), time.monotonic() + seconds
    found: dict[str, Any] = {"op": str(op), "ran": 0, "accepted": 0, "broken": ""}
    for _ in range(tries):
        if time.monotonic() > end or found["broken"]:
            break
        args, kwargs = call(rng, op)
        if not any(isinstance(one, Given) and one.dim is not None for one in flat([args, list(kwargs.values())])):
            continue
        changed = rng.randrange(N)
        try:
            first = outcome(op, args, kwargs)
        except DecrescendoError:
            found["ran"] += 1
            continue
        except Exception:  # torch takes no such arguments
            continue
        found["ran"] += 1
        found["accepted"] += 1
        seconds_of: list[Callable[[], tuple[Any, int | None]]] = [
            lambda: (outcome(op, args, kwargs, changed), changed),  # noqa: B023
        ]
        if not seeded:
            seconds_of.append(lambda: (outcome(op, args, kwargs, turned=True), None))  # noqa: B023
        for make in seconds_of:
            try:
                second, which = make()
                what = broken(first, second, changed=which)
            except Exception:  # refused, or an error by the data: the pass ends
                continue
            if what and (name.removesuffix("_") not in LAWS | ODD or what.startswith("a number")):
                found["broken"] = f"{what}: {args}, {kwargs}"
    return found


def overloads() -> list[str]:
    """Of all operations, but forms that write to an argument for what they return."""
    found = list[str]()
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.partition(".")
        if name.startswith("aten::") and not any(part in name for part in ASIDE) and "out" not in overload.split("_"):
            found.append(f"{name.removeprefix('aten::')}.{overload or 'default'}")
    return sorted(found)


def alone(name: str, tries: int, seconds: float) -> dict[str, Any]:
    """Try an overload in a process of its own."""
    packet, _, overload = name.partition(".")
    try:
        op = getattr(getattr(torch.ops.aten, packet), overload)
    except (AttributeError, RuntimeError):
        return {"op": name, "ran": 0, "accepted": 0, "broken": ""}
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        signal.alarm(int(seconds) + 10)
        for shown in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), shown)
        os.write(write, json.dumps(tried(op, tries, seconds)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return json.loads(said) if said else {"op": name, "ran": 0, "accepted": 0, "broken": "", "crashed": True}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tries", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.names or overloads():
        print(json.dumps(alone(name, options.tries, options.seconds)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
