"""What can happen to a file: bytes turned, cut, repeated, spliced; values in JSON exchanged for nasty ones."""

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from fuzzing.decisions import Decisions

# Written into JSON text as they are: what a program of the house would not write.
RAW = (
    "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e-999", "9" * 400, "9" * 5000, "-0.0", "0.1e1", "1E400",
    '"\\ud800"', '"\\u0000"', '"\\u202e"', "[" * 900 + "]" * 900, "[" * 99_999, '{"a":' * 400 + "1" + "}" * 400,
    '{"a":1,"a":2}', "01", "'a'", "",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 0.5, 1e-300, 1e300, 5e-324, 2**53, 2**53 + 1, 2**63, -(2**63), 2**64, 10**300, "",
    "a", "0", "1/0", "1e9999", "example", "client", "é\u0301", "..", "/", "../x", "\x00", "\x1b[2J", "a" * 300, [], {},
    [0], [[]], [[1.0]], [1, "a"], [None], {"": 0}, {"unit": "example"}, [1e308, 1e308], [0.0] * 3, "NaN", "upper",
)  # fmt: skip
BYTES = (
    b"\x00",
    b"\xff",
    b"\n",
    b"\r\n",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"{",
    b"}",
    b"[",
    b",",
    b'"',
    b"\\",
    b"0",
    b"e9",
)
_MARK = "\ue000raw:"


def mutated_bytes(content: bytes, choose: Decisions, others: list[bytes]) -> bytes:
    """One to eight changes of bytes."""
    out = bytearray(content)
    for _ in range(1 + choose.below(8)):
        what, at = choose.below(9), choose.below(len(out) + 1)
        if what == 0 and out:
            out[at % len(out)] ^= 1 << choose.below(8)
        elif what == 1:
            del out[at:]
        elif what == 2:
            out[at : at + choose.below(64)] = choose.some(64)
        elif what == 3:
            out[at:at] = choose.pick(BYTES) * (1 + choose.below(64))
        elif what == 4:
            piece = bytes(out[at : at + 1 + choose.below(4096)])
            where = choose.below(len(out) + 1)
            out[where:where] = piece
        elif what == 5 and others:
            other = choose.pick(others)
            out[at:] = other[choose.below(len(other) + 1) :]
        elif what == 6 and out:
            start = at % len(out)
            out[start : start + 1 + choose.below(16)] = bytes([choose.byte()]) * (1 + choose.below(16))
        elif what == 7:
            number = (0).__class__(choose.pick((0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)))
            width = choose.pick((4, 8))
            out[at : at + width] = (number % 256**width).to_bytes(width, choose.pick(("little", "big")))
        else:
            del out[at : at + 1 + choose.below(256)]
    return bytes(out)


def mutated_json(text: bytes, choose: Decisions) -> bytes:
    """One to four changes of values, keys or lengths; what is not JSON is left as it is."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return text
    try:
        for _ in range(1 + choose.below(4)):
            tree = _changed(tree, choose)
        out = json.dumps(tree)
    except RecursionError:  # an earlier change nested it too deep to be changed again
        return text
    for index, raw in enumerate(RAW):
        out = out.replace(json.dumps(f"{_MARK}{index}"), raw)
    return out.encode("utf-8", "surrogatepass")


def _changed(tree: Any, choose: Decisions) -> Any:
    spots = list(_spots(tree))
    if not spots:
        return _nasty(choose)
    parent, key = choose.pick(spots)
    what = choose.below(8)
    if what <= 3:
        parent[key] = _nasty(choose)
    elif what == 4:
        del parent[key]
    elif what == 5:
        other, where = choose.pick(spots)
        parent[key] = deepcopy(other[where])
    elif what == 6 and isinstance(parent, list):
        parent[key:key] = [deepcopy(parent[key]) for _ in range(1 + choose.below(300))]
    elif isinstance(parent, dict):
        parent[choose.pick(("", "extra", "__class__", "format", "version", "sha256", "kind"))] = _nasty(choose)
    else:
        parent.append(_nasty(choose))
    return tree


def _nasty(choose: Decisions) -> Any:
    kind = choose.below(3)
    if kind == 0:
        return deepcopy(choose.pick(VALUES))
    if kind == 1:
        return f"{_MARK}{choose.below(len(RAW))}"
    number = int.from_bytes(choose.some(8), "big", signed=True)
    return number if choose.below(2) else number / 1000


def _spots(tree: Any, depth: int = 0) -> "list[tuple[Any, Any]]":
    """Every place that holds a value; of long lists the first few and the last."""
    found: list[tuple[Any, Any]] = []
    if depth > 30 or not isinstance(tree, (dict, list)):
        return found
    keys = (
        list(tree) if isinstance(tree, dict) else [*range(min(len(tree), 4)), *range(max(len(tree) - 1, 4), len(tree))]
    )
    for key in keys:
        found.append((tree, key))
        found += _spots(tree[key], depth + 1)
    return found


def resigned(text: bytes, digest: Callable[[dict[str, Any]], str]) -> bytes:
    """The same with the checksum that fits: an attacker can compute it, and a checksum hides the checks behind it."""
    try:
        body = json.loads(text)
        del body["sha256"]
        signature = digest(body)
        # The text stays as it is: what JSON cannot say twice the same way is what is looked for.
        start = text.rindex(b'"sha256"')
        return text[:start] + b'"sha256": "' + signature.encode() + b'"}'
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError):
        return text
