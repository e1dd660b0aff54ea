"""Plain torch modules that the tasks train."""

from decrescendo_papers.models.cnn import Normalised, infinite_cnn, paper_cnn
from decrescendo_papers.models.lstm import LastStateClassifier, name_lstm
from decrescendo_papers.models.mlp import MeanEmbedding, imdb_mlp, linear_scattered, wide_mlp
from decrescendo_papers.models.vgg import small_xray, vgg11

__all__ = [
    "paper_cnn",
    "infinite_cnn",
    "Normalised",
    "LastStateClassifier",
    "name_lstm",
    "MeanEmbedding",
    "imdb_mlp",
    "linear_scattered",
    "wide_mlp",
    "vgg11",
    "small_xray",
]
