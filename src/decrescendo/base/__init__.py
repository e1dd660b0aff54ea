"""Tools that all packages share: files written all or nothing, sealed JSON, random streams, optional packages.

======================================  ============================================================================
`Streams`, `Secure`, `Seeds`            random numbers by purpose: repeatable, or unpredictable
`Keystream`                             a stream of bits from a key: the noise of a run with a seed
`sealed`, `strict_json`, `write_whole`  JSON with a checksum, JSON read strictly, files written all or nothing
`require`                               an optional package, or the command that installs it
`markdown`                              tables that can be read as text
======================================  ============================================================================
"""

from decrescendo.base import markdown, sealed, strict_json
from decrescendo.base.extras import require
from decrescendo.base.rng import Keystream, Secure, Seeds, Streams
from decrescendo.base.whole_file import read_whole, write_whole

__all__ = [
    "Keystream",
    "Secure",
    "Seeds",
    "Streams",
    "markdown",
    "read_whole",
    "require",
    "sealed",
    "strict_json",
    "write_whole",
]
