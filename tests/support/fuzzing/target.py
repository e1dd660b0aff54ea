"""What is fuzzed: something that reads files, with files that it should read."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzzing.decisions import Decisions
from fuzzing.mutations import mutated_bytes, mutated_json

# By name; a name may have folders in it.
Files = dict[str, bytes]


@dataclass(frozen=True)
class Target:
    """One reader.

    Args:
        name: of the format.
        seeds: whole sets of files that it reads.
        read: the files in a folder into a value that compares, using everything that a user would look at.
        again: writes a value and reads it back; ``None`` where nothing writes this format.
        sign: gives changed files the checksums that fit.
        bend: a change that knows the format, in place of the usual ones.
    """

    name: str
    seeds: Callable[[], list[Files]]
    read: Callable[[Path], Any]
    again: Callable[[Any, Path], Any] | None = None
    sign: Callable[[Files], Files] = lambda files: files
    bend: Callable[[Files, Decisions], Files] | None = None
    # Files that are there to be locked, whatever is in them.
    locks: frozenset[str] = frozenset()
    # Whether an accepted input may leave new files.
    writes: bool = False

    def files(self, data: bytes) -> Files:
        """The input that these bytes stand for; no bytes, the first seed unchanged."""
        choose = Decisions(data)
        seeds = self.seeds()
        files = dict(choose.pick(seeds))
        for _ in range(1 + choose.below(3) if choose.left else 0):
            name = choose.pick(sorted(files))
            what = choose.below(8)
            if what <= 3:
                files[name] = mutated_json(files[name], choose)
            elif what == 4:
                others = [content for seed in seeds for content in seed.values()]
                files[name] = mutated_bytes(files[name], choose, others)
            elif what == 5:
                files[name] = choose.rest()
            elif self.bend is not None:
                files = self.bend(files, choose)
            elif what == 6:
                files.pop(name)
                if not files:
                    break
        return self.sign(files) if choose.below(4) else files
