"""Saves the position of a random stream, and makes a stream at that position again."""

from typing import Any, TypeVar, cast

import numpy as np

from decrescendo.base.rng import Keystream, SecureStream
from decrescendo.errors import DecrescendoError, FileRefused, within

Stream = TypeVar("Stream", bound=np.random.Generator | SecureStream | Keystream)


def stream_state(stream: np.random.Generator | SecureStream | Keystream) -> dict[str, Any]:
    """The state of a stream; as sensitive as the data."""
    if isinstance(stream, SecureStream):
        return {"kind": "secure", "key": stream.key, "position": stream.position}
    if isinstance(stream, Keystream):
        return {"kind": "keyed", "key": stream.key, "position": stream.position}
    return {"kind": "numpy", "state": dict(stream.bit_generator.state)}


def copied(stream: np.random.Generator | SecureStream) -> np.random.Generator | SecureStream:
    """A copy of a stream at the same position: draws from it do not advance the original."""
    other = np.random.default_rng() if isinstance(stream, np.random.Generator) else stream
    return stream_at(other, stream_state(stream))


def stream_at(stream: Stream, state: dict[str, Any]) -> Stream:
    """A stream of the same kind at the position of a saved state.

    Raises:
        FileRefused: the state is of another kind of stream.
    """
    try:
        if isinstance(stream, np.random.Generator) and state["kind"] == "numpy":
            stream.bit_generator.state = state["state"]
            return stream
        if isinstance(stream, SecureStream) and state["kind"] == "secure":
            return cast("Stream", SecureStream(state["key"], state["position"]))
        if isinstance(stream, Keystream) and state["kind"] == "keyed":
            return cast("Stream", Keystream(state["key"], state["position"]))
    except (KeyError, TypeError, ValueError, RuntimeError, DecrescendoError) as error:
        raise FileRefused(within("a checkpoint must hold the state of a random stream", error)) from None
    raise FileRefused(
        f"a checkpoint must hold a stream of the kind that is asked for, got {state.get('kind')!r}. "
        "Resume with Secure() what was begun with Secure(), and with a number what was begun with a number"
    )
