"""Made-up data: shaped like what they stand in for, the same for a seed, and made without opening any data set."""

import numpy as np
import pytest
import torch
from scipy import ndimage

from decrescendo.errors import InvalidValue
from decrescendo_papers.data import Dataset, fetch, synthetic_digits, synthetic_names
from decrescendo_papers.data.glyphs import FONTS, bitmap, characters, strokes, thinned
from decrescendo_papers.data.names import CODES, LENGTH, PADDING


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return synthetic_digits(600, seed=1)


@pytest.fixture(scope="module")
def surnames() -> Dataset:
    return synthetic_names(seed=1)


def pixels(data: Dataset) -> np.ndarray:
    """Back to bytes, whole numbers up to rounding."""
    return ((data.train_inputs * data.std + data.mean) * data.scale).squeeze(1).numpy()


def test_digits_are_shaped_and_coded_like_mnist(digits: Dataset) -> None:
    assert digits.train_inputs.shape == (600, 1, 28, 28)
    assert digits.test_inputs.shape == (100, 1, 28, 28)
    assert (digits.scale, digits.mean, digits.std) == (255.0, 0.1307, 0.3081)
    values = pixels(digits)
    assert np.abs(values - np.rint(values)).max() < 1e-3
    assert round(float(values.min())) == 0
    assert round(float(values.max())) == 255
    every = torch.cat([digits.train_targets, digits.test_targets])
    assert torch.bincount(every).tolist() == [70] * 10


def test_digits_are_centred_by_mass_and_fit_the_box(digits: Dataset) -> None:
    """Nearly: the line is centred and sized, not the ink, which gathers where lines meet."""
    images = pixels(digits)
    away = np.array([ndimage.center_of_mass(image) for image in images]) - 13.5
    assert np.abs(away.mean(axis=0)).max() < 0.1
    assert np.sqrt(np.square(away).mean(axis=0)).max() < 0.7
    dark = images > 100
    sides = [max(np.ptp(np.flatnonzero(image.any(axis=axis))) for axis in (0, 1)) + 1 for image in dark]
    assert np.median(sides) == 20
    assert np.percentile(sides, 1) >= 17
    assert max(sides) <= 23


def test_the_same_seed_gives_the_same_data_and_another_one_others(digits: Dataset, surnames: Dataset) -> None:
    assert torch.equal(synthetic_digits(600, seed=1).train_inputs, digits.train_inputs)
    assert not torch.equal(synthetic_digits(600, seed=2).train_inputs, digits.train_inputs)
    assert torch.equal(synthetic_names(seed=1).train_inputs, surnames.train_inputs)
    assert not torch.equal(synthetic_names(seed=2).train_inputs, surnames.train_inputs)


def test_no_data_set_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object) -> bytes:
        raise AssertionError("a data set was opened")

    for module in ("images", "imdb", "infinite", "names", "xray"):
        monkeypatch.setattr(f"decrescendo_papers.data.{module}.read", closed, raising=False)
    monkeypatch.setattr(fetch, "find_local", closed)
    strokes.cache_clear()
    assert len(synthetic_digits(12)) == 12
    assert len(synthetic_names()) == 20_000


def test_every_font_draws_every_digit() -> None:
    for digit in range(10):
        shapes = characters(digit)
        assert len(shapes) >= len(FONTS) - 1
        for font, character in shapes:
            shape = bitmap(font, character)
            line = thinned(shape)
            assert line[shape].sum() == line.sum() >= 10
            whole = np.ones((3, 3))
            # Thinning keeps what hangs together together, and holes open: a zero stays a ring.
            assert ndimage.label(line, whole)[1] == ndimage.label(shape, whole)[1]
            assert ndimage.label(~line)[1] == ndimage.label(~shape)[1]


def test_names_are_coded_as_the_real_ones(surnames: Dataset) -> None:
    rows = surnames.train_inputs
    assert rows.shape == (20_000, LENGTH)
    assert rows.dtype == torch.int64
    assert int(rows.max()) < CODES
    lengths = (rows != PADDING).sum(dim=1)
    assert (int(lengths.min()), int(lengths.max())) == (3, 12)
    inside = torch.arange(LENGTH) < lengths[:, None]
    assert bool(((rows != PADDING) == inside).all())  # padding at the end only
    assert bool(((rows[:, 0] >= 27) & (rows[:, 0] <= 52)).all())
    assert int(rows[:, 1:].max()) <= 26


def test_shares_of_languages_fall_like_a_power(surnames: Dataset) -> None:
    counts = torch.bincount(surnames.train_targets, minlength=18).sort(descending=True).values / 20_000
    expected = np.arange(1, 19) ** -1.5
    assert counts.numpy() == pytest.approx(expected / expected.sum(), abs=0.02)


def test_languages_can_be_told_apart_but_not_by_how_frequent_they_are(surnames: Dataset) -> None:
    """Pairs of letters, counted on the train half, tell more than half of the test half; always guessing the most
    frequent language does not."""

    def seen(inputs: torch.Tensor) -> torch.Tensor:
        pairs = inputs[:, :12] * 64 + inputs[:, 1:13]
        return torch.zeros(len(inputs), 64 * 64).scatter_(1, pairs, 1.0)

    classes = torch.nn.functional.one_hot(surnames.train_targets, 18).float()
    odds = torch.log((classes.T @ seen(surnames.train_inputs) + 0.1) / (classes.sum(dim=0)[:, None] + 1))
    guess = (seen(surnames.test_inputs) @ odds.T + torch.log(classes.mean(dim=0))).argmax(dim=1)
    right = float((guess == surnames.test_targets).float().mean())
    assert float(classes.mean(dim=0).max()) + 0.1 < right < 0.99


@pytest.mark.parametrize(
    ("count", "seed", "message"),
    [(5, 0, "count must be .*got count=5"), (60, -1, "seed must be .*got seed=-1")],
)
def test_wrong_inputs(count: int, seed: int, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        synthetic_digits(count, seed)
    with pytest.raises(InvalidValue, match="seed must be"):
        synthetic_names(-1)
