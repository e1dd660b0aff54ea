"""The step of the paper's CNN as a CUDA graph: plain training, the engine, and the recorded step.

    python -m benchmarks.graph [--device cuda] [--batch 250] [--rounds 200]

Prints the median milliseconds of a whole step (forward, backward, clipping, noise, optimiser) of each, measured in
turns. On a machine without CUDA the recorded step runs as a plain program: its time there says nothing about graphs,
only that it works.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional

import decrescendo as dc
from decrescendo.base.rng import Streams
from decrescendo.clipping import Clipper, Engine, GraphedEngine
from decrescendo.optim import apply
from decrescendo.optim.noise import privatise
from decrescendo_papers.models import paper_cnn


def loss(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    device = torch.device(given.device)
    batch = (
        torch.randn(given.batch, 1, 28, 28, device=device),
        torch.randint(10, (given.batch,), device=device),
    )
    sampling = dc.PoissonSampling(60_000, given.batch)

    def plain() -> Callable[[], None]:
        model = paper_cnn(0).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            loss(model, batch).mean().backward()
            optimizer.step()

        return step

    def private(build: Callable[[torch.nn.Module], Clipper]) -> Callable[[], None]:
        model = paper_cnn(0).to(device)
        clipper, optimizer = build(model), torch.optim.SGD(model.parameters(), lr=0.1)
        noise = Streams(0).torch("noise", device)

        def step() -> None:
            apply(privatise(clipper.clipped_sum(batch, 1.0), 1.0, sampling, noise), model, optimizer)

        return step

    steps = {
        "plain": plain(),
        "engine": private(lambda model: Engine(model, loss)),
        "recorded": private(lambda model: GraphedEngine(model, loss, given.batch)),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(given.rounds + 5):
        for name, step in steps.items():
            _wait(device)
            start = time.perf_counter()
            step()
            _wait(device)
            if round_ >= 5:
                times[name].append(time.perf_counter() - start)
    base = statistics.median(times["plain"])
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    print(f"{name}, torch {torch.__version__}, the paper's CNN, batch {given.batch}")
    for which, seconds in times.items():
        median = statistics.median(seconds)
        print(f"{which:10s} {1e3 * median:8.3f} ms  {median / base:6.2f} x plain")


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
