"""One row for each person (or client), of all of their examples: drawn and clipped as a whole."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from decrescendo.base.batches import Batch, map_rows
from decrescendo.clipping import Loss
from decrescendo.clipping.clipped import split
from decrescendo.clipping.reference import check_losses
from decrescendo.errors import InvalidValue, check_integer
from decrescendo.training.data.people import check_index, ids_of, numbered
from decrescendo.training.data.rows import rows


def by_person(data: object, people: object, *, most: int) -> tuple[Batch, Float[Tensor, "people examples"]]:
    """Rows for a training that draws people instead of examples: row i is all examples of person i.

    A plan for them has one row a person: ``PoissonSampling(dataset_size=len(weights), ..)``,
    ``Budget(epsilon, delta, Unit.PERSON)`` and ``people=range(len(weights))``. The loss is `person_loss`.

    Args:
        data: examples in tensors or arrays, as `rows` takes them; at least one.
        people: the id of each example's person, in their order: a list, an array, a tensor, a column of a data frame.
        most: >= 1, examples kept of one person, the first ones. Every person's row is so long, whoever the others are:
            a loss may look at all of it. A public, declared number; memory and time grow with it.

    Returns:
        the examples, in leaves of shape (people, most, ...), persons in the order of their first example; and weights
        1 / n for each of a person's n examples, 0 for padding, which repeats the person's first.

    Raises:
        InvalidType, InvalidValue: ids that cannot be told apart, not one for each example, or with another index than
            the examples' data frame.

    >>> examples = torch.tensor([[1.0], [2.0], [3.0]])
    >>> grouped, weights = by_person(examples, ["ann", "bo", "ann"], most=2)
    >>> grouped.squeeze(2), weights
    (tensor([[1., 3.],
            [2., 2.]]), tensor([[0.5000, 0.5000],
            [1.0000, 0.0000]]))
    """
    table, person = rows(data), numbered(ids_of(people))
    check_index(data, people)
    if len(person) != table.count:
        raise InvalidValue(f"people must have an id for each of the {table.count} examples, got {len(person)}")
    if not table.count:
        raise InvalidValue("data must have at least one example, got none")
    counts = np.bincount(person)
    order = np.argsort(person, kind="stable")  # of each person the examples in their order
    starts = np.cumsum(counts) - counts
    counts = np.minimum(counts, check_integer("most", most, at_least=1))
    places = np.arange(most)
    real = places < counts[:, None]
    chosen = order[starts[:, None] + np.where(real, places, 0)]
    grouped = map_rows(lambda leaf: leaf.reshape(*chosen.shape, *leaf.shape[1:]), table.take(chosen.ravel()))
    return grouped, torch.from_numpy(real / counts[:, None]).to(torch.get_default_dtype())


def person_loss(loss: Loss) -> Loss:
    """``loss`` for batches of `by_person`: of each person the mean over its examples; of scores likewise.

    Args:
        loss: ``loss(model, batch)`` returns one loss an example; or losses and scores.

    >>> grouped = by_person(torch.tensor([[1.0], [2.0], [3.0]]), ["ann", "bo", "ann"], most=2)
    >>> person_loss(lambda model, batch: batch.squeeze(1))(nn.Identity(), grouped)
    tensor([2., 2.])
    """

    def mean(model: nn.Module, batch: Any) -> Any:
        grouped, weights = batch
        returned = loss(model, map_rows(lambda leaf: leaf.flatten(0, 1), grouped))
        scored = split(returned)[1] is not None
        losses, scores = check_losses(returned, weights.numel(), scored=scored, constant=True)
        means = (losses.reshape(weights.shape) * weights).sum(1)
        if scores is None:
            return means
        return means, (scores.reshape(weights.shape).to(weights) * weights).sum(1)

    return mean
