"""Walks over autograd's graph."""

from collections.abc import Callable, Iterable, Iterator

from torch import Tensor
from torch.autograd.graph import Node


def next_nodes(node: Node) -> Iterable[Node]:
    """The nodes to which a node passes gradients on."""
    return [following for following, _ in node.next_functions if following is not None]


def walk(starts: Iterable[Node], onwards: Callable[[Node], Iterable[Node]] = next_nodes) -> Iterator[tuple[Node, Node]]:
    """Each reachable node once, with the node it was reached from (a start: itself); ``onwards``: a node's next
    nodes."""
    stack, seen = [(node, node) for node in starts], set[Node]()
    while stack:
        node, above = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node, above
            stack.extend((following, node) for following in onwards(node))


def leaf_of(node: Node) -> int:
    """The ``id`` of the leaf tensor whose gradient a node accumulates; 0 for other nodes.

    >>> import torch
    >>> weight = torch.ones(1, requires_grad=True)
    >>> [leaf_of(node) == id(weight) for node, _ in walk([(weight * 2).grad_fn])]
    [False, True]
    """
    variable = getattr(node, "variable", None)
    return id(variable) if isinstance(variable, Tensor) else 0
