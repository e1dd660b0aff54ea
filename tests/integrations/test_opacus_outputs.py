"""Containers of arguments are opened and rebuilt as torch does it."""

from collections import OrderedDict, namedtuple
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from decrescendo.base import torch_private
from decrescendo.integrations.opacus.outputs import tree_leaves, tree_map

Pair = namedtuple("Pair", ["first", "second"])
trees = st.recursive(
    st.sampled_from([None, 1, True, 2.5, "a", torch.zeros(2), torch.Size([2, 3]), slice(1), torch.float32, ...]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from("zab"), inner, max_size=3)
        | st.dictionaries(st.sampled_from("zab"), inner, max_size=3).map(OrderedDict)
        | st.tuples(inner, inner).map(lambda two: Pair(*two))
    ),
    max_leaves=8,
)


@given(tree=trees)
def test_leaves_and_their_order_are_torchs(tree: Any) -> None:
    assert list(map(id, tree_leaves(tree))) == list(map(id, torch_private.tree_leaves(tree)))
    seen, expected = list[Any](), list[Any]()
    one = tree_map(lambda leaf: seen.append(leaf) or len(seen), tree)
    two = torch_private.tree_map(lambda leaf: expected.append(leaf) or len(expected), tree)
    assert one == two
    assert type(one) is type(two)
    assert list(map(id, seen)) == list(map(id, expected))
