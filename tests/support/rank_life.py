"""What a rank does in the tests of `decrescendo.distributed`: trainings, and mistakes in them."""

import contextlib
import copy
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch._dynamo  # what a first pass loads, once for all ranks
from architectures import ARCHITECTURES
from banded_plans import banded_plan
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.utils.data import default_collate

import decrescendo.optim.noise
import decrescendo.training.processes.world
from decrescendo import distributed
from decrescendo.accounting import RenyiFilter
from decrescendo.accounting.budget import Budget, Guarantee, Unit
from decrescendo.base.batches import map_rows
from decrescendo.base.rng import Secure
from decrescendo.clipping import EngineSettings, Telemetry
from decrescendo.distributed.sharded import Shards
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import PoissonSampling, RandomAllocation
from decrescendo.plans.schedule import Schedule
from decrescendo.training import Adaptive, Checkpoints, Run, Store, Trainer, digits, train
from decrescendo.training.processes.world import Alone, World, weight_facts
from decrescendo.training.run import versions
from decrescendo.training.steering import ClipController, Settings, ValidationDecay

ROWS, STEPS = 40, 6
# Here it matters what ranks do with a plan, not what it costs.
STAND_IN = Guarantee(1.0, 1e-5, Unit.EXAMPLE, "nobody", "estimate")


class Cnn(nn.Module):
    """Two convolutions, with dropout if asked for."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Tanh(), nn.AvgPool2d(2), nn.Dropout(dropout),
            nn.Conv2d(4, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)

    def scores(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Tied(nn.Module):
    """An embedding that is its output layer, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.middle, self.out = nn.Embedding(11, 7), nn.Linear(7, 7), nn.Linear(7, 11, bias=False)
        self.out.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.middle(self.table(x).mean(1))))


def classified(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def subject(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Any, Any]:
    """Model, loss and data; the same in every process."""
    if name == "ragged":
        with torch.random.fork_rng():
            torch.manual_seed(0)
            items = [{"x": torch.randn(3 + row % 3, 5, dtype=dtype)} for row in range(ROWS)]
            return (
                nn.Linear(5, 2).to(dtype),
                lambda model, batch: model(batch["x"]).square().mean((1, 2)),
                items,
            )
    if name == "tied":
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return Tied().to(dtype), classified, (torch.randint(11, (ROWS, 6)), torch.randint(11, (ROWS,)))
    if name != "CNN":
        architecture = ARCHITECTURES[name]
        model, data = architecture.make(dtype, ROWS)
        return model, architecture.loss, data
    with torch.random.fork_rng():
        torch.manual_seed(0)
        data = torch.randn(ROWS, 1, 8, 8, dtype=dtype), torch.randint(3, (ROWS,))
        return Cnn().to(dtype), classified, data


def plan_of(kind: str, batch: float = 8.0) -> Plan | Adaptive | ClipController:
    sampling = PoissonSampling(ROWS, batch, 6 if kind == "cut" else None)
    if kind == "quantile":
        noise = Schedule(np.linspace(1.5, 0.8, STEPS), np.full(STEPS, 0.7))
        plan = Plan(Budget(1.0, 1e-5), sampling, noise, STAND_IN)
        return ClipController(plan, rescale_to_unit_norm=True)
    if kind == "adaptive":
        scores: Iterator[float] = iter([0.5, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6])
        policy = ValidationDecay(
            lambda model: next(scores) + 0 * float(sum(p.detach().sum() for p in model.parameters())),
            noise_multiplier=2.0,
            clip_norm=0.5,
            decay=0.8,
            threshold=0.01,
            period=1,
        )
        return Adaptive(sampling, RenyiFilter(Budget(3.0, 1e-4), order=8), policy, STEPS)
    if kind == "banded":
        return banded_plan(STEPS, 3, records=ROWS, batch=batch, clip=0.7, guarantee=STAND_IN)
    noise = np.linspace(1.5, 0.8, STEPS) if kind == "dynamic" else np.full(STEPS, 1.0)
    clip = np.linspace(1.0, 0.3, STEPS) if kind == "dynamic" else np.full(STEPS, 0.7)
    if kind == "once":
        return Plan(Budget(1.0, 1e-5), RandomAllocation(ROWS, STEPS), Schedule(noise, clip), STAND_IN)
    return Plan(Budget(1.0, 1e-5), sampling, Schedule(noise, clip), STAND_IN)


def facts(run: Run) -> dict[str, Any]:
    """Of a run, as plain values."""
    return {
        "weights": {name: value.numpy() for name, value in run.weights.items()},
        "ledger": [
            run.ledger.sample_rate.tolist(),
            run.ledger.noise_multiplier.tolist(),
            run.ledger.count.tolist(),
            run.ledger.overflow.tolist(),
            run.ledger.steps_per_epoch.tolist(),
        ],
        "clip_norm": run.clip_norm,
        "stopped": run.stopped,
        "telemetry": [reading.sums for reading in run.telemetry],
        "examples": None if run.diagnostics is None else run.diagnostics.examples,
        "resumed": run.provenance.resumed if run.provenance else (),
    }


def trained(
    name: str = "CNN", kind: str = "dynamic", wide: bool = True, batch: float = 8.0, folder: str = "",
    kill: tuple[int, int, bool] | None = None, seed: int = 3, secure: bool = False, items: bool = False,
    shard: str = "", workers: int = 0, microbatch: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """One training. ``kill`` says which rank dies after which step: at once, or in the pass of the next step. ``shard``
    says what `fully_shard` is called for: "base" (what is frozen), "all"; "copies" are two of two parts each. Then the
    model is evaluated between steps, too."""
    world = distributed.join(timeout=60)
    model, loss, data = subject(name, torch.float64 if wide else torch.float32)
    if items:
        data = list(zip(*data, strict=True))
    if shard:
        put_in_parts(model, shard, world.size)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=0.01) if folder else torch.optim.SGD(parameters, lr=0.5, momentum=0.9)
    also = {"decay": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)}
    checkpoints = Checkpoints(folder, every=2, resume=True, also=also) if folder else None
    who, when, later = kill or (-1, -1, False)
    taken = 0

    def die() -> None:
        if world.rank == who and taken == when:
            os.kill(os.getpid(), signal.SIGKILL)

    def seen(model: nn.Module, batch: Any) -> Tensor:
        if later:
            die()
        return loss(model, batch)

    def after(progress: Any) -> None:
        nonlocal taken
        taken = progress.step
        if not later:
            die()
        if shard:
            with torch.no_grad():
                listed = isinstance(data, list)
                loss(model, default_collate([data[0]]) if listed else map_rows(lambda rows: rows[:2], data))
        also["decay"].step()

    run = train(
        model, seen, data, plan_of(kind, batch), optimizer, seed=Secure() if secure else seed, world=world,
        checkpoints=checkpoints, callback=after, num_workers=workers,
        settings=None if microbatch is None else EngineSettings(microbatch_size=microbatch),
        telemetry=Telemetry(norms=5, loss=True) if kind == "quantile" else None,
    )  # fmt: skip
    return facts(run)


def of_a_method() -> dict[str, Any]:
    """A training whose loss calls another method than forward, which gathers parts as forward does."""
    world = distributed.join(timeout=60)
    model, _, data = subject("CNN")
    if world.size > 1:
        put_in_parts(model, "all", world.size)
        register_fsdp_forward_method(model, "scores")
    before = dict(vars(model))

    def after(progress: Any) -> None:
        with torch.no_grad():
            cast("Any", model).scores(data[0][:2])

    run = train(
        model, lambda model, batch: nn.functional.cross_entropy(model.scores(batch[0]), batch[1], reduction="none"),
        data, plan_of("dynamic"), torch.optim.SGD(model.parameters(), lr=0.5), seed=3, world=world, callback=after,
    )  # fmt: skip
    assert vars(model).get("scores") is before.get("scores")
    return facts(run)


def two_at_once(shard: str = "") -> list[dict[str, Any]]:
    """Two trainings that take their steps in turn; of the first each rank has parts."""
    world = distributed.join(timeout=60)
    held: list[tuple[Trainer, Iterator[Any]]] = []
    for cut in (shard, ""):
        model, loss, data = subject("CNN")
        if cut:
            put_in_parts(model, cut, world.size)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        trainer = Trainer(model, loss, plan_of("dynamic"), optimizer, seed=3, world=world)
        held.append((trainer, trainer.batches(data)))
    for _ in range(STEPS):
        for trainer, batches in held:
            trainer.step(next(batches))
    return [facts(trainer.finish()) for trainer, _ in held]


def assumptions_of(what: str, who: int, shard: str = "", items: bool = False) -> tuple[str, ...]:
    """What the run of each rank assumes where rank ``who`` does ``what`` between steps; the model is evaluated there,
    too."""
    world = distributed.join(timeout=60)
    model, loss, data = subject("CNN")
    rows = list(zip(*data, strict=True)) if items else data
    if shard:
        put_in_parts(model, shard, world.size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    used = loss
    if what == "rank":
        used = lambda model, batch: loss(model, batch) * (1.0 + torch.distributed.get_rank())  # noqa: E731
    if what == "column":
        rows = (*data, data[1].flip(0))
        used = lambda model, batch: loss(model, (batch[0], batch[1 + torch.distributed.get_rank()]))  # noqa: E731
    trainer = Trainer(model, used, plan_of("dynamic"), optimizer, seed=3, world=world)
    for number, batch in enumerate(trainer.batches(rows)):
        if what == "rows" and world.rank == who and batch is not None:
            batch[0].data.sub_(batch[0].mean(0))
        if what == "weights" and number == 1:
            first = next(model.parameters()).data
            cast("Any", first if not shard else cast("Any", first).to_local()).neg_()
        trainer.step(batch)
        with torch.no_grad():
            loss(model, map_rows(lambda column: column[:2], data))
    return trainer.finish().assumptions


def put_in_parts(model: nn.Module, what: str, size: int) -> None:
    """`fully_shard` on blocks where there are some, else on what has parameters of its own; and on the model."""
    copies = what == "copies"
    mesh = torch.distributed.init_device_mesh(
        "cpu", (2, size // 2) if copies else (size,), mesh_dim_names=("copy", "part") if copies else ("part",)
    )
    if isinstance(model, Tied):
        fully_shard([model.table, model.out], mesh=mesh)
    trained = {p for p in model.parameters() if p.requires_grad} if what == "base" else None
    blocks = [module for name, module in model.named_modules() if name.split(".")[-2:-1] == ["h"]]
    for block in blocks or [m for m in model.modules() if next(m.parameters(recurse=False), None) is not None]:
        if block is not model and not isinstance(block, FSDPModule):
            fully_shard(block, mesh=mesh, ignored_params=trained)
    fully_shard(model, mesh=mesh, ignored_params=trained)


def digits_life(folder: str, steps: int, bands: int = 1) -> tuple[str, list[float]]:
    """One life of a training on the digits, with a store and checkpoints; each step is noted when it was seen."""
    world = distributed.join(timeout=60)
    sampling = PoissonSampling(1438, 64)
    plan = Plan(Budget(1.0, 1e-5), sampling, Schedule(np.linspace(2, 1, steps), np.full(steps, 0.5)), STAND_IN)
    if bands > 1:
        plan = banded_plan(steps, bands, records=1438, batch=64, clip=0.5, guarantee=STAND_IN)
    model = digits.digits_cnn(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    trainer = Trainer(
        model, classified, plan, optimizer, seed=0, world=world, store=Store(Path(folder) / "store.db"),
        scheduler=scheduler, checkpoints=Checkpoints(Path(folder) / "checkpoints", 5, resume=True),
    )  # fmt: skip
    with (Path(folder) / f"seen-{world.rank}").open("a") as noted:
        for batch in trainer.batches(digits.digits()[0]):
            taken = trainer.step(batch).step
            noted.write(f"{taken}\n")
            noted.flush()
    run = trainer.finish()
    return str(weight_facts(model)), run.ledger.noise_multiplier.tolist()


def banded_life(folder: str, steps: int = 14) -> tuple[str, list[float]]:
    """One life of a small training with correlated noise, in one process; each step is noted when it was seen."""
    torch.manual_seed(0)
    rows, model = torch.randn(ROWS, 5), nn.Linear(5, 2)
    plan = banded_plan(steps, 4, records=ROWS, guarantee=STAND_IN)
    with (Path(folder) / "seen").open("a") as noted:

        def after(progress: Any) -> None:
            noted.write(f"{progress.step}\n")
            noted.flush()
            time.sleep(0.02)  # some kills hit a step, others what is between

        run = train(
            model, lambda model, batch: model(batch).square().sum(1), rows, plan,
            torch.optim.Adam(model.parameters(), lr=0.1), seed=3, callback=after,
            checkpoints=Checkpoints(Path(folder) / "checkpoints", 2, resume=True),
        )  # fmt: skip
    return str(weight_facts(model)), run.ledger.noise_multiplier.tolist()


def joined(late: float = 0.0) -> int:
    """Join, and meet once; rank 0 comes ``late`` seconds after the others. The store outlives the ranks."""
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    if os.environ["RANK"] == "0":
        time.sleep(late)
    world = distributed.join(timeout=30)
    return world.draw(lambda: {"met": os.getpid()})["met"]


def waits() -> None:
    """For ever."""
    while True:
        time.sleep(60)


def noises(seed: int = 0, scale: float = 1.0, shard: str = "") -> list[float]:
    """The variance of the noise of some steps over many coordinates, in units of (z C)^2; all gradients are zero.

    With another ``scale`` the noise is that much of what it should be.
    """
    world = distributed.join(timeout=60)
    if scale != 1.0:
        whole = decrescendo.optim.noise._noise_std
        decrescendo.optim.noise._noise_std = lambda z, sensitivity: scale * whole(z, sensitivity)
    model = nn.Linear(300, 100, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    if shard:
        put_in_parts(model, shard, world.size)
    noise, clip, rate = 2.0, 0.5, 0.02
    plan = Plan(Budget(1.0, 1e-5), PoissonSampling(ROWS, rate * ROWS), Schedule([noise] * 4, [clip] * 4), STAND_IN)
    trainer = Trainer(
        model, lambda model, batch: 0 * model(batch)[:, 0], plan, torch.optim.SGD(model.parameters(), lr=1.0),
        seed=seed, world=world,
    )  # fmt: skip
    found: list[float] = []
    for batch in trainer.batches(torch.zeros(ROWS, 300)):
        before = all_of(model.weight).clone()
        trainer.step(batch)
        moved = (before - all_of(model.weight)) * plan.sampling.expected_batch_size / (noise * clip)
        found.append(float(moved.square().mean()))
    return found


def all_of(parameter: Tensor) -> Tensor:
    """All of a parameter, of which this rank may have a part."""
    value: Any = parameter.detach()
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def remembered(what: str, blocks: int = 32, width: int = 16) -> int:
    """The most bytes of parameters and of their sums, in parts and whole, that this rank had at once in two steps."""
    world = distributed.join(timeout=60)
    mesh = torch.distributed.init_device_mesh("cpu", (world.size,))
    layers = [fully_shard(nn.Linear(width, width).requires_grad_(what == "all"), mesh=mesh) for _ in range(blocks)]
    model = nn.Sequential(*layers, nn.Linear(width, 2))
    peak, go_round = 0, Shards._round

    def counted(self: Shards, need: Any, index: int = 0, total: Tensor | None = None) -> list[int]:
        nonlocal peak
        said = go_round(self, need, index, total)
        tensors = [part.to_local() for block in self._blocks for part in block.parts.values()]
        tensors += [whole for block in self._blocks for whole in block.whole.values()]
        tensors += [*self._sums.values(), *([] if total is None else [total])]
        peak = max(peak, sum(tensor.untyped_storage().nbytes() for tensor in tensors))
        return said

    Shards._round = counted
    torch.manual_seed(0)
    trainer = Trainer(
        model, lambda model, batch: model(batch).square().sum(1), plan_of("constant"),
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01), seed=3, world=world,
    )  # fmt: skip
    batches = trainer.batches(torch.randn(ROWS, width))
    for _ in range(2):
        trainer.step(next(batches))
    return peak


def masks() -> dict[str, Any]:
    """The dropout masks that each rank draws for equal rows."""
    world = distributed.join(timeout=60)
    drawn: list[Tensor] = []

    class Sees(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 1)

        def forward(self, x: Tensor) -> Tensor:
            dropped = nn.functional.dropout(x, 0.5)
            drawn.append((dropped != 0).detach())
            return self.layer(dropped)

    torch.manual_seed(0)
    model = Sees()
    plan = plan_of("constant", batch=ROWS)
    trainer = Trainer(
        model, lambda model, batch: model(batch)[:, 0], plan, torch.optim.SGD(model.parameters(), lr=0.1),
        seed=3, world=world,
    )  # fmt: skip
    kept: list[Any] = []
    for batch in trainer.batches(torch.ones(ROWS, 64)):
        drawn.clear()
        trainer.step(batch)
        kept.append(drawn[-1].numpy())
    return {"masks": kept}


def talked(name: str = "CNN") -> dict[str, Any]:
    """Bytes that a step sends by each operation, as handed to torch.distributed."""
    import torch.distributed as dist

    world = distributed.join(timeout=60)
    whole = {operation: getattr(dist, operation) for operation in ("reduce", "broadcast", "all_gather")}
    sent = dict.fromkeys([*whole, "calls"], 0)

    def counted(operation: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            tensor = args[1] if operation == "all_gather" else args[0]
            sent[operation] += tensor.numel() * tensor.element_size()
            sent["calls"] += 1
            return whole[operation](*args, **kwargs)

        return call

    model, loss, data = subject(name, torch.float32)
    trainer = Trainer(
        model, loss, plan_of("constant"), torch.optim.SGD(model.parameters(), lr=0.1), seed=3, world=world
    )
    steps: list[dict[str, int]] = []
    for operation in whole:
        setattr(dist, operation, counted(operation))
    batches = trainer.batches(data)
    while True:
        sent.update(dict.fromkeys(sent, 0))
        batch = next(batches, "over")
        if isinstance(batch, str):
            break
        trainer.step(batch)
        steps.append(dict(sent))
    for operation, call in whole.items():
        setattr(dist, operation, call)
    numbers = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return {"steps": steps, "numbers": numbers}


# ---- mistakes: what one rank does otherwise than the others ----


def mistaken(mistake: str) -> dict[str, Any]:
    """A training in which rank 1 does something else."""
    world = distributed.join(timeout=3 if mistake == "a rank that never comes" else 60, compare_every=2)
    odd = world.rank == 1
    model, loss, columns = subject("CNN")
    plan: Any = plan_of("dynamic")
    data: Any = columns
    given: World | None = world
    options: dict[str, Any] = {"seed": 3}
    lr = 0.5
    if mistake == "another plan" and odd:
        plan = plan_of("constant")
    if mistake == "another filter" and odd:
        plan = Adaptive(plan.sampling, RenyiFilter(Budget(1.0, 1e-4), 8), lambda seen: Settings(2.0, 1.0), STEPS)
    if mistake == "another number of rows" and odd:
        data = data[0][:20], data[1][:20]
    if mistake == "other rows" and odd:
        data = data[0].flip(0), data[1].flip(0)
    if mistake.startswith("other weights") and odd:
        with torch.no_grad():
            next(model.parameters()).add_(1e-3)
    if mistake == "another width" and odd:
        model.layers[7] = nn.Flatten()
        model.layers[8] = nn.Linear(16, 4).double()
    if mistake == "other frozen parameters" and odd:
        model.layers[8].bias.requires_grad_(False)
    if mistake == "another dtype" and odd:
        model, data = model.float(), (data[0].float(), data[1])
    if mistake == "evaluation mode on one" and odd:
        model.eval()
    if mistake == "another step length" and odd:
        lr = 0.25
    found = versions() | ({"torch": "1.0.0"} if mistake == "another version" and odd else {})
    decrescendo.training.processes.world.versions = lambda: found
    if mistake == "other engine settings" and odd:
        options["settings"] = EngineSettings(accumulate="float64")
    if mistake == "another kind of seed" and odd:
        options["seed"] = Secure()
    if (mistake == "checkpoints on one" and odd) or mistake == "an error in the callback, in parts":
        import tempfile

        options["checkpoints"] = Checkpoints(tempfile.mkdtemp(), every=1)
    if mistake == "DDP":
        model = nn.parallel.DistributedDataParallel(model)
    if mistake == "DDP on one" and odd:
        model = nn.parallel.DataParallel(model)
    if mistake == "a loader that is sharded":
        rows = torch.utils.data.TensorDataset(*data)
        sampler = torch.utils.data.DistributedSampler(rows, world.size, world.rank)
        data = torch.utils.data.DataLoader(rows, sampler=sampler, batch_size=4)
    if mistake == "rows that are sharded":
        data = data[0][world.rank :: world.size], data[1][world.rank :: world.size]
    if "in parts" in mistake:
        put_in_parts(model, "all", world.size)
    if mistake == "tensor parallelism":
        mesh = torch.distributed.init_device_mesh("cpu", (world.size,))
        parallelize_module(model, mesh, {"layers.8": ColwiseParallel()})
    if mistake == "parts in another precision":
        fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float32))
    if mistake == "alike, in an old torch":
        model.layers.append(nn.Linear(3, 3).double())
        model.layers.append(copy.deepcopy(model.layers[9]))
        put_in_parts(model, "all", world.size)
        for module in model.modules():
            group = fully_shard.state(module)._fsdp_param_group if isinstance(module, FSDPModule) else None
            if group is not None:
                for held in group.fsdp_params:
                    with contextlib.suppress(AttributeError):  # torch before 2.12 has none
                        del held._orig_param_uid
    if mistake == "a tied parameter cut in two":
        model.layers.append(nn.Linear(3, 3).double())
        model.layers.append(nn.Linear(3, 3).double())
        model.layers[10].weight = model.layers[9].weight
        fully_shard(model.layers[9])
        fully_shard(model)
    if mistake == "cut on one rank":
        mesh = torch.distributed.init_device_mesh("cpu", (world.size,))
        if not odd:
            fully_shard(model, mesh=mesh)
    if "in copies" in mistake:
        put_in_parts(model, "copies", world.size)
    if mistake == "parts in another order":
        fully_shard(model, mesh=DeviceMesh("cpu", list(reversed(range(world.size)))))
    if mistake.startswith("no world"):
        given = None
    if mistake == "Alone on one" and odd:
        given = Alone()
    if mistake == "something else as world" and odd:
        given = "gloo"  # type: ignore[assignment]

    passes = 0

    def failing(model: nn.Module, batch: Any) -> Tensor:
        nonlocal passes
        passes += 1
        if mistake.startswith("an error in the loss") and odd and passes > 4:
            raise ZeroDivisionError("a mistake in the loss")
        if mistake.startswith("killed in a step") and odd and passes > 4:
            os.kill(os.getpid(), signal.SIGKILL)
        if mistake == "a loss that mixes examples" and odd and passes > 4:
            return loss(model, batch) + loss(model, batch).mean()
        return loss(model, batch)

    class Fails(torch.utils.data.Dataset[Any]):
        reads = 0

        def __len__(self) -> int:
            return ROWS

        def __getitem__(self, index: int) -> Any:
            self.reads += 1
            if odd and self.reads > 2 * 8:
                raise OSError("a disk that fails")
            return columns[0][index], columns[1][index]

    def after(progress: Any) -> bool | None:
        if mistake.startswith("an error in the callback") and odd and progress.step == 2:
            raise KeyError("nothing of that name")
        if mistake == "an error in an evaluation, in parts" and progress.step == 2:
            if odd:
                raise KeyError("nothing of that name")
            model(columns[0])
        if mistake.startswith("frozen on one") and odd and progress.step == 1:
            model.layers[8].bias.requires_grad_(False)
        if mistake == "weights changed by hand" and odd and progress.step == 2:
            with torch.no_grad():
                next(model.parameters()).mul_(1.01)
        return mistake.startswith("an end of its own") and odd and progress.step == 3

    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr)
    if mistake == "parts made after the optimiser":
        put_in_parts(model, "all", world.size)
    if mistake == "another optimiser" and odd:
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    if mistake in ("rows left out", "a batch not given", "an end of its own loop"):
        trainer = Trainer(model, loss, plan, optimizer, seed=3, world=world)
        for number, batch in enumerate(trainer.batches(data)):
            if odd and number == 2 and mistake == "an end of its own loop":
                break
            if odd and number == 2 and mistake == "a batch not given":
                continue
            if odd and mistake == "rows left out" and batch is not None:
                batch = batch[0][1:], batch[1][1:]
            trainer.step(batch)
        return facts(trainer.finish())
    if mistake.startswith("trainings in another order"):
        other, _, _ = subject("CNN")
        pair = [
            Trainer(one, loss, plan, torch.optim.SGD(one.parameters(), lr=lr), seed=3, world=world)
            for one in (model, other)
        ]
        drawn = [next(trainer.batches(data)) for trainer in pair]
        for at in (1, 0) if odd and not mistake.endswith("finished") else (0, 1):
            pair[at].step(drawn[at])
        return facts(pair[int(odd)].finish())
    if mistake == "another code of the loss":
        reads = (lambda model, batch: loss(model, (batch[0], batch[-1])),
                 lambda model, batch: loss(model, (batch[0], batch[1])))[odd]  # fmt: skip
        return facts(train(model, reads, data, plan, optimizer, world=world, seed=3))
    if mistake == "a disk that fails":
        data = Fails()
    return facts(train(model, failing, data, plan, optimizer, world=given, callback=after, **options))
