"""`EngineSettings`: speed, memory, declarations and the clipping function of an engine."""

from dataclasses import dataclass
from typing import Literal

from decrescendo.errors import InvalidValue, check_instance, check_integer, check_real

_OF_BATCHES = ("memory", "microbatch_size", "cache_bytes", "memory_limit", "declared", "capture")
_DEFAULTS = ("auto", "normal")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings for time and memory. None changes a guarantee, and only ``gamma`` a result by more than rounding;
    but dropout masks are others where a batch is split into other parts.

    Args:
        microbatch_size: at most this many examples at once; ``None`` for the whole batch.
        declared: lines of code (``"modeling.py:12"``) or files of which you declare that what they read of the data
            in Python (``.item()``, ``if``) steers nothing in a way that depends on several examples. Each that is
            met is listed in the run's assumptions.
        cache_bytes: at most so many bytes of per-example gradients, of all operations together, are kept from the
            norm to the sum; what does not fit is computed twice. ``None``: 128 MiB on a CPU, an eighth of its memory
            on a GPU, where only what is needed is allocated, and less where memory runs out.
        memory_limit: bytes that a `clipped_sum` may take at its peak beyond the model and the batch. The
            engine measures what the first micro-batches take and cuts batches so that it is kept;
            ``None`` for no limit.
        accumulate: with ``"float64"`` everything is measured and summed in float64 after the backward pass, and
            the sum is stored so. Then the whole sum is proven to move by at most C, not each example's part of it
            alone: see docs/explanation/rounding.md. Slower; the noise hides the difference from all but an adversary
            who picks the data for it.
        capture: replay the operations of a checked pass over as many examples, in which Python takes no part (on a GPU
            a `torch.cuda.CUDAGraph`). ``"auto"``: where that takes less time, which is measured in the first steps, and
            where it can be done; else passes run in Python, and `Engine.passes` says why. ``True``: wherever it can be
            done, with a warning where not. ``False``: never. A replay runs the checked operations, and what the check
            compared is compared again; on a CPU its sums are those of a pass in Python to the bit. Where what the model
            and the loss store in Python has changed (a weight of the loss, from epoch to epoch), the pass runs in
            Python. A clock, a file or the environment is read when a pass is captured, and not again:
            `Engine.assumptions` then has ``replayed-passes`` (no run lists it: the guarantee holds all the same).
        noise_on_host: where noise is correlated over b steps (`Plan.bands`), keep that of the last b - 1 steps in the
            host's memory, not on the GPU: slower by their transfer, and the same noise.
        gamma: > 0, automatic clipping (Bu et al. 2023): each gradient g counts as C g / (|g| + gamma), of length
            below C like a clipped one, so that C only scales the learning rate. ``None``: g min(1, C / |g|).

        one_example_a_pass: for models that are refused as a batch (graph networks, detectors, vision-language models,
            SpecAugment): a forward and a backward pass for each example by itself, in which no other example can play a
            part. Slower: docs/how-to/one-example.md, which also says where an example alone has another loss than its
            part of the batch's (class weights, mixup), of which the first steps warn. ``loss`` is given a batch of one,
            and may return a number. A training then takes batches of any form from ``collate_fn``. Settings of passes
            over several examples (``microbatch_size``, ``memory_limit``, ..) must be left out; none is captured.
        memory: ``"low"`` for less memory than by default (``"normal"``), and more time: each batch in two halves, one
            after the other, and half of the default ``cache_bytes``. Other settings of memory that you give hold too.

    Raises:
        InvalidValue, InvalidType: a number out of its range; ``one_example_a_pass`` with settings of other passes.

    >>> EngineSettings(microbatch_size=64).capture
    'auto'
    """

    microbatch_size: int | None = None
    cache_bytes: int | None = None
    memory_limit: int | None = None
    accumulate: Literal["float32", "float64"] = "float32"
    declared: tuple[str, ...] = ()
    gamma: float | None = None
    capture: bool | Literal["auto"] = "auto"
    noise_on_host: bool = False
    one_example_a_pass: bool = False
    memory: Literal["normal", "low"] = "normal"

    def __post_init__(self) -> None:
        if self.memory not in ("normal", "low"):
            raise InvalidValue(f"memory must be 'normal' or 'low', got memory={self.memory!r}")
        if self.microbatch_size is not None:
            check_integer("microbatch_size", self.microbatch_size, at_least=1)
        if self.cache_bytes is not None:
            check_integer("cache_bytes", self.cache_bytes, at_least=0)
        if self.accumulate not in ("float32", "float64"):
            raise InvalidValue(f"accumulate must be 'float32' or 'float64', got {self.accumulate!r}")
        if not isinstance(self.capture, bool) and self.capture != "auto":
            raise InvalidValue(f"capture must be True, False or 'auto', got capture={self.capture!r}")
        if self.memory_limit is not None:
            check_integer("memory_limit", self.memory_limit, at_least=1)
        if self.gamma is not None:
            check_real("gamma", self.gamma, at_least=1e-6)
        check_instance("one_example_a_pass", self.one_example_a_pass, bool)
        given = {name: getattr(self, name) for name in _OF_BATCHES}
        found = [name for name, value in given.items() if value and value not in _DEFAULTS]
        if self.one_example_a_pass and found:
            raise InvalidValue(
                f"{found[0]} must be left out with one_example_a_pass=True, got {found[0]}={given[found[0]]!r}. It is "
                "of passes over several examples"
            )

    @property
    def wide(self) -> bool:
        """Whether sums are made and stored in float64, whatever the parameters are."""
        return self.accumulate == "float64"
