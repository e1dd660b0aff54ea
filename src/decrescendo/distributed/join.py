"""`join`: this process becomes a rank of a training that ``torchrun`` started."""

import os
import secrets
import time
from datetime import timedelta
from typing import Literal, cast

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, rendezvous

from decrescendo.distributed.group import Group
from decrescendo.errors import InvalidValue, RankLost, check_instance, check_integer, check_real
from decrescendo.training.processes.world import Alone, World

_LEAD = "decrescendo/lead"
_ASKED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Groups by the settings of `join`, kept alive: making a new one would need all ranks to do so.
_KNOWN: dict[object, Group] = {}


def join(
    *, timeout: float = 300.0, compare_every: int = 100, gradients: Literal["gloo", "nccl"] | None = None
) -> World:
    """The world of this process: all ranks that ``torchrun`` started, or `Alone` in a process started without it.

    Args:
        timeout: seconds > 0 to wait for a rank that neither answers nor ends. One that ends is noticed at once.
        compare_every: steps between comparisons of the ranks' weights, >= 1; they are also compared at the end.
        gradients: backend for the sums; ``None``: NCCL if each rank of this machine can have a GPU, else gloo.

    Edge cases:
        a second call with the same settings returns the same world.

    Raises:
        RankLost: not all ranks joined in time.
        InvalidValue: numbers outside their range; ranks without the address of the first.

    >>> join().size
    1
    """
    seconds = check_real("timeout", timeout, above=0)
    every = check_integer("compare_every", compare_every, at_least=1)
    if gradients not in (None, "gloo", "nccl"):
        raise InvalidValue(f"gradients must be 'gloo' or 'nccl', got gradients={gradients!r}")
    joined = dist.is_available() and dist.is_initialized()
    odd = [name for name in ("RANK", "WORLD_SIZE") if not os.environ.get(name, "0").isdecimal()]
    if not joined and odd:
        raise InvalidValue(f"{odd[0]} must be a whole number in the environment, got {os.environ[odd[0]]!r}")
    if not joined and "RANK" not in os.environ and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Alone()
    missing = [name for name in _ASKED if name not in os.environ]
    if not joined and missing:
        raise InvalidValue(
            f"ranks must know of each other, got no {', '.join(missing)} in the environment. Start the script with "
            "torchrun --nproc-per-node N"
        )
    wait = timedelta(seconds=seconds)
    try:
        if not joined:
            store, rank, size = next(iter(rendezvous("env://", timeout=wait)))
            found = PrefixStore(_met(store, rank, size, seconds), store)
            dist.init_process_group("gloo", store=found, rank=rank, world_size=size, timeout=wait)
        nccl = gradients == "nccl" or (gradients is None and _own_gpu())
        known = _KNOWN.get((seconds, every, nccl))
        if known is None or not known.goes_on:
            known = Group(_group("gloo", wait), _group("nccl", wait) if nccl else None, every)
            _KNOWN[seconds, every, nccl] = known
        return known
    except (RuntimeError, ValueError) as error:
        if dist.is_initialized() and not joined:
            dist.destroy_process_group()
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RankLost(
            f"all {os.environ.get('WORLD_SIZE', '')} ranks must come within timeout={seconds:g} s, got fewer ({said}). "
            "Start them all with one torchrun, or raise timeout"
        ) from None


def _met(store: Store, rank: int, size: int, seconds: float) -> str:
    """A random name for this start of the ranks, chosen by rank 0, once all of them run.

    ``torchrun`` restarts ranks with the store of earlier processes, in which torch would find addresses of processes
    that have ended. So each rank chooses a name, and rank 0 answers to it.
    """
    own, end = secrets.token_hex(8), time.monotonic() + seconds
    waiting = set(range(1, size))
    if rank == 0:
        store.set(_LEAD, own)
    while rank or waiting:
        if rank and store.check([_LEAD]):
            lead = store.get(_LEAD).decode()  # may be of an earlier start: then nobody answers
            store.set(f"{lead}/{rank}", own)
            if store.check([f"{lead}/{own}"]):
                return lead
        for other in [other for other in waiting if not rank and store.check([f"{own}/{other}"])]:
            store.set(f"{own}/{store.get(f'{own}/{other}').decode()}", "here")
            waiting.discard(other)
        if time.monotonic() > end:
            raise RuntimeError("rank 0 gives no sign" if rank else f"no sign of ranks {sorted(waiting)}")
        time.sleep(0.01)
    return own


def _group(backend: str, wait: timedelta) -> dist.ProcessGroup:
    """A torch.distributed process group of all ranks."""
    found = dist.new_group(list(range(dist.get_world_size())), timeout=wait, backend=backend)
    check_instance("group", found, dist.ProcessGroup)
    return cast("dist.ProcessGroup", found)


def _own_gpu() -> bool:
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return torch.cuda.is_available() and dist.is_nccl_available() and torch.cuda.device_count() >= here
