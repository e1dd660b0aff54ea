"""Facts: every name of torch that the source asks for, public or private, is in the installed torch. A private name may
go with any version, and one that a rare line asks for would be missed in that line only."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

SOURCE = Path(__file__).resolve().parents[1] / "src"
# `cast("Any", torch)` and `cast("Any", torch.jit)` are the modules; `_C = torch._C` is another name for one.
CAST = re.compile(r'cast\("Any", (torch(?:\.\w+)*)\)')
ALIAS = re.compile(r"^(\w+)(?:: \w+)? = (torch(?:\.\w+)*)$", re.MULTILINE)
CHAIN = re.compile(r"(?<![\w.\"'`])(\w+)((?:\.\w+)+)")


def names_in(text: str) -> set[str]:
    """As ``torch._C._functorch``, each as long as it is written. (What is imported is missed when it is imported.)"""
    text = CAST.sub(r"\1", text)
    alias = {"torch": "torch", **dict(ALIAS.findall(text))}
    return {alias[root] + rest for root, rest in CHAIN.findall(text) if root in alias}


def lacks(name: str) -> bool:
    """Whether torch has no such name. A module that ``import torch`` leaves out is looked for, not into: it is slow."""
    at: Any = torch
    reached = "torch"
    for part in name.split(".")[1:]:
        reached += f".{part}"
        try:
            at = getattr(at, part)
        except AttributeError:
            return not hasattr(at, "__path__") or find_spec(reached) is None
    return False


@pytest.mark.filterwarnings("ignore::Warning")
def test_every_name_of_torch_that_the_source_asks_for_is_there() -> None:
    asked = {name for file in SOURCE.rglob("*.py") for name in names_in(file.read_text(encoding="utf-8"))}
    assert "torch._C._functorch.peek_interpreter_stack" in asked
    assert "torch.UntypedStorage._expired" in asked
    assert len(asked) > 250
    assert sorted(filter(lacks, asked)) == []


def test_a_name_that_is_not_there_is_found() -> None:
    """The power of the test above."""
    text = """_C = cast("Any", torch)._C
_C._gone(1)
x = torch.jit._state._lost
y = torch.utils._pytree.tree_leaves
"""
    lost = {"torch._C._gone", "torch.jit._state._lost"}
    assert {name for name in names_in(text) if lacks(name)} == lost
