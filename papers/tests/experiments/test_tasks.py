"""Facts: tasks have the papers' settings, and come through the library's door."""

import pytest

from decrescendo.errors import InvalidValue
from decrescendo.training import find_task as find_anywhere
from decrescendo_papers.cli import options
from decrescendo_papers.experiments.spec import ACCOUNTANTS
from decrescendo_papers.experiments.tasks import TASKS, find_task


def test_the_settings_of_the_paper() -> None:
    mnist, fashion = find_task("mnist"), find_task("fashion-mnist")
    assert (mnist.steps, mnist.batch, mnist.learning_rate, mnist.clip) == (4800, 250, 0.15, 1.5)
    assert (fashion.steps, fashion.batch, fashion.learning_rate, fashion.clip) == (4800, 250, 0.15, 4.0)
    assert mnist.delta == pytest.approx(1 / 600_000)


def test_the_declared_number_of_rows_is_that_of_the_data() -> None:
    # A plan can be made without loading the data: this number must be right. (MNIST: tests/data.)
    assert find_task("digits").rows == len(find_task("digits").load())
    assert {TASKS[name].rows for name in ("mnist", "fashion-mnist")} == {60_000}


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(InvalidValue, match="digits, mnist, fashion-mnist"):
        find_task("imagenet")


def test_the_names_in_help_are_the_names_there_are() -> None:
    assert [name.value for name in options.TaskName] == list(TASKS)
    assert [name.value for name in options.AccountantName] == list(ACCOUNTANTS)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_comes_through_the_librarys_door(name: str) -> None:
    found, known = find_anywhere(f"decrescendo_papers.tasks:{name.replace('-', '_')}"), find_task(name)
    assert (found.count, found.batch, found.clip, found.epochs) == (
        known.rows, known.batch, known.clip, known.epochs,
    )  # fmt: skip
    assert (found.optimizer, found.learning_rate, found.delta) == (
        known.optimizer, known.learning_rate, known.delta,
    )  # fmt: skip
