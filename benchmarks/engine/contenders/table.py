"""All contenders by name, in the order of the tables."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.engine.contenders.base import Setting, Step
from benchmarks.engine.contenders.functional import ByHand, Opake
from benchmarks.engine.contenders.jax_privacy import JaxPrivacy
from benchmarks.engine.contenders.opacus import Ghost, PerExample
from benchmarks.engine.contenders.ours import EngineAlone, Ours, OursInLittleMemory, OursInPython
from benchmarks.engine.contenders.plain import Plain


@dataclass(frozen=True, slots=True)
class Contender:
    """A name for readers, the packages whose versions matter, and how it is made ready."""

    title: str
    packages: tuple[str, ...]
    make: Callable[[Setting], Step]
    peer: bool = True


_OURS = ("decrescendo", "torch")

CONTENDERS: dict[str, Contender] = {
    "plain": Contender("plain training", ("torch",), Plain, peer=False),
    "decrescendo": Contender("decrescendo", _OURS, Ours, peer=False),
    "decrescendo-without-noise": Contender("decrescendo, without noise", _OURS, EngineAlone, peer=False),
    "decrescendo-python": Contender("`capture=False`", _OURS, OursInPython, peer=False),
    "decrescendo-low": Contender('`memory="low"`', _OURS, OursInLittleMemory, peer=False),
    "opacus-hooks": Contender("Opacus, hooks", ("opacus", "torch"), partial(PerExample, mode="hooks")),
    "opacus-ghost": Contender("Opacus, ghost", ("opacus", "torch"), Ghost),
    "opacus-ew": Contender("Opacus, expanded weights", ("opacus", "torch"), partial(PerExample, mode="ew")),
    "vmap": Contender("torch.func vmap", ("torch",), ByHand),
    "opake": Contender("opake", ("opake", "torch"), Opake),
    "jax-privacy": Contender("jax-privacy", ("jax-privacy", "jax", "jaxlib"), JaxPrivacy),
}
