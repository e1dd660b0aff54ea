"""Plain torch modules that the tasks train."""

from decrescendo.models.cnn import digits_cnn, initialised, paper_cnn

__all__ = ["paper_cnn", "digits_cnn", "initialised"]
