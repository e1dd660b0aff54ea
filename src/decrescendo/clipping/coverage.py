"""Proof that no use of a trainable parameter was missed: a walk over the autograd graph of the losses."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from decrescendo.clipping.recording import Use
from decrescendo.errors import UnsupportedModel


def check_coverage(
    losses: Tensor, uses: Sequence[Use], parameters: Mapping[str, Tensor]
) -> AbstractSet[Node]:
    """The nodes that the losses depend on.

    Every path from the losses to a trainable parameter must pass a recorded operation as its parameter.

    Uses that are not seen as torch functions (inside a custom ``autograd.Function`` or a fused kernel) are
    found here, whatever the values are: this depends on the structure of the graph only.

    Raises:
        UnsupportedModel: a parameter is reached past the recorded operations.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    recorded: dict[Node, list[Use]] = {}
    for use in uses:
        recorded.setdefault(use.edge.node, []).append(use)
    seen: set[Node] = set()
    stack: list[tuple[Node, Node]] = []

    def push(node: Node | None, above: Node) -> None:
        if node is not None and node not in seen:
            seen.add(node)
            stack.append((node, above))

    start = losses.grad_fn
    if start is None:
        return seen
    push(start, start)
    while stack:
        node, above = stack.pop()
        known = recorded.get(node)
        if known is not None:
            for edge in (edge for use in known for edge in use.outer):
                push(edge.node, node)
            _check_inside(node, known, names)
            continue
        if node.name() == "CheckpointFunctionBackward":
            # What happens inside is not in the graph at all: its parameters would be missed.
            raise UnsupportedModel(
                "every use of a trainable parameter must be in the graph of the losses, got a part of the model "
                "under torch.utils.checkpoint with use_reentrant=True, which leaves its parameters out. "
                "Give it use_reentrant=False (transformers: gradient_checkpointing_enable"
                "({'use_reentrant': False}))"
            )
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor) and id(variable) in names:
            raise UnsupportedModel(_message(names[id(variable)], above))
        for following, _ in node.next_functions:
            push(following, node)
    return seen


def _check_inside(top: Node, uses: Sequence[Use], names: Mapping[int, str]) -> None:
    """From a recorded output to its arguments: only the parameters it was recorded with are in between."""
    allowed: set[Node] = {_node(edge) for use in uses for edge in (*use.inner, *use.outer)}
    own = {id(item.tensor) for use in uses for item in use.parameters if item.root}
    seen: set[Node] = {top}
    stack: list[tuple[Node, Node]] = [(following, top) for following, _ in top.next_functions if following]
    while stack:
        node, above = stack.pop()
        if node in seen or node in allowed:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor) and id(variable) in names and id(variable) not in own:
            raise UnsupportedModel(_message(names[id(variable)], above))
        stack.extend((following, node) for following, _ in node.next_functions if following is not None)


def _node(edge: GradientEdge) -> Node:
    return edge.node


def _message(name: str, above: Node) -> str:
    return (
        f"every use of a trainable parameter must be visible as a torch function, got {name} used by "
        f"{above.name()} unseen. Freeze it, or write that part with ordinary torch operations"
    )
