"""`Step`: an operation on a tape, with slots for its tensors."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from decrescendo.base.storages import byte_form, storage_key
from decrescendo.errors import UnsupportedModel

# Tags of operations whose output shape, or result in Python, depends on values.
READS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


# Operations that change a tensor's layout in place: replayed as the view that their out-of-place form makes.
TURNED = frozenset({"t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "swapdims_", "as_strided_", "detach_"})


_MASKS = (torch.bool, torch.uint8)


class Step(NamedTuple):
    """One recorded call. ``values``: its arguments, ``None`` for tensors; ``slots``: position and number of each
    tensor; ``lists``: position, type and items of each list with tensors; ``names``: of the last values, given by
    keyword.

    ``made``: the numbers of its results; ``single``: it returns one tensor; ``pure``: it neither writes nor draws.
    """

    function: Callable[..., Any]
    values: list[Any]
    slots: list[tuple[int, int]]
    lists: list[tuple[int, type, list[tuple[bool, Any]]]]
    names: tuple[str, ...]
    made: tuple[int | None, ...]
    single: bool
    pure: bool

    @property
    def given(self) -> list[int]:
        """The numbers of its tensor arguments."""
        inside = [value for *_, items in self.lists for is_tensor, value in items if is_tensor]
        return [number for _, number in self.slots] + inside

    @property
    def target(self) -> str:
        """The left side of its line of code, for `function_of`."""
        if self.single:
            return f"t{self.made[0]} = "
        return "".join("_, " if number is None else f"t{number}, " for number in self.made) + "= " * bool(self.made)

    def arguments(self, prefix: str, names: dict[str, Any]) -> str:
        """The arguments in its line of code; values that are no tensors are put into ``names``."""
        names |= {f"{prefix}_{at}": value for at, value in enumerate(self.values)}
        given = [f"{prefix}_{at}" for at in range(len(self.values))]
        for at, number in self.slots:
            given[at] = f"t{number}"
        for at, kind, items in self.lists:
            inside = [f"t{value}" if is_tensor else f"{given[at]}_{n}" for n, (is_tensor, value) in enumerate(items)]
            names |= {name: value for name, (is_tensor, value) in zip(inside, items, strict=True) if not is_tensor}
            given[at] = f"[{', '.join(inside)}]" if kind is list else f"({', '.join(inside)},)"
        positional = len(given) - len(self.names)
        named = [f"{name}={value}" for name, value in zip(self.names, given[positional:], strict=True)]
        return ", ".join(given[:positional] + named)


def function_of(
    steps: Sequence[Step], constants: Mapping[int, Tensor], takes: Sequence[int], gives: Sequence[int]
) -> Callable[[list[Tensor]], list[Tensor]]:
    """The steps as a function from the tensors ``takes`` to the tensors ``gives``. It empties the list that it is
    given, and drops each tensor after its last use.

    It is generated code, one line a step: a loop over the steps takes a fifth more of a small model's replay.
    """
    last = dict[int, int]()
    for at, step in enumerate(steps):
        last |= dict.fromkeys((*step.given, *(number for number in step.made if number is not None)), at)
    for number in (*gives, *constants):
        last.pop(number, None)
    dropped: dict[int, str] = {}
    for number, at in last.items():
        dropped[at] = f"{dropped.get(at, '')}t{number} = "
    # Names of the code: t7 is tensor 7, f3 the function of step 3, v3_1 its second value, v3_1_0 an entry of that.
    names: dict[str, Any] = {f"t{number}": tensor for number, tensor in constants.items()}
    lines = [f" t{number} = taken.pop()" for number in reversed(takes)]
    for at, step in enumerate(steps):
        names[f"f{at}"] = step.function
        lines.append(f" {step.target}f{at}({step.arguments(f'v{at}', names)})")
        if at in dropped:
            lines.append(f" {dropped[at]}None")
    code = "\n".join(["def run(taken):", *lines, f" return [{', '.join(f't{number}' for number in gives)}]"])
    exec(compile(code, "<replayed pass>", "exec"), names)  # (of numbers, and of names of torch's arguments)
    return names["run"]


def place_of(tensor: Tensor) -> object:
    if tensor.layout is not torch.strided:
        raise UnsupportedModel(f"tensors must be dense, got one of {tensor.layout}")
    laid = tensor.shape, tensor.stride(), tensor.storage_offset(), byte_form(tensor)
    return storage_key(tensor), *laid


def has_mask(indices: Iterable[object]) -> bool:
    return any(isinstance(index, Tensor) and index.dtype in _MASKS for index in indices)
