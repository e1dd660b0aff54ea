"""Walks over autograd's graph."""

from collections.abc import Callable, Iterable, Iterator, Mapping

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


def shape_of(tensor: Tensor, names: Mapping[int, str]) -> tuple[object, ...]:
    """The graph that a tensor was made by: of each node its name, that of a leaf in ``names`` (by ``id``), and by which
    nodes its arguments were made, if they are trained.

    >>> import torch
    >>> one, two = torch.ones(1, requires_grad=True), torch.ones(1)
    >>> shape_of(one * 1.0 + two, {id(one): "one"}) == shape_of(two + one * 1.0, {id(one): "one"})
    False
    """
    nodes = [node for node, _ in walk([] if tensor.grad_fn is None else [tensor.grad_fn])]
    places = {node: at for at, node in enumerate(nodes)}
    return tuple(
        (
            node.name(),
            names.get(leaf_of(node), ""),
            tuple((None if inner is None else places[inner], at) for inner, at in node.next_functions),
        )
        for node in nodes
    )
