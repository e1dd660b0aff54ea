"""Kill a real training again and again, and see that nothing is lost, repeated or hidden.

    python -m benchmarks.kill [--kills 200] [--steps 2000]      # into results/engine/kill.json
    python -m benchmarks.kill --ranks 2 --kills 100 --steps 800 # too
    python -m benchmarks.kill --bands 8 --kills 100 --steps 1000 # with correlated noise

One private training of the paper's CNN on MNIST, with a store and checkpoints, is killed (SIGKILL) at random moments
and resumed each time: a random number of steps after its life began, and a random part of a step later. After each
kill: the store is whole, and it lists at least as many releases as the training had *seen* (a file that grows after
each step says how many those were). At the end the weights and the ledger are those of the undisturbed run, to the last
bit. The moments are drawn from a seed; what they hit is up to the machine.

With several ranks ``torchrun --max-restarts`` starts them again, and what is killed is a random rank, or all of them.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "engine"
ROWS, BATCH = 60_000, 250


def prepare(folder: Path, steps: int, bands: int) -> None:
    """The plan and the store of a training."""
    from decrescendo.accounting.budget import Budget
    from decrescendo.plans.calibration import calibrate
    from decrescendo.plans.curves import growing_mu, sensitivity_decay
    from decrescendo.plans.sampling import PoissonSampling
    from decrescendo.training.store import Store

    folder.mkdir()
    calibrate(
        Budget(1.2, 1e-6), PoissonSampling(ROWS, BATCH), steps=steps, clip=sensitivity_decay(1.5, 3.3), bands=bands,
        privacy=growing_mu(1.25) if bands == 1 else "constant",
    ).save(folder / "plan.json")  # fmt: skip
    Store.create(folder / "store.db", Budget(1.2, 1e-6), dataset="mnist", rows=ROWS).close()


def live(folder: Path, steps: int) -> None:
    """One life of the training; run in a process of its own, or by each rank."""
    import torch

    from decrescendo.distributed import join
    from decrescendo.plans.plan import Plan
    from decrescendo.training import Trainer, cross_entropy
    from decrescendo.training.persistence.checkpoint import Checkpoints
    from decrescendo.training.store import Store
    from decrescendo_papers.data import mnist
    from decrescendo_papers.models import paper_cnn

    torch.set_num_threads(1)
    world = join()
    (folder / f"pid-{world.rank}").write_text(str(os.getpid()))
    plan = Plan.load(folder / "plan.json")
    model = paper_cnn(0).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    trainer = Trainer(
        model, cross_entropy, plan, optimizer, seed=0, store=Store(folder / "store.db"),
        checkpoints=Checkpoints(folder / "checkpoints", 5, resume=True), scheduler=scheduler,
        world=world,
    )  # fmt: skip
    taken = len(trainer.ledger)
    with (folder / f"seen{world.rank or ''}").open("a") as seen:
        for batch in trainer.batches(mnist().train):
            trainer.step(batch)
            taken += 1
            seen.write(f"{taken}\n")
            seen.flush()
    run = trainer.finish()
    digest = hashlib.sha256(b"".join(run.weights[name].numpy().tobytes() for name in sorted(run.weights)))
    found = {
        "weights": digest.hexdigest(),
        "ledger": run.ledger == plan.ledger,
        "epsilon": run.guarantee.epsilon,
    }
    if world.rank == 0:
        (folder / "done.json").write_text(json.dumps(found))


def start(folder: Path, steps: int, ranks: int, restarts: int = 0) -> subprocess.Popen[bytes]:
    """A life, in a process; or lives of several ranks, started again by torchrun."""
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command += [f"--max-restarts={restarts}", "--monitor-interval=0.1"]
    command += ["-m", "benchmarks.kill", "--live", str(folder), "--steps", str(steps)]
    return subprocess.Popen(command, cwd=ROOT)


def killed(life: subprocess.Popen[bytes], folder: Path, ranks: int, victims: list[int]) -> None:
    """Kill a life, or some of its ranks, and wait until all of it has ended."""
    if ranks == 1:
        life.send_signal(signal.SIGKILL)
        life.wait()
        return
    processes = [int((folder / f"pid-{rank}").read_text()) for rank in range(ranks)]
    for victim in victims:
        os.kill(processes[victim], signal.SIGKILL)
    while any(Path(f"/proc/{process}").exists() for process in processes):
        time.sleep(0.01)


def survives(life: subprocess.Popen[bytes], folder: Path, more: int) -> bool:
    """Wait until a life has taken ``more`` steps and one; whether it has not ended before."""
    path = folder / "seen"
    begun = path.stat().st_size if path.exists() else 0
    while life.poll() is None:
        if path.exists():
            with path.open("rb") as file:
                file.seek(begun)
                if file.read().count(b"\n") > more:
                    return True
        time.sleep(0.002)
    return False


def seen(folder: Path) -> int:
    """The last step whose result any rank of the training had before it was killed."""
    lines = [line for path in folder.glob("seen*") for line in path.read_text().splitlines()]
    return max(map(int, lines), default=0)


def measure(kills: int, steps: int, ranks: int, bands: int) -> dict[str, Any]:
    """Undisturbed, then killed until there were enough kills."""
    from decrescendo.training.store import Store

    random_ = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        calm, rough = Path(name) / "calm", Path(name) / "rough"
        for folder in (calm, rough):
            prepare(folder, steps, bands)
        begun = time.perf_counter()
        if start(calm, steps, ranks).wait():
            raise SystemExit("the undisturbed training failed")
        span = time.perf_counter() - begun
        done, released, moments, whole = 0, 0, [], 0
        life = start(rough, steps, ranks, kills)
        while done < kills and survives(life, rough, random_.randint(0, 14)):
            time.sleep(random_.uniform(0.0, 0.04))
            victims = random_.choice([[rank] for rank in range(ranks)] + [list(range(ranks))])
            killed(life, rough, ranks, victims)
            done, whole = done + 1, whole + (len(victims) == ranks)
            store = Store(rough / "store.db")  # refused if it is not whole
            entries = store.entries()
            listed = entries[0].released.steps if entries else 0
            store.close()
            if listed < seen(rough) or listed < released or len(entries) > 2:
                raise SystemExit(f"the store lists {listed} after {seen(rough)} were seen and {released} listed")
            released = listed
            moments.append(listed)
            print(f"kill {done} of {victims}: {listed} of {steps} steps", flush=True)
            if ranks == 1:
                life = start(rough, steps, ranks)
        life.wait()
        if life.returncode:
            raise SystemExit("a life failed by itself")
        undisturbed, found = (json.loads((folder / "done.json").read_text()) for folder in (calm, rough))
        entries = Store(rough / "store.db").entries()
        repeated = (rough / "seen").read_text().splitlines()
    return {
        "ranks": ranks,
        "bands": bands,
        "kills": done,
        "kills_of_all_ranks": whole,
        "steps": steps,
        "distinct_steps_hit": len(set(moments)),
        "steps_done_again": len(repeated) - len(set(repeated)),
        "weights_equal": found["weights"] == undisturbed["weights"],
        "ledger_equal": found["ledger"] and undisturbed["ledger"],
        "runs_reserved": len(entries),
        "undisturbed_seconds": span,
    }


def main() -> None:
    """Measure and write, or live."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--bands", type=int, default=1)
    parser.add_argument("--live", type=Path)
    arguments = parser.parse_args()
    if arguments.live is not None:
        live(arguments.live, arguments.steps)
        return
    found = measure(arguments.kills, arguments.steps, arguments.ranks, arguments.bands)
    target = RESULTS / "kill.json"
    before = json.loads(target.read_text()) if target.exists() else {}
    name = f"{arguments.ranks} ranks" + (f", {arguments.bands} bands" if arguments.bands > 1 else "")
    target.write_text(json.dumps(before | {name: found}, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
