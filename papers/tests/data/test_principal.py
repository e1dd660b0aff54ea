"""Facts: components, centre and scale come from the public images alone, and no private row depends on another; made-up
rows are what they say, and the same again."""

import numpy as np
import pytest
import torch

from decrescendo.errors import InvalidValue
from decrescendo_papers.data import gaussian_rows, principal, principal_mnist
from decrescendo_papers.data.principal import NORM, PUBLIC_FROM, shortened

COUNT = 60_000


def arrays(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """As `mnist_arrays`: small images of noise with a class in them."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, size=COUNT).astype(np.int64)
    pixels = random.integers(0, 255, size=(COUNT, 4, 4), dtype=np.uint8)
    pixels[:, 0, 0] = 25 * labels
    return pixels, labels, pixels[:500].copy(), labels[:500].copy()


@pytest.fixture
def images(monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    known = arrays()
    monkeypatch.setattr(principal, "mnist_arrays", lambda: known)
    return known


def test_changing_one_private_image_changes_its_row_and_nothing_else(
    images: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
) -> None:
    pixels, labels, *_ = images
    before = principal_mnist((3, 5), components=6)
    place = int(np.flatnonzero(np.isin(labels[:PUBLIC_FROM], (3, 5)))[7])
    pixels[place] = 255
    after = principal_mnist((3, 5), components=6)
    changed = (before.train_inputs != after.train_inputs).any(dim=1)
    assert changed.nonzero().flatten().tolist() == [7]
    assert torch.equal(before.test_inputs, after.test_inputs)
    assert float(after.train_inputs[7].norm()) <= NORM * (1 + 1e-6)


def test_public_images_are_in_no_private_set(
    images: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
) -> None:
    pixels, labels, *_ = images
    before = principal_mnist((3, 5), components=6)
    assert len(before) == int(np.isin(labels[:PUBLIC_FROM], (3, 5)).sum())
    assert before.train_targets.tolist() == [int(label == 5) for label in labels[:PUBLIC_FROM] if label in (3, 5)]
    pixels[PUBLIC_FROM:] = pixels[PUBLIC_FROM:][::-1] // 2  # other components: all rows move
    after = principal_mnist((3, 5), components=6)
    assert len(after) == len(before)
    assert (before.train_inputs != after.train_inputs).any(dim=1).all()


def test_rows_have_unit_variance_before_the_scale_and_are_at_most_ten_long(
    images: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
) -> None:
    rows = principal_mnist(components=6).train_inputs.double()
    lengths = rows.norm(dim=1)
    assert 0.9 * NORM < float(lengths.max()) <= NORM * (1 + 1e-6)
    free = rows[lengths < NORM * (1 - 1e-4)]
    spread = free.std(dim=0)
    assert float(spread.max() / spread.min()) < 1.1
    assert float(rows.mean(dim=0).abs().max()) < 0.05 * float(spread.mean())


@pytest.mark.parametrize(("digits", "components"), [((3,), 6), ((3, 3), 6), ((3, 10), 6), ((3, 5), 785)])
def test_digits_and_components_out_of_range_are_refused(digits: tuple[int, ...], components: int) -> None:
    with pytest.raises(InvalidValue):
        principal_mnist(digits, components=components)


def test_shortened_rows_keep_their_direction() -> None:
    rows = np.random.default_rng(0).standard_normal((200, 5)) * 3
    short = shortened(rows, 4.0)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(short, rows * np.where(lengths > 4, 4 / lengths, 1.0))


def test_made_up_rows_are_gaussian_learnable_and_the_same_again() -> None:
    one, other = gaussian_rows(3, 3000), gaussian_rows(3, 3000, seed=1)
    again = gaussian_rows(3, 3000)
    assert torch.equal(one.train_inputs, again.train_inputs)
    assert torch.equal(one.train_targets, again.train_targets)
    assert not torch.equal(one.train_inputs, other.train_inputs)
    rows = one.train_inputs.double()
    assert float(torch.cat([rows, one.test_inputs.double()]).norm(dim=1).max()) == pytest.approx(NORM, rel=1e-6)
    spread = float(rows.std())
    # Five standard errors: of a mean, of a variance, and of a kurtosis of 3, which uniform rows (1.8) do not have.
    count = rows.numel()
    assert abs(float(rows.mean())) < 5 * spread / count**0.5
    assert float(((rows / spread) ** 4).mean()) == pytest.approx(3.0, abs=5 * (96 / count) ** 0.5)
    assert set(one.train_targets.tolist()) == {0, 1, 2}
    # Classes are those of a linear rule: least squares on indicators finds most of them, on rows it has not seen.
    indicators = torch.nn.functional.one_hot(one.train_targets, 3).double()
    found = torch.linalg.lstsq(rows, indicators - indicators.mean(dim=0)).solution
    right = (one.test_inputs.double() @ found).argmax(dim=1) == one.test_targets
    assert float(right.double().mean()) > 0.85
