"""What a program of the corpus is: a model, a loss, batches of any size, and what is changed between them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# The files of the corpus.
HOSTILE = (
    "statistics", "losses", "place", "backward", "weights", "state", "reads", "late", "wrapped", "memory", "views",
    "writes",
)  # fmt: skip
BENIGN = ("layers", "sequences", "operations", "views", "writes")

Loss = Callable[[Any, Any], Tensor]
Make = Callable[[], tuple[nn.Module, Loss]]
Batch = Callable[[int, torch.Generator], Any]

# The inner widths of most programs are 8, 5 and 3: a batch of as many rows must not be taken for one of them.
WIDE, HIDDEN, CLASSES = 8, 5, 3
HOSTILE_SIZES = (5, 8, 13)
BENIGN_SIZES = (5, 1, 2, 13, 3, 8)


@dataclass(frozen=True)
class Program:
    """One program.

    Args:
        make: a fresh model and loss; every draw in it is from torch's generator, which `build` seeds.
        batch: that many rows, drawn from the generator given.
        sizes: of the batches that are fed one after the other to the same model.
        late: changes the model or the loss after the first batch.
        conditional: of a hostile program: it need not be hostile in plain PyTorch; the engine must be exact or
            refuse. Of a benign one: the engine may refuse.
        tolerance: relative, of the clipped sum.
    """

    name: str
    family: str
    make: Make
    batch: Batch
    sizes: tuple[int, ...] = HOSTILE_SIZES
    late: Callable[[Any, Any], Any] | None = None
    conditional: bool = False
    tolerance: float = 1e-4

    def build(self) -> tuple[nn.Module, Loss]:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return self.make()

    def batches(self) -> list[Any]:
        return [self.batch(n, torch.Generator().manual_seed(1000 * k + n)) for k, n in enumerate(self.sizes, 1)]


def programs(kind: str) -> dict[str, list[Program]]:
    """The programs of the corpus that are "hostile" or "benign", by family."""
    found: dict[str, list[Program]] = {}
    for file in {"hostile": HOSTILE, "benign": BENIGN}[kind]:
        for program in import_module(f"corpus.{kind}_{file}").PROGRAMS:
            found.setdefault(program.family, []).append(program)
    return found


class Net(nn.Module):
    """A model from a function and whatever it needs."""

    def __init__(self, run: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any) -> Any:
        return self.run(self, *args)


def weight(*shape: int, scale: float = 0.5) -> nn.Parameter:
    return nn.Parameter(scale * torch.randn(*shape))


def mlp(width: int = WIDE, hidden: int = HIDDEN, out: int = CLASSES) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, out))


def ce(model: Any, batch: Any) -> Tensor:
    """Cross entropy of the first leaf's outputs with the second; the mean over what lies between."""
    out = model(batch[0])
    if out.dim() > 2:
        out = out.flatten(1, -2).mean(1)
    return functional.cross_entropy(out, batch[1], reduction="none")


def square(model: Any, batch: Any) -> Tensor:
    """A sum over each example's outputs in which no two count alike."""
    out = model(batch[0] if isinstance(batch, tuple) else batch)
    out = out.abs() if out.is_complex() else out
    flat = out.flatten(1)
    return (flat * torch.linspace(-1, 1.3, flat.shape[1], dtype=flat.dtype) + 0.1 * flat * flat).sum(1)


def labelled(*shape: int, classes: int = CLASSES) -> Batch:
    shape = shape or (WIDE,)

    def batch(n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(n, *shape, generator=g), torch.randint(classes, (n,), generator=g)

    return batch


def scored(n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows with a real number each: a reward, a target, a time."""
    return torch.randn(n, WIDE, generator=g), torch.randn(n, generator=g)


def paired(n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two views of every example."""
    return torch.randn(n, WIDE, generator=g), torch.randn(n, WIDE, generator=g)


def tokens(length: int = 6, vocabulary: int = 11) -> Batch:
    def batch(n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
        return (
            torch.randint(vocabulary, (n, length), generator=g),
            torch.randint(CLASSES, (n,), generator=g),
        )

    return batch


@dataclass
class Shelf:
    """Collects the programs of one family; what is common to many of them is said in its methods."""

    family: str
    programs: list[Program] = field(default_factory=list)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def put(self, name: str, make: Make, batch: Batch | None = None, **options: Any) -> None:
        given = {} if batch is None else {"batch": batch}
        options = {"batch": labelled(), **self.defaults, **given, **options}
        self.programs.append(Program(name, self.family, make, **options))

    def inputs(self, functions: Mapping[str, Callable[[Tensor], Tensor]], **options: Any) -> None:
        """Each function is applied to the inputs of a small network."""
        for name, f in functions.items():
            self.net({name: lambda m, x, f=f: m.a(f(x))}, lambda: {"a": mlp()}, **options)

    def hidden(self, functions: Mapping[str, Callable[[Tensor], Tensor]], **options: Any) -> None:
        """Each function is applied to the hidden features of a small network."""
        for name, f in functions.items():
            self.net(
                {name: lambda m, x, f=f: m.b(f(m.a(x)).tanh())},
                lambda: {"a": nn.Linear(WIDE, HIDDEN), "b": nn.Linear(HIDDEN, CLASSES)},
                **options,
            )

    def net(
        self,
        functions: Mapping[str, Callable[..., Tensor]],
        parts: Callable[[], Mapping[str, Any]],
        loss: Loss = ce,
        **options: Any,
    ) -> None:
        """Each function is the forward pass of a model with these parts."""
        for name, f in functions.items():
            self.put(name, lambda f=f: (Net(f, **parts()), loss), **options)

    def weighted(self, functions: Mapping[str, Callable[[Tensor, Any], Tensor]], **options: Any) -> None:
        """Each function makes other losses from the examples' cross entropies and the batch."""
        for name, f in functions.items():
            self.put(name, lambda f=f: (mlp(), lambda m, b: f(ce(m, b), b)), **options)

    def losses(self, functions: Mapping[str, Loss], model: Callable[[], nn.Module] = mlp, **options: Any) -> None:
        """Each function is the loss of a small network."""
        for name, f in functions.items():
            self.put(name, lambda f=f: (model(), f), **options)

    def keeping(self, losses: Mapping[str, Callable[[], Loss]], **options: Any) -> None:
        """Each function makes a fresh loss that keeps something from one batch to the next."""
        for name, f in losses.items():
            self.put(name, lambda f=f: (mlp(), f()), **options)
