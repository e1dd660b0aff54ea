"""What one example a pass costs: the clipped sum beside a plain step on the same examples as one batch, and one by one.

    PYTHONPATH=. python -m benchmarks.one_example       # prints the table of docs/how-to/one-example.md, in minutes
    PYTHONPATH=. python -m benchmarks.one_example GIN   # its row for this model

CPU time of one thread, medians of alternating rounds. Plain: the gradient of the mean loss. The models are those that
tests/clipping/test_one_example.py compares with `Reference`, here wider; those whose library is missing are left out.
"""

import importlib.metadata
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from decrescendo.base.markdown import table
from decrescendo.base.rng import Seeds
from decrescendo.clipping import Engine, EngineSettings

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "support"))

from one_example_models import INSTALLED, Case, speech  # noqa: E402

ROUNDS = 5
MODELS = {**INSTALLED, "wav2vec2": ("transformers", speech)}  # torchvision first: transformers imports it
# Examples, their size (pixels, nodes, tokens, samples) and the width of the model (RetinaNet: layers of its ResNet).
SIZES = {
    "RetinaNet": (4, 256, 18),
    "GIN": (32, 30, 64),
    "LLaVA": (16, 92, 128),
    "wav2vec2": (8, 8000, 128),
}


def plain(case: Case) -> None:
    """A step on all examples as one batch."""
    _gradients(case, case.collate_fn(case.records))


def one_by_one(case: Case) -> None:
    """The same sum of gradients, from one example after another."""
    for record in case.records:
        _gradients(case, case.collate_fn([record]))


def _gradients(case: Case, batch: Any) -> None:
    trained = [parameter for parameter in case.model.parameters() if parameter.requires_grad]
    torch.autograd.grad(case.loss(case.model, batch), trained, materialize_grads=True)


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
    for name, (library, make) in MODELS.items():
        if importlib.util.find_spec(library) is None or (sys.argv[1:] and name not in sys.argv[1:]):
            continue
        torch.manual_seed(0)
        case = make(*SIZES[name])
        batch, alone, private = measured(case)
        parameters = sum(parameter.numel() for parameter in case.model.parameters())
        times = f"{1e3 * batch:.0f} ms", f"{1e3 * alone:.0f} ms", f"{1e3 * private:.0f} ms"
        ratios = f"{private / batch:.1f}", f"{private / alone:.1f}"
        called = f"{name} ({library} {importlib.metadata.version(library)})"
        lines.append([called, str(len(case.records)), f"{parameters:,}", *times, *ratios])
    print(
        table(
            [
                "model",
                "examples",
                "parameters",
                "plain",
                "one by one",
                "private",
                "times plain",
                "times one by one",
            ],
            lines,
            "lrrrrrrr",
        )
    )


if __name__ == "__main__":
    main()
