"""Public data sets, fetched once and verified by hash, and the rows that training draws from."""

from decrescendo.data.clothing import synthetic_clothing
from decrescendo.data.dataset import Dataset
from decrescendo.data.enlarged import enlarged_digits
from decrescendo.data.images import digits, fashion_mnist, mnist
from decrescendo.data.imdb import imdb, imdb_half, imdb_public
from decrescendo.data.infinite import InfiniteMnist, infinite_mnist
from decrescendo.data.names import names
from decrescendo.data.principal import gaussian_rows, principal_mnist
from decrescendo.data.rows import Rows, rows
from decrescendo.data.surnames import synthetic_names
from decrescendo.data.synthetic import synthetic_digits
from decrescendo.data.xray import chest_xray

__all__ = [
    "Dataset",
    "digits",
    "mnist",
    "fashion_mnist",
    "names",
    "imdb",
    "imdb_half",
    "imdb_public",
    "chest_xray",
    "InfiniteMnist",
    "infinite_mnist",
    "synthetic_digits",
    "synthetic_clothing",
    "enlarged_digits",
    "principal_mnist",
    "gaussian_rows",
    "synthetic_names",
    "Rows",
    "rows",
]
