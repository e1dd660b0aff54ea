"""Closed-form norms for a parameter used by several operations: a shared layer, an unrolled recurrence, a
tied embedding.

Products with the same weight are one product over all their positions together. A matrix that is both looked up and
multiplied by (an embedding that is also the output layer) has g = L + E with |g|^2 = |L|^2 + |E|^2 + 2 <L, E>, and
<L, E> = sum_{s,t} d_s[id_t] (a_s . e_t): only the entries of d at the ids that occur are needed.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from decrescendo.clipping.clipped import norm_dtype
from decrescendo.clipping.recurrent.packed import PackedKernel
from decrescendo.clipping.rules.embedding import EmbeddingKernel
from decrescendo.clipping.rules.linear import LinearKernel
from decrescendo.clipping.rules.rule import Kernel
from decrescendo.clipping.uses import Tracked
from decrescendo.clipping.workspace import chunks


@dataclass(slots=True)
class Part:
    """The contribution of one operation to the gradient of one tracked tensor."""

    kernel: Kernel
    slot: int
    source: Tracked
    d: Tensor


def merged(parts: list[Part]) -> list[Part]:
    """The contributions to one tensor, merged into as few parts as closed forms allow."""
    found: list[Part] = []
    lookups: list[Part] = []
    groups: dict[bool, list[Part]] = {False: [], True: []}
    for part in map(_padded, parts):
        if isinstance(part.kernel, LinearKernel) and _is_product(part):
            groups[part.kernel.transposed].append(part)
        elif isinstance(part.kernel, EmbeddingKernel):
            lookups.append(part)
        else:
            found.append(part)
    found += [group[0] if len(group) == 1 else _one_product(group) for group in groups.values() if group]
    paddings = {part.kernel.padding for part in lookups if isinstance(part.kernel, EmbeddingKernel)}
    return [*found, *([_one_lookup(lookups)] if len(lookups) > 1 and len(paddings) == 1 else lookups)]


def _padded(part: Part) -> Part:
    """A part on packed rows as one on padded rows, so that positions of several operations can be concatenated."""
    if not isinstance(part.kernel, PackedKernel):
        return part
    kernel, d = part.kernel.padded(part.d)
    return replace(part, kernel=kernel, d=d)


def is_tied(parts: list[Part]) -> bool:
    """Whether these are one untransposed product and one lookup of the same matrix."""
    if len(parts) != 2 or parts[0].source.tensor is not parts[1].source.tensor:
        return False
    product, lookup = parts[0].kernel, parts[1].kernel
    return (
        isinstance(product, LinearKernel)
        and isinstance(lookup, EmbeddingKernel)
        and _is_product(parts[0])
        and not product.transposed
    )


def tied_norms(product: Part, lookup: Part) -> Float[Tensor, " batch"]:
    """|L + E|^2 of a matrix that is multiplied by and looked up in, rounded upwards."""
    assert isinstance(product.kernel, LinearKernel)
    assert isinstance(lookup.kernel, EmbeddingKernel)
    first = product.kernel.squared_norms(product.slot, product.d)
    second = lookup.kernel.squared_norms(lookup.slot, lookup.d)
    a, d = product.kernel.positions(product.d)
    ids = lookup.kernel.ids
    e = lookup.d.reshape(*ids.shape, -1).to(d.dtype)
    if lookup.kernel.padding is not None:
        e = e.masked_fill((ids == lookup.kernel.padding).unsqueeze(-1), 0)
    cross, bound = inner_products(a, d, ids, e)
    # Where the two cancel, digits are lost, and more of them the more terms the stored sums have: a bound on
    # that is added, so that the norm is never too small.
    terms = 4 + a.shape[1] + ids.shape[1]
    allowance = torch.finfo(d.dtype).eps * (terms * bound + 4 * (first + second))
    return (first + second + 2 * cross).clamp(min=0) + allowance


def inner_products(
    a: Float[Tensor, "batch positions features"],
    d: Float[Tensor, "batch positions outputs"],
    ids: Int[Tensor, "batch places"],
    e: Float[Tensor, "batch places features"],
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """<sum_s d_s a_s^T, sum_t onehot(id_t) e_t^T>, and a bound on the sum of the sizes of its terms.

    >>> a, d = torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[10.0, 20.0, 30.0]]])
    >>> inner_products(a, d, torch.tensor([[2]]), torch.tensor([[[1.0, 1.0]]]))[0]
    tensor([90.], dtype=torch.float64)
    """
    batch, positions = a.shape[:2]
    wide = norm_dtype(a.device)  # in float32 the products could lose more than is allowed for
    cross: list[Tensor] = []
    bound: list[Tensor] = []
    for part in chunks(batch, positions * ids.shape[1], a.device):
        index = ids[part].unsqueeze(1).expand(-1, positions, -1)
        entries = d[part].gather(2, index).to(wide)
        left, right = a[part].to(wide), e[part].to(wide)
        products = torch.bmm(left, right.transpose(1, 2))
        cross.append((entries * products).sum((1, 2)))
        sizes = torch.linalg.vector_norm(left, dim=2).unsqueeze(2) * torch.linalg.vector_norm(right, dim=2).unsqueeze(1)
        bound.append((entries.abs() * sizes).sum((1, 2)))
    return torch.cat(cross), torch.cat(bound)


def _is_product(part: Part) -> bool:
    kernel = part.kernel
    return isinstance(kernel, LinearKernel) and kernel.roles[part.slot] == "weight"


def _one_product(parts: list[Part]) -> Part:
    """Products with one weight as one product over the positions of all."""
    sides = [part.kernel.positions(part.d) for part in parts if isinstance(part.kernel, LinearKernel)]
    first = parts[0]
    assert isinstance(first.kernel, LinearKernel)
    kernel = LinearKernel(
        roles=("weight",),
        parameters=(first.source.tensor,),
        saved=(),
        inputs=torch.cat([a for a, _ in sides], 1),
        transposed=first.kernel.transposed,
        workspace=first.kernel.workspace,
    )
    return Part(kernel, 0, first.source, torch.cat([d for _, d in sides], 1))


def _one_lookup(parts: list[Part]) -> Part:
    """Lookups in one matrix as one lookup of the ids of all."""
    kernels = [part.kernel for part in parts if isinstance(part.kernel, EmbeddingKernel)]
    ids = torch.cat([kernel.ids for kernel in kernels], 1)
    d = [part.d.reshape(*kernel.ids.shape, -1) for part, kernel in zip(parts, kernels, strict=True)]
    first = kernels[0]
    return replace(
        parts[0], kernel=EmbeddingKernel(first.parameters, (), ids, first.padding), slot=0, d=torch.cat(d, 1)
    )
