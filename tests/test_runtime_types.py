"""That the test run checks types and shapes: in which calls, and that a wrong one is seen at all."""

import jaxtyping
import pytest
import runtime_types
import torch

from decrescendo.clipping.rules.patches import Geometry, unfold

GEOMETRY = Geometry(kernel=(2,), stride=(1,), dilation=(1,), pad=(0, 0), groups=1)


@pytest.mark.parametrize("wrong", [torch.ones(3), torch.ones(1, 1, 3, dtype=torch.int64), "images"])
def test_a_wrong_shape_is_seen(wrong: object) -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        unfold(wrong, GEOMETRY)  # pyright: ignore[reportArgumentType]


def test_the_fields_of_a_dataclass_are_looked_at() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        Geometry(kernel=2, stride=(1,), dilation=(1,), pad=(0, 0), groups=1)  # pyright: ignore[reportArgumentType]


def test_the_first_calls_in_a_test_are_checked_and_one_in_so_many_later() -> None:
    seen: list[int] = []

    def check(function):
        return lambda number: seen.append(number)

    called = runtime_types.sampled(lambda number: None, check)
    for number in range(1, 2 * runtime_types.ONE_IN + 1):
        called(number)
    first = list(range(1, runtime_types.FIRST + 1))
    assert seen == [*first, runtime_types.ONE_IN, 2 * runtime_types.ONE_IN]
    seen.clear()
    runtime_types.next_test()
    called(0)
    assert seen == [0]
