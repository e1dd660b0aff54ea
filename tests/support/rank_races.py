"""What two ranks of a training may do to each other, by accident or not: `raced` does one of these on rank 1.

A race is `right` where the run must be that of undisturbed ranks; elsewhere it is one error on both.
"""

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rank_life import ROWS, classified, facts, plan_of, subject
from torch import Tensor, nn

from decrescendo import distributed
from decrescendo.training import Checkpoints, Run, Trainer, train
from decrescendo.training.processes.world import World


class Wordless(Exception):
    """An error whose words are an error."""

    def __str__(self) -> str:
        raise ValueError("no words")


class Slow(torch.utils.data.Dataset[Any]):
    """Examples that are read by another process, which fails or dies in it."""

    def __init__(self, columns: tuple[Tensor, Tensor], how: str) -> None:
        self.columns, self.how = columns, how

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        if torch.utils.data.get_worker_info() is not None and self.how == "an error in a worker":
            raise LookupError("no such file")
        if torch.utils.data.get_worker_info() is not None and self.how == "a worker that dies":
            os._exit(3)
        return self.columns[0][index], self.columns[1][index]


def race_told(race: str, workers: int) -> tuple[str, str, Any]:
    """`raced`: the error, its words, and facts of the run."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background has not
    multiprocessing.set_start_method("fork", force=True)  # as ranks of torchrun start those that load data
    try:
        return "", "", raced(race, workers)
    except BaseException as error:
        said = ""
        with contextlib.suppress(Exception):
            said = str(error)
        return type(error).__name__, said, None


def raced(race: str, workers: int) -> dict[str, Any]:
    """A training of six steps in which rank 1 does something else."""
    odd = os.environ["RANK"] == "1"
    short = race in ("a stopped rank", "a collective of its own")
    world = distributed.join(timeout=3 if short else 60, compare_every=2 if race == "other comparisons" and odd else 3)
    model, loss, columns = subject("CNN")
    data: Any = columns
    options: dict[str, Any] = {}
    if race == "more threads" and odd:
        torch.set_num_threads(2)
    if race == "another default dtype" and odd:
        torch.set_default_dtype(torch.float64)
    if race == "another default dtype":
        columns = data = columns[0].double(), columns[1]
    if race == "one label" and odd:
        data = columns[0], columns[1].clone()
        data[1][17] = (data[1][17] + 1) % 3
    if race == "two rows changed places" and odd:
        order = torch.arange(ROWS)
        order[[3, 4]] = order[[4, 3]]
        data = tuple(column[order] for column in columns)
    if race in ("an error in a worker", "a worker that dies"):
        data, options["num_workers"] = Slow(columns, race if odd else ""), workers
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    folder, kept = Path(tempfile.mkdtemp()), {"scheduler": schedule}
    if race == "no folder":
        options["checkpoints"] = Checkpoints(folder if not odd else folder / "not" / "here", every=2, also=kept)
    if race == "other checkpoints":
        options["checkpoints"] = Checkpoints(folder, every=3 if odd else 2, also=kept)
    steps = 0

    def odd_loss(model: nn.Module, batch: Any) -> Tensor:
        if odd and steps == 2:
            if race == "Ctrl-C":
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(1)
            if race == "sys.exit":
                sys.exit(3)
            if race == "an error without words":
                raise Wordless
            if race == "a stopped rank":
                stop_for(5.0)
        if race == "bf16 on one" and odd:
            with torch.autocast("cpu", torch.bfloat16):
                return loss(model, batch).double()
        return loss(model, batch)

    def after(progress: Any) -> None:
        nonlocal steps
        steps = progress.step
        if race == "a collective of all":
            dist.all_reduce(torch.ones(1))
        if race == "evaluation on one" and not odd:
            model.eval()
            with torch.no_grad():
                loss(model, columns)
            model.train()
            time.sleep(0.2)
        if race == "global generators" and odd:
            torch.manual_seed(steps)
        if steps != 2 or not odd:
            return
        if race == "a collective of its own":
            dist.all_reduce(torch.ones(1))
        if race == "Ctrl-C between steps":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        if race == "the group destroyed":
            dist.destroy_process_group()
        if race == "joined again":
            assert distributed.join(timeout=60, compare_every=3) is world
        if race == "another thread":
            thread = threading.Thread(target=asks, args=(world,))
            thread.start()
            thread.join()
        if race == "a child process":
            child(world)
        if race == "a schedule on one":
            schedule.step()

    if race == "a world forgotten":
        other = distributed.join(timeout=59, compare_every=3)
        if odd:
            del other
            gc.collect()
        distributed.join(timeout=59, compare_every=3).agree(dict)
    if race in ("trainers in another order", "two iterators", "two draws"):
        return loops(race, world, odd)
    with torch.no_grad() if race == "without gradients" and odd else contextlib.nullcontext():
        run: Run = train(
            model,
            odd_loss,
            data,
            plan_of("dynamic"),
            optimizer,
            seed=3,
            world=world,
            callback=after,
            **options,
        )
    if race == "saved on one" and odd:
        run.save(folder / "run")
    return facts(run)


def stop_for(seconds: float) -> None:
    """SIGSTOP, and SIGCONT from a child that is left behind."""
    parent = os.getpid()
    if not os.fork():
        for number in range(3, 256):  # the connections
            with contextlib.suppress(OSError):
                os.close(number)
        time.sleep(seconds)
        os.kill(parent, signal.SIGCONT)
        os._exit(0)
    os.kill(parent, signal.SIGSTOP)


def asks(world: World) -> None:
    with contextlib.suppress(Exception):
        world.agree(dict)


def child(world: World) -> None:
    """A fork must not speak for this rank."""
    process = os.fork()
    if not process:
        try:
            world.agree(dict)
        except Exception as error:
            os._exit(0 if "in the process that joined it" in str(error) else 1)
        os._exit(1)
    assert os.waitpid(process, 0)[1] == 0


def loops(race: str, world: World, odd: bool) -> dict[str, Any]:
    """Loops of one's own."""
    held: list[tuple[Trainer, Iterator[Any]]] = []
    _, _, data = subject("CNN")
    for _ in range(2):
        model, _, _ = subject("CNN")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        trainer = Trainer(model, classified, plan_of("dynamic"), optimizer, seed=3, world=world)
        held.append((trainer, trainer.batches(data)))
    trainer, batches = held[0]
    if race == "trainers in another order":
        for one, others in reversed(held) if odd else held:
            one.step(next(others))
    for _ in range(2):
        trainer.step(next(batches))
    if race == "two iterators" and odd:
        batches = trainer.batches(data)
    if race == "two draws" and odd:
        next(batches)
    trainer.step(next(batches))
    return {}
