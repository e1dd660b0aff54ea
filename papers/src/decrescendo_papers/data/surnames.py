"""Made-up surnames of made-up languages: public data to search the settings of the name task on."""

import numpy as np
import torch
from jaxtyping import Float64, Int64

from decrescendo_papers.data.dataset import Dataset
from decrescendo_papers.data.frozen import frozen_stream
from decrescendo_papers.data.names import LENGTH, PADDING
from decrescendo_papers.data.names import LETTERS as ALPHABET

ROWS, LANGUAGES = 20_000, 18
LETTERS = 26
START = LETTERS  # what stands before the first letter
SHORTEST, LONGEST = 3, 12
# The k-th most frequent language has a share in proportion to k ** -POWER.
POWER = 1.5
# How uneven the choice of the next letter is: of a language's own, and of the one that all share.
OWN, SHARED = 0.1, 0.15
CAPITALS = 26  # from a letter's code to its capital's, as `names.encode` numbers them


def synthetic_names(seed: int = 0) -> Dataset:
    """20,000 train and 4,000 test surnames of 18 made-up languages, (rows, 20) letter codes as `data.names` has them.

    A language is a chain in which the next letter depends on the last two: half of the time by odds of its own,
    otherwise by odds that all languages share, both of them sparse. Names have 3 to 12 letters a-z, the first one a
    capital; each language has a usual length. Shares of the languages fall like k^-1.5 (the first one has 46 %), and
    which class has which share is drawn. Nothing was counted on real names.

    The same seed gives the same names.

    Args:
        seed: whole number >= 0; languages, too, depend on it.

    Raises:
        InvalidValue: ``seed`` below 0.

    >>> made = synthetic_names()
    >>> made
    Dataset(synthetic-names: 20000 train, 4000 test, 18 classes, inputs 20)
    >>> [read(row) for row in made.train_inputs[:3]]
    ['Goqfpt', 'Vjddah', 'Vkwjf']
    """
    random = frozen_stream("synthetic-names", seed)
    odds = _odds(random)
    shares = np.arange(1, LANGUAGES + 1, dtype=np.float64) ** -POWER
    shares = random.permutation(shares / shares.sum())
    rows = ROWS + ROWS // 5
    classes = np.searchsorted(np.cumsum(shares)[:-1], random.uniform(size=rows), side="right")
    usual = random.uniform(0.2, 0.6, LANGUAGES)
    lengths = SHORTEST + random.binomial(LONGEST - SHORTEST, usual[classes])
    codes = torch.from_numpy(_walked(classes, lengths, odds, random))
    targets = torch.from_numpy(classes.astype(np.int64))
    return Dataset(
        name="synthetic-names",
        train_inputs=codes[:ROWS],
        train_targets=targets[:ROWS],
        test_inputs=codes[ROWS:],
        test_targets=targets[ROWS:],
        classes=LANGUAGES,
    )


def read(codes: torch.Tensor) -> str:
    """A row of codes as text: what `names.encode` makes codes of.

    >>> from decrescendo_papers.data.names import encode
    >>> read(torch.tensor(encode("Nunez")))
    'Nunez'
    """
    return "".join(ALPHABET[code - 1] for code in codes.tolist() if code != PADDING)


def _odds(random: np.random.RandomState) -> Float64[np.ndarray, "languages before last letters"]:
    """Cumulated odds of the next letter."""
    contexts = (LETTERS + 1, LETTERS + 1)
    own = random.dirichlet(np.full(LETTERS, OWN), (LANGUAGES, *contexts))
    shared = random.dirichlet(np.full(LETTERS, SHARED), contexts)
    return np.cumsum((own + shared) / 2, axis=-1)


def _walked(
    classes: Int64[np.ndarray, " n"],
    lengths: Int64[np.ndarray, " n"],
    odds: Float64[np.ndarray, "languages before last letters"],
    random: np.random.RandomState,
) -> Int64[np.ndarray, "n length"]:
    codes = np.full((len(classes), LENGTH), PADDING, dtype=np.int64)
    before = last = np.full(len(classes), START)
    for place in range(LONGEST):
        drawn = random.uniform(size=(len(classes), 1))
        letter = np.minimum((odds[classes, before, last] < drawn).sum(axis=1), LETTERS - 1)
        written = letter + 1 + (CAPITALS if place == 0 else 0)
        codes[:, place] = np.where(place < lengths, written, PADDING)
        before, last = last, letter
    return codes
