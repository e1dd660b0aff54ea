"""Tells whose code a file holds: torch's or this library's, an installed package's, or the user's."""

import functools
import os
import sys
from importlib.util import find_spec
from typing import Any, cast

# Folders of torch, of type checkers and of this library, by full path: a user's folder may have the same name.
_LIBRARIES = tuple(
    os.path.join(os.path.dirname(found.origin), "")
    for found in map(
        find_spec, ("torch", "jaxtyping", "beartype", "decrescendo.clipping", "decrescendo.row_independence")
    )
    if found is not None and found.origin is not None
)
_INSTALLED = tuple(
    os.path.join(os.path.dirname(file), "")
    for file in (os.__file__, os.path.dirname(os.path.abspath(__file__)))
)


@functools.cache
def is_own(filename: str) -> bool:
    """Whether a source file is the user's: not Python's, of an installed package or of this library. Code
    typed into a shell or a notebook has no file (``<stdin>``, ``__main__``) and counts as the user's."""
    named = filename.startswith("<") or filename == "__main__" or os.sep in filename
    return named and not filename.startswith(("<frozen", *_INSTALLED)) and "-packages" not in filename


def line() -> str:
    """The innermost line of code that is neither torch's nor the engine's."""
    frame = cast("Any", sys)._getframe(1)
    while frame is not None and (
        frame.f_code.co_filename.startswith(("<", *_LIBRARIES)) or "__tracebackhide__" in frame.f_locals
    ):
        frame = frame.f_back
    if frame is None:
        return "the model"
    return f"{frame.f_code.co_filename.replace(chr(92), '/').rsplit('/', 1)[-1]}:{frame.f_lineno}"
