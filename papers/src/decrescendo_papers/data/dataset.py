"""One value for a data set that is small enough to be kept in memory."""

from dataclasses import dataclass

from jaxtyping import Int, Shaped
from torch import Tensor

from decrescendo.errors import InvalidValue, check_integer


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Inputs and targets, split into a private train half and a test half declared public.

    The normalisation ``(pixel / scale - mean) / std`` uses declared public constants, never statistics of the
    data at hand: those would be one more access to the private half. The tensors are already
    normalised, or are bytes that the model normalises by these constants itself (`models.Normalised`).

    Args:
        name: what it is called.
        train_inputs: one row per example; the private half.
        train_targets: class of each example, 0 .. classes - 1.
        test_inputs: the same kind of rows; public, so that scores on them may be printed.
        test_targets: class of each.
        classes: number of classes.
        scale: the largest pixel value.
        mean: declared constant.
        std: declared constant.

    Raises:
        InvalidValue: inputs and targets of different lengths, or a class outside the range.

    >>> import torch
    >>> rows = torch.arange(6.0).reshape(3, 2)
    >>> toy = Dataset("toy", rows, torch.tensor([0, 1, 0]), rows[:1], torch.tensor([0]), classes=2)
    >>> toy
    Dataset(toy: 3 train, 1 test, 2 classes, inputs 2)
    >>> toy.batch(torch.tensor([2, 0]))[1].tolist()
    [0, 0]
    """

    name: str
    train_inputs: Shaped[Tensor, "train ..."]
    train_targets: Int[Tensor, " train_labels"]
    test_inputs: Shaped[Tensor, "test ..."]
    test_targets: Int[Tensor, " test_labels"]
    classes: int
    scale: float = 1.0
    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        check_integer("classes", self.classes, at_least=1)
        halves = (
            ("train", self.train_inputs, self.train_targets),
            ("test", self.test_inputs, self.test_targets),
        )
        for half, inputs, targets in halves:
            if inputs.shape[0] != targets.shape[0]:
                raise InvalidValue(
                    f"{half}_inputs and {half}_targets must each have one row per example, "
                    f"got {inputs.shape[0]} and {targets.shape[0]} rows"
                )
            outside = (targets < 0) | (targets >= self.classes)
            if bool(outside.any()):
                first = int(outside.nonzero()[0])
                raise InvalidValue(
                    f"{half}_targets must be classes 0 .. {self.classes - 1}, "
                    f"got {half}_targets[{first}]={int(targets[first])}"
                )

    @property
    def train(self) -> tuple[Shaped[Tensor, "train ..."], Int[Tensor, " train"]]:
        """The private half, as `training.train` takes it."""
        return self.train_inputs, self.train_targets

    @property
    def test(self) -> tuple[Shaped[Tensor, "test ..."], Int[Tensor, " test"]]:
        """The public half, as `training.evaluate.accuracy` takes it."""
        return self.test_inputs, self.test_targets

    def batch(self, indices: Int[Tensor, " batch"]) -> tuple[Shaped[Tensor, "batch ..."], Int[Tensor, " batch"]]:
        """The train rows at ``indices``."""
        return self.train_inputs[indices], self.train_targets[indices]

    def __len__(self) -> int:
        return int(self.train_inputs.shape[0])

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.train_inputs.shape[1:]))
        return (
            f"Dataset({self.name}: {len(self)} train, {self.test_inputs.shape[0]} test, "
            f"{self.classes} classes, inputs {shape})"
        )
