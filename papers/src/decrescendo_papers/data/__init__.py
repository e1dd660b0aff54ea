"""Public data sets, fetched once and verified by hash."""

from decrescendo_papers.data.dataset import Dataset
from decrescendo_papers.data.enlarged import enlarged_digits
from decrescendo_papers.data.images import digits, fashion_mnist, mnist, t_shirts
from decrescendo_papers.data.imdb import imdb, imdb_half, imdb_public
from decrescendo_papers.data.infinite import InfiniteMnist, infinite_mnist
from decrescendo_papers.data.names import names
from decrescendo_papers.data.principal import gaussian_rows, principal_mnist
from decrescendo_papers.data.scattering import scattered, whitened
from decrescendo_papers.data.surnames import synthetic_names
from decrescendo_papers.data.xray import chest_xray

__all__ = [
    "Dataset",
    "digits",
    "mnist",
    "fashion_mnist",
    "t_shirts",
    "names",
    "imdb",
    "imdb_half",
    "imdb_public",
    "chest_xray",
    "InfiniteMnist",
    "infinite_mnist",
    "enlarged_digits",
    "principal_mnist",
    "gaussian_rows",
    "scattered",
    "whitened",
    "synthetic_names",
]
