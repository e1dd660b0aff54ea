"""Checks that no use of a trainable parameter was missed, by a walk over the autograd graph of the losses."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from torch import Tensor
from torch.autograd.graph import Node

from decrescendo.clipping.graph import leaf_of, next_nodes, walk
from decrescendo.clipping.uses import Use
from decrescendo.errors import UnsupportedModel
from decrescendo.row_independence.tracing import SECOND_DERIVATIVE


def check_coverage(
    losses: Tensor, uses: Sequence[Use], parameters: Mapping[str, Tensor], *, double_backward: bool = False
) -> AbstractSet[Node]:
    """Check that no use was missed; returns the autograd nodes that the losses depend on.

    Every path from the losses to a trainable parameter must pass a recorded operation as its parameter.

    Uses that are not seen as torch functions (inside a custom ``autograd.Function`` or a fused kernel) are
    found here, whatever the values are: this depends on the structure of the graph only. ``twice``: the loss has asked
    for gradients that are differentiated again.

    Raises:
        UnsupportedModel: a parameter is reached past the recorded operations.
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    recorded: dict[Node, list[Use]] = {}
    for use in uses:
        recorded.setdefault(use.edge.node, []).append(use)

    def onwards(node: Node) -> Iterable[Node]:
        known = recorded.get(node)
        return next_nodes(node) if known is None else [edge.node for use in known for edge in use.outer]

    seen: set[Node] = set()
    for node, above in walk([] if losses.grad_fn is None else [losses.grad_fn], onwards):
        seen.add(node)
        if node in recorded:
            _check_inside(node, recorded[node], names)
        elif node.name() == "CheckpointFunctionBackward":
            # What happens inside is not in the graph at all: its parameters would be missed.
            raise UnsupportedModel(
                "every use of a trainable parameter must be in the graph of the losses, got a part of the model "
                "under torch.utils.checkpoint with use_reentrant=True, which leaves its parameters out. "
                "Give it use_reentrant=False (transformers: gradient_checkpointing_enable"
                "({'use_reentrant': False}))"
            )
        elif leaf_of(node) in names:
            if double_backward:
                raise UnsupportedModel(SECOND_DERIVATIVE)
            raise UnsupportedModel(_message(names[leaf_of(node)], above))
    return seen


def _check_inside(top: Node, uses: Sequence[Use], names: Mapping[int, str]) -> None:
    """Raise if a parameter that was not recorded is between a recorded output and its arguments."""
    allowed = {edge.node for use in uses for edge in (*use.inner, *use.outer)}
    own = {id(item.tensor) for use in uses for item in use.parameters if item.root}
    for node, above in walk([top], lambda node: [n for n in next_nodes(node) if n not in allowed]):
        leaf = leaf_of(node)
        if leaf in names and leaf not in own:
            raise UnsupportedModel(_message(names[leaf], above))


def _message(name: str, above: Node) -> str:
    if above.name() == "AliasBackward0":
        return (
            f"every use of a trainable parameter must be visible as a torch function, got {name} made a plain tensor "
            "by as_subclass() unseen. Use the parameter itself"
        )
    return (
        f"every use of a trainable parameter must be visible as a torch function, got {name} used by "
        f"{above.name()} unseen. Freeze it, or write that part with ordinary torch operations (of a function that "
        "passes gradients straight through: w + (q(w) - w).detach())"
    )
