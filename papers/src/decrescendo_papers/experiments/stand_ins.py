"""Public data that stand in for a task's own while settings are searched: nothing here touches the private data."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from decrescendo.errors import InvalidValue
from decrescendo_papers.data import (
    Dataset,
    enlarged_digits,
    fashion_mnist,
    gaussian_rows,
    imdb_public,
    mnist,
    synthetic_names,
    t_shirts,
)
from decrescendo_papers.experiments.tasks import Task, find_task

# Rows of a stand-in that are scored in place of a test set.
SCORED = 10_000
INFINITE = ("infinite-mnist-250k", "infinite-mnist-500k")


@dataclass(frozen=True, slots=True)
class StandIn:
    """Public data for some task.

    Args:
        name: as the command line says it.
        load: fetches it.
        tasks: for which tasks it has the right shape.
        what: in words.
        as_bytes: those of its tasks whose models take pixels as bytes; they get them so.
        tested_by: tasks whose test half has the same rows: a model that starts from the stand-in has seen them, and
            settings that were searched on it were chosen by them.
    """

    name: str
    load: Callable[[], Dataset]
    tasks: tuple[str, ...]
    what: str
    as_bytes: tuple[str, ...] = ()
    tested_by: tuple[str, ...] = ()


STAND_INS: dict[str, StandIn] = {
    stand_in.name: stand_in
    for stand_in in (
        StandIn("fashion-mnist", fashion_mnist, ("mnist",), "Fashion-MNIST's training images, declared public"),
        StandIn(
            "mnist",
            mnist,
            ("fashion-mnist",),
            "MNIST's training images, declared public",
        ),
        StandIn(
            "fashion-mnist-scattered",
            find_task("fashion-mnist-scattered").load,
            ("mnist-scattered",),
            "Fashion-MNIST's training images, declared public, scattered",
        ),
        StandIn(
            "mnist-scattered",
            find_task("mnist-scattered").load,
            ("fashion-mnist-scattered",),
            "MNIST's training images, declared public, scattered",
        ),
        StandIn(
            "fashion-mnist-whitened",
            find_task("fashion-mnist-whitened").load,
            ("mnist-whitened",),
            "Fashion-MNIST's training images, declared public, scattered and whitened",
        ),
        StandIn(
            "enlarged-digits",
            enlarged_digits,
            ("mnist", *INFINITE),
            "scikit-learn's written digits, enlarged and deformed",
            as_bytes=INFINITE,
        ),
        StandIn("synthetic-names", synthetic_names, ("names",), "made-up names of made-up languages"),
        # A film has up to 30 reviews, all of them in one half of the original split: those of this half's films that
        # are not here are in "imdb-half". What is learned here about a film may help there, so that numbers on
        # "imdb-half" are a little better than on other people's films.
        StandIn(
            "imdb-public",
            imdb_public,
            ("imdb", "imdb-half"),
            "12,500 reviews of the official test half, declared public",
            tested_by=("imdb",),
        ),
        StandIn(
            "t-shirts",
            t_shirts,
            ("xray", "xray-random"),
            "Fashion-MNIST's training images of T-shirts against other upper clothes, declared public",
        ),
        StandIn("gaussian-10", lambda: gaussian_rows(10), ("mnist-pca",), "Gaussian rows in 10 made-up classes"),
        StandIn("gaussian-2", lambda: gaussian_rows(2), ("mnist35-pca",), "Gaussian rows in 2 made-up classes"),
    )
}


def find_stand_in(name: str, task: Task, setting: str = "stand_in") -> StandIn:
    """The stand-in called ``name``, which must be one for ``task``; nothing is loaded. Errors name the ``setting``.

    Raises:
        InvalidValue: an unknown stand-in, or one of another shape than the task's data.
    """
    known = STAND_INS.get(name)
    if known is None or task.name not in known.tasks:
        fitting = [item.name for item in STAND_INS.values() if task.name in item.tasks]
        raise InvalidValue(
            f"{setting} for {task.name} must be one of {', '.join(fitting) or 'none so far'}, got {setting}={name!r}"
        )
    return known


def check_untested(stand_in: StandIn, task: Task, setting: str = "stand_in") -> None:
    """Refuse a stand-in with rows that ``task`` is tested on. Errors name the ``setting``.

    Raises:
        InvalidValue: it has some.
    """
    if task.name in stand_in.tested_by:
        others = [name for name in stand_in.tasks if name not in stand_in.tested_by]
        raise InvalidValue(
            f"{setting} must have no rows that {task.name} is tested on, got {setting}={stand_in.name!r}. Take a task "
            f"with other test rows, one of {', '.join(others)}"
        )


def public_rows(name: str, task: Task) -> Dataset:
    """The stand-in's training rows, the last ones of them (a fifth, at most `SCORED`) kept for scores in place of a
    test half. Its own test set is not touched.

    Raises:
        InvalidValue: an unknown stand-in, or one of another shape than the task's data.
    """
    known = find_stand_in(name, task)
    data = known.load()
    if task.name in known.as_bytes:
        pixels = data.train_inputs.mul(data.std).add_(data.mean).mul_(data.scale).round_()
        data = replace(data, train_inputs=pixels.to(torch.uint8))
    train = len(data) - min(SCORED, len(data) // 5)
    return replace(
        data,
        name=f"{name} for {task.name}",
        train_inputs=data.train_inputs[:train],
        train_targets=data.train_targets[:train],
        test_inputs=data.train_inputs[train:],
        test_targets=data.train_targets[train:],
    )


def load_stand_in(name: str, task: Task) -> Dataset:
    """The stand-in with as many training rows as ``task`` has, and a part of its own kept for scores.

    The last rows are scored; the others are repeated in order until there are as many as in the task, so that sample
    rate, steps and noise are those of the task. The stand-in's own test set is not touched.

    Raises:
        InvalidValue: an unknown stand-in, or one of another shape than the task's data.
    """
    data = public_rows(name, task)
    chosen = torch.arange(task.rows) % len(data)
    return replace(data, train_inputs=data.train_inputs[chosen], train_targets=data.train_targets[chosen])
