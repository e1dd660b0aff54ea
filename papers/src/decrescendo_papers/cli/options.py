"""What the commands share. The names repeat a table from elsewhere, so that --help stays quick; a test compares."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class TaskName(StrEnum):
    """Names of experiments.tasks.TASKS."""

    DIGITS = "digits"
    MNIST = "mnist"
    FASHION_MNIST = "fashion-mnist"
    IMDB = "imdb"
    IMDB_HALF = "imdb-half"
    NAMES = "names"
    XRAY = "xray"
    XRAY_RANDOM = "xray-random"
    INFINITE_MNIST_250K = "infinite-mnist-250k"
    INFINITE_MNIST_500K = "infinite-mnist-500k"
    MNIST_SCATTERED = "mnist-scattered"
    FASHION_MNIST_SCATTERED = "fashion-mnist-scattered"
    MNIST_WHITENED = "mnist-whitened"
    FASHION_MNIST_WHITENED = "fashion-mnist-whitened"
    MNIST_PCA = "mnist-pca"
    MNIST35_PCA = "mnist35-pca"


class AccountantName(StrEnum):
    """Names of experiments.spec.ACCOUNTANTS."""

    PLD = "pld"
    CLT = "clt"
    ZCDP = "zcdp"
    TCDP = "tcdp"


Results = Annotated[Path, typer.Option(help="Folder of finished runs.")]
Influences = Annotated[Path, typer.Option(help="Folder of measured influences.")]
Curves = Annotated[Path, typer.Option(help="Folder of what is computed without training: cost curves, other units.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
PaperTask = Annotated[TaskName, typer.Argument(help="One of the papers' tasks.")]
