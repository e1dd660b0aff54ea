"""Walks over autograd's graph."""

from collections.abc import Callable, Iterable, Iterator

from torch import Tensor
from torch.autograd.graph import Node


def behind(node: Node) -> Iterable[Node]:
    """The nodes that gradients go to from a node."""
    return [following for following, _ in node.next_functions if following is not None]


def walk(
    starts: Iterable[Node], onwards: Callable[[Node], Iterable[Node]] = behind
) -> Iterator[tuple[Node, Node]]:
    """Each node once, with one from which it was reached (itself, at the start); ``onwards``: where to go from it."""
    stack, seen = [(node, node) for node in starts], set[Node]()
    while stack:
        node, above = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node, above
            stack.extend((following, node) for following in onwards(node))


def leaf_of(node: Node) -> int:
    """The ``id`` of the tensor at which gradients end; 0 of a node that is no leaf.

    >>> import torch
    >>> weight = torch.ones(1, requires_grad=True)
    >>> [leaf_of(node) == id(weight) for node, _ in walk([(weight * 2).grad_fn])]
    [False, True]
    """
    variable = getattr(node, "variable", None)
    return id(variable) if isinstance(variable, Tensor) else 0
