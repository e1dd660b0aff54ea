"""What several processes gain: one private training on 1, 2 and 4 of them, beside plain DDP in the same run.

    python -m benchmarks.scaling [--rounds 7]        # writes results/engine/scaling.json and docs/reference/scaling.md

Each process has one thread. *Strong*: 256 expected examples a step, whatever the number of processes; *weak*: 128 for
each of them. Private and plain steps alternate in the same processes; seconds are medians over rounds. CPU time is what
all
processes together took, which other programs on the machine do not change. Bytes are what the loopback interface sent,
in a network namespace of its own where the system lets us make one.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULT, PAGE = ROOT / "results" / "engine" / "scaling.json", ROOT / "docs" / "reference" / "scaling.md"
SIZES, STEPS, ROWS = (1, 2, 4), 4, 4096
# Expected examples a step: for all processes together, and for each.
BATCH = {"strong": (256, 0), "weak": (0, 128)}


def sent() -> int:
    """Bytes that the loopback interface has sent."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[8])
    return 0


def rank(folder: Path, batch: int, rounds: int) -> None:
    """One process: rounds of private steps and of plain ones, in turn."""
    import torch
    from torch import nn

    from decrescendo.accounting.budget import Budget
    from decrescendo.distributed import join
    from decrescendo.plans.calibration import calibrate
    from decrescendo.plans.curves import constant
    from decrescendo.plans.plan import Plan
    from decrescendo.plans.sampling import PoissonSampling
    from decrescendo.training import Trainer, cross_entropy

    torch.set_num_threads(1)
    world = join()

    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10),
        )  # fmt: skip
        return model, torch.optim.SGD(model.parameters(), lr=0.05)

    torch.manual_seed(1)
    data = torch.randn(ROWS, 1, 28, 28), torch.randint(10, (ROWS,))
    path = folder / "plan.json"
    if world.rank == 0:
        calibrate(
            Budget(2.0, 1e-5), PoissonSampling(ROWS, batch), steps=STEPS * (rounds + 2), privacy=constant(1.0),
            clip=constant(1.0),
        ).save(path)  # fmt: skip
    world.agree(dict)  # until the plan is there
    model, optimizer = made()
    trainer = Trainer(model, cross_entropy, Plan.load(path), optimizer, seed=0, world=world)
    batches = trainer.batches(data)
    plain, plain_optimizer = made()
    whole = nn.parallel.DistributedDataParallel(plain) if world.size > 1 else plain
    share = batch // world.size

    def private_steps() -> None:
        for _ in range(STEPS):
            trainer.step(next(batches))

    def plain_steps() -> None:
        for _ in range(STEPS):
            rows = torch.randint(ROWS, (share,))
            plain_optimizer.zero_grad()
            nn.functional.cross_entropy(whole(data[0][rows]), data[1][rows]).backward()
            plain_optimizer.step()

    found: dict[str, list[dict[str, float]]] = {"private": [], "plain": []}
    for number in range(rounds + 1):
        for name, work in (("private", private_steps), ("plain", plain_steps)):
            world.agree(dict)  # all begin at once
            bytes_before, wall, cpu = sent(), time.perf_counter(), time.process_time()
            work()
            spent = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
            world.agree(dict)
            if number:  # the first warms up
                found[name].append({key: value / STEPS for key, value in spent.items()} | {
                    "bytes": (sent() - bytes_before) / STEPS
                })  # fmt: skip
    in_parts = 0.0
    if world.size > 1:
        from torch.distributed.fsdp import fully_shard

        parted, _ = made()
        mesh = torch.distributed.init_device_mesh("cpu", (world.size,))
        for block in (0, 3, 7):
            fully_shard([*parted][block], mesh=mesh)
        fully_shard(parted, mesh=mesh)
        trainer = Trainer(
            parted,
            cross_entropy,
            Plan.load(path),
            torch.optim.SGD(parted.parameters(), lr=0.05),
            seed=0,
            world=world,
        )
        batches, steps = trainer.batches(data), []
        for _ in range(4):
            world.agree(dict)
            before = sent()
            trainer.step(next(batches))
            world.agree(dict)
            steps.append(sent() - before)
        in_parts = statistics.median(steps[2:])  # the first ones prove
    numbers = sum(parameter.numel() for parameter in model.parameters())
    (folder / f"rank-{world.rank}.json").write_text(json.dumps(found | {"numbers": numbers, "in_parts": in_parts}))


def measure(rounds: int) -> dict[str, Any]:
    """All sizes, weak and strong."""
    isolated = subprocess.run(["unshare", "-n", "true"], check=False, capture_output=True).returncode == 0
    rows: list[dict[str, Any]] = []
    for kind, (together, each) in BATCH.items():
        for size in SIZES:
            batch = together + each * size
            with tempfile.TemporaryDirectory() as name:
                one = f"{sys.executable} -m benchmarks.scaling --rank {name} --batch {batch} --rounds {rounds}"
                lives = " ".join(f'RANK={rank} {one} & pids="$pids $!";' for rank in range(size))
                script = f"ip link set lo up 2>/dev/null; {lives} for pid in $pids; do wait $pid || exit 1; done"
                environment = os.environ | {
                    "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511",
                    "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
                }  # fmt: skip
                command = [*(["unshare", "-n"] if isolated else []), "sh", "-c", script]
                subprocess.run(command, check=True, cwd=ROOT, env=environment)
                found = [json.loads((Path(name) / f"rank-{rank}.json").read_text()) for rank in range(size)]
            row: dict[str, Any] = {
                "kind": kind,
                "ranks": size,
                "batch": batch,
                "numbers": found[0]["numbers"],
                "in_parts": found[0]["in_parts"],
            }
            for way in ("private", "plain"):
                row[way] = {
                    "seconds": statistics.median(step["wall"] for step in found[0][way]),
                    "cpu_seconds": sum(statistics.median(step["cpu"] for step in one[way]) for one in found),
                    "bytes": statistics.median(step["bytes"] for step in found[0][way]),
                }
            rows.append(row)
            print(json.dumps(row), flush=True)
    return {
        "processors": os.cpu_count(),
        "isolated_network": isolated,
        "load": os.getloadavg()[0],
        "rows": rows,
    }


def page(found: dict[str, Any]) -> str:
    """The page of the numbers."""
    rows = found["rows"]
    lines: list[str] = []
    for row in rows:
        first = next(one for one in rows if one["kind"] == row["kind"] and one["ranks"] == 1)

        def throughput(way: str, measure: str, row: Any = row, first: Any = first) -> float:
            return (row["batch"] / row[way][measure]) / (first["batch"] / first[way][measure])

        gains = [throughput(way, "seconds") for way in ("private", "plain")]
        works = [1 / throughput(way, "cpu_seconds") for way in ("private", "plain")]
        ranks = row["ranks"]
        formula = WIDTH * row["numbers"] * (ranks - 1) * (2 + 1 / ranks) / 1e6
        lines.append(
            f"| {row['kind']} | {row['ranks']} | {row['batch']} | {row['private']['seconds'] * 1e3:.0f} | "
            f"{row['plain']['seconds'] * 1e3:.0f} | {gains[0]:.2f} | {gains[1]:.2f} | {gains[0] / gains[1]:.2f} | "
            f"{works[0]:.2f} | {works[1]:.2f} | {formula:.2f} | {row['private']['bytes'] / 1e6:.2f} |"
        )
    model: list[str] = []
    for ranks in (8, 64, 256, 1024):
        work = WORK / ranks
        whole, parts = (work + talking(ranks) + NOISE, work + talking_in_parts(ranks) + NOISE / ranks)
        model.append(
            f"| {ranks} | {1e3 * work:.0f} | {1e3 * talking(ranks):.0f} | {1e3 * NOISE:.0f} | {1e3 * whole:.0f} | "
            f"{work / whole:.0%} | {1e3 * talking_in_parts(ranks):.0f} | {1e3 * NOISE / ranks:.0f} | "
            f"{1e3 * parts:.0f} | {work / parts:.0%} |"
        )
    measured = [row for row in rows if row["kind"] == "strong" and row.get("in_parts")]
    ratios = [row["in_parts"] / (3 * WIDTH * row["numbers"] * (row["ranks"] - 1)) for row in measured]
    parts = ", ".join(
        f"{ratio:.2f} times that with {row['ranks']} processes" for ratio, row in zip(ratios, measured, strict=True)
    )
    return TEXT.format(
        parts=parts or "not in this run",
        table="\n".join(lines), model="\n".join(model), processors=found["processors"], load=found["load"],
        drawn=DRAWN / 1e6, noise=NOISE,
        where="a network namespace of its own" if found["isolated_network"] else "the machine's loopback",
    )  # fmt: skip


# What the model of more processes assumes: numbers, bytes a number, bytes a second, seconds a message; seconds of one
# step's work on one process, and of its noise.
NUMBERS, WIDTH, BANDWIDTH, LATENCY = 124e6, 4, 12.5e9, 20e-6
# What one thread draws and adds in a second, by benchmarks/secure.py.
DRAWN = json.loads((ROOT / "results" / "engine" / "secure.json").read_text())["draws"]["2000000"][
    "`Secure()`: exact, unpredictable"
]
WORK, NOISE = 60.0, NUMBERS / DRAWN


# Blocks that are gathered, and sums that are given away, in parts.
BLOCKS, SUMS = 13, 148


def talking(ranks: int) -> float:
    """Seconds of a reduction and a broadcast, both in rings or pipelined trees: 2 P w / bandwidth, and six messages."""
    return 2 * NUMBERS * WIDTH / BANDWIDTH + 6 * (ranks - 1) * LATENCY


def talking_in_parts(ranks: int) -> float:
    """Seconds of two gatherings of each block and one scattering of each sum, in rings, with a meeting before each."""
    rounds = 2 * BLOCKS + SUMS
    return 3 * NUMBERS * WIDTH * (1 - 1 / ranks) / BANDWIDTH + 2 * rounds * (ranks - 1) * LATENCY


TEXT = """# What several processes gain

`python -m benchmarks.scaling`: a CNN of 454,922 parameters on images of 28 x 28, one thread a process,
private steps and plain ones (DDP) in turn in the same processes, on a machine with {processors} processors
and a load of {load:.1f} from all programs at the end. *Strong*: 256 expected examples a step; *weak*: 128 a
process. Times of more processes than free processors say little; the ratio to DDP in the same run says
more, and CPU time most.

| | W | batch | private, ms | DDP, ms | gain | DDP's | ratio | CPU | DDP's | MB, formula | MB |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
{table}

W processes. *Gain*: examples a second over those of one process; *ratio*: of private training's to DDP's.
*CPU*: of all processes together, for an example, over
that of one process; 1 is no overhead. *MB*: of a step, sent by all processes together.

Why private training gains less from two processes than DDP does where the batch stays: what a step does once,
however many processes share it. In CPU time of one thread of that machine, by hand, of the step of 263 ms: proof and
recording of a pass, which are a matter of operations and not of rows, 5 to 8 ms; the noise of 454,922 numbers 2.6 ms,
for which the others wait; draws, checks and the optimiser 3 ms. Reduction, broadcast and four meetings of two
processes are 2 to 3 ms more. DDP hides its own reduction behind the backward pass, and has nothing else of these. The
table shows it too: half of the batch takes one process more than half of the time.

## Bytes

With P trained numbers of w bytes (4 in float32) and W processes, a step sends

    P w (W - 1) (2 + 1/W)

bytes in all, whatever the batch: gloo's reduction passes parts of the sum round a ring, P w (W - 1), and
gathers them on rank 0, P w (W - 1)/W; the noisy mean goes to the others, P w (W - 1). Beyond that, 8 bytes
for each row of the batch and 256 W (W - 1) for each of the four meetings. Measured: what {where} sent, headers and
acknowledgements included.

Of a model that lies in parts and is trained in all of them, a step sends

    3 P w (W - 1)

bytes: each parameter is gathered for the forward and for the backward pass, each sum is scattered. Measured in the same
way, of the network above: {parts}.

## A model of more processes, on paper

Not measured. P = 124 million (GPT-2 small), 12.5 GB/s between any two processes, 20 microseconds a message,
sums and means pipelined in rings or trees, meetings in rings; one step's forward, backward and clipping take 60 s on
one process and divide evenly; a process draws and adds {drawn:.0f} million noise numbers a second, as
[measured](noise-speed.md) on one thread. In parts: 13 blocks, 148 sums, one micro-batch a step, nothing overlaps.

| processes | compute, ms | sum, mean | noise | step | efficiency | in parts: messages | noise | step | efficiency |
| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
{model}

With whole parameters the noise of one process bounds what more processes gain: a step of them takes {noise:.2f} s at
least, where noise is drawn on a CPU; an H200 draws 10^10 numbers a second. In parts each process draws its
own, and the bound is the number of messages: a round for each block and each sum, as long as the ring of processes. So
neither is made for hundreds of processes.
"""


def main() -> None:
    """Measure and write, or be a process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rank", type=Path)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--page-only", action="store_true")
    arguments = parser.parse_args()
    if arguments.rank is not None:
        rank(arguments.rank, arguments.batch, arguments.rounds)
        return
    if not arguments.page_only:
        RESULT.write_text(json.dumps(measure(arguments.rounds), indent=1) + "\n")
    PAGE.write_text(page(json.loads(RESULT.read_text())))


if __name__ == "__main__":
    main()
