"""Plain torch modules that the tasks train."""

from decrescendo.models.cnn import Normalised, digits_cnn, infinite_cnn, initialised, paper_cnn
from decrescendo.models.lstm import LastStateClassifier, name_lstm
from decrescendo.models.mlp import MeanEmbedding, imdb_mlp, wide_mlp
from decrescendo.models.vgg import vgg11

__all__ = [
    "paper_cnn",
    "digits_cnn",
    "infinite_cnn",
    "Normalised",
    "LastStateClassifier",
    "name_lstm",
    "MeanEmbedding",
    "imdb_mlp",
    "wide_mlp",
    "vgg11",
    "initialised",
]
