"""That the test run checks types and shapes: in which calls, and that a wrong one is seen at all."""

import inspect

import jaxtyping
import pytest
import runtime_types
import torch

from decrescendo.clipping.rules.patches import Geometry, unfold

GEOMETRY = Geometry(kernel=(2,), stride=(1,), dilation=(1,), pad=(0, 0), groups=1)


@pytest.mark.parametrize("wrong", [torch.ones(3), torch.ones(1, 1, 3, dtype=torch.int64), "images"])
def test_a_wrong_shape_is_seen(wrong: object) -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        unfold(wrong, GEOMETRY)


def test_the_fields_of_a_dataclass_are_looked_at() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        Geometry(kernel=2, stride=(1,), dilation=(1,), pad=(0, 0), groups=1)


def test_the_first_call_in_a_test_is_checked_and_no_other() -> None:
    seen: list[tuple[object, ...]] = []

    def check(function):
        def checked(*args: object, **kwargs: object) -> object:
            seen.append((*args, *kwargs))
            return function(*args, **kwargs)

        return checked

    outer = 3

    def total(first: int, second: int = 2, *, third: int) -> int:
        return outer + first + second + third

    called = runtime_types.sampled(total, check)
    for _ in range(2):
        seen.clear()
        assert [called(1, third=4), called(1, 1, third=4), called(5, third=0)] == [10, 9, 10]
        assert seen == [(1, "third")]
        assert list(inspect.signature(called).parameters) == ["first", "second", "third"]
        runtime_types.next_test(__file__)


def test_in_a_long_file_the_first_tests_are_checked() -> None:
    seen: list[int] = []
    called = runtime_types.sampled(_nothing, lambda function: lambda number: seen.append(number))
    runtime_types.next_test("another file")
    for number in range(2 * runtime_types.MOST):
        called(number)
        runtime_types.next_test("another file")
    assert seen == list(range(runtime_types.MOST + 1))
    runtime_types.next_test(__file__)
    called(-1)
    assert seen[-1] == -1


def _nothing(number: int) -> None:
    pass


def test_a_method_that_calls_its_base_and_one_that_calls_itself() -> None:
    seen: list[str] = []

    def check(function):
        def checked(*args: object) -> object:
            seen.append(function.__name__)
            return function(*args)

        return checked

    class Base:
        def double(self, number: int) -> int:
            return 2 * number

    class Derived(Base):
        def double(self, number: int) -> int:
            return 1 + super().double(number)

        def factorial(self, number: int) -> int:
            return number * self.factorial(number - 1) if number else 1

    for method in (Derived.double, Derived.factorial):
        runtime_types.sampled(method, check)
    assert Derived().double(4) == 9
    assert Derived().factorial(4) == 24
    assert seen == ["double", "factorial"]
