"""What one example a pass costs: the clipped sum beside a plain step on the same examples as one batch, and one by one.

    PYTHONPATH=. python -m benchmarks.one_example       # prints the table of docs/how-to/one-example.md, in a minute

CPU time of one thread, medians of alternating rounds. Plain: the gradient of the mean loss. The models are those that
tests/clipping/test_one_example.py compares with `Reference`, here wider.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from decrescendo.base.markdown import table
from decrescendo.base.rng import Seeds
from decrescendo.clipping import Engine, EngineSettings

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "support"))

from one_example_models import MODELS, Case  # noqa: E402

ROUNDS = 9
# Examples, their size (pixels, nodes, tokens, samples) and the width of the model.
SIZES = {
    "detector": (16, 128, 64),
    "graphs": (32, 30, 64),
    "images in texts": (16, 96, 128),
    "speech": (8, 8000, 128),
}


def plain(case: Case) -> None:
    """A step on all examples as one batch."""
    _gradients(case, case.loss(case.model, case.together))


def one_by_one(case: Case) -> None:
    """The same sum of gradients, from one example after another."""
    for example in case.batch.examples:
        _gradients(case, case.loss(case.model, example))


def _gradients(case: Case, loss: Tensor) -> None:
    torch.autograd.grad(loss, list(case.model.parameters()), materialize_grads=True)


def measured(case: Case) -> list[float]:
    """CPU seconds of a plain step, of passes one by one, and of the clipped sum; what they do first is not counted."""
    engine = Engine(case.model, case.loss, EngineSettings(one_example_a_pass=True), seeds=Seeds.of(0))
    ways: list[Callable[[], object]] = [
        lambda: plain(case),
        lambda: one_by_one(case),
        lambda: engine.clipped_sum(case.batch, 1.0),
    ]
    seconds: list[list[float]] = [[] for _ in ways]
    for round_ in range(ROUNDS + 1):
        for found, way in zip(seconds, ways, strict=True):
            began = time.process_time()
            way()
            if round_:
                found.append(time.process_time() - began)
    return [statistics.median(found) for found in seconds]


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    lines: list[list[str]] = []
    for name, make in MODELS.items():
        torch.manual_seed(0)
        case = make(*SIZES[name])
        batch, alone, private = measured(case)
        parameters = sum(parameter.numel() for parameter in case.model.parameters())
        times = f"{1e3 * batch:.0f} ms", f"{1e3 * alone:.0f} ms", f"{1e3 * private:.0f} ms"
        lines.append([name, str(case.batch.rows), f"{parameters:,}", *times, f"{private / batch:.1f}"])
    print(
        table(
            ["model", "examples", "parameters", "plain", "one by one", "private", "times plain"],
            lines,
            "lrrrrrr",
        )
    )


if __name__ == "__main__":
    main()
