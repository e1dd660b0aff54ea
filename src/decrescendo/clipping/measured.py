"""Per-example norms and weighted gradient sums, one parameter at a time, from recorded uses and one backward
pass."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from decrescendo.clipping.clipped import accumulator, norm_dtype
from decrescendo.clipping.recurrent.packed import PackedKernel
from decrescendo.clipping.repeated import Part, is_tied, merged, tied_norms
from decrescendo.clipping.rules.rule import scale_and_sum, square_rows, zero_rows
from decrescendo.clipping.uses import Tracked, Use


@dataclass(slots=True)
class Measured:
    """Per-example gradients of one batch, held in whatever form each operation's rule keeps them.

    Args:
        parameters: the trainable ones, by name.
        batch: number of examples.
        parts: what each recorded operation contributes.
        dtype: of per-example norms.
        wide: measured and summed in float64 whatever the gradients are.
    """

    parameters: Mapping[str, Tensor]
    batch: int
    parts: list[Part]
    dtype: torch.dtype
    bad: Bool[Tensor, " batch"] | None = None
    whole: dict[str, Float[Tensor, "batch *shape"]] = field(default_factory=dict)
    wide: bool = False
    closed: dict[str, list[Part]] | None = None

    @property
    def narrow(self) -> bool:
        """Whether anything in it has the rounding of float32."""
        dtypes = (*(part.d.dtype for part in self.parts), *(p.dtype for p in self.parameters.values()))
        return any(dtype not in (torch.float64, torch.complex128) for dtype in dtypes)

    def squared_norms(self) -> dict[str, Float[Tensor, " batch"]]:
        """|g_i|^2 for each parameter, by name."""
        closed = self._find_closed()
        self._materialise({name for name in self.parameters if name not in closed})
        found: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            parts = closed.get(name)
            if parts is not None:
                first = parts[0]
                square = first.kernel.squared_norms(first.slot, first.d) if len(parts) == 1 else tied_norms(*parts)
            elif name in self.whole:
                square = square_rows(self.whole[name])
            else:
                square = torch.zeros(self.batch, dtype=self.dtype, device=parameter.device)
            found[name] = square.to(norm_dtype(square.device))
        return found

    def scaled_sums(
        self, factors: Float[Tensor, " batch"], keep: Callable[[str, Tensor], Tensor] | None = None
    ) -> dict[str, Tensor]:
        """sum_i w_i g_i for each parameter by name; ``keep`` is applied to each sum before the next is
        made."""
        sums = ((name, self.scaled_sum(name, factors)) for name in self.parameters)
        return {name: total if keep is None else keep(name, total) for name, total in sums}

    def scaled_sum(self, name: str, factors: Float[Tensor, " batch"]) -> Tensor:
        """sum_i w_i g_i for one parameter, by name."""
        parameter, closed = self.parameters[name], self._find_closed()
        local = factors.to(parameter.device)
        if name in closed:
            sums = [part.source.back(part.kernel.scaled_sum(part.slot, part.d, local)) for part in closed[name]]
            total = sums[0] if len(sums) == 1 else torch.add(*sums)
        elif name in self.whole:
            total = scale_and_sum(self.whole[name], local)
        else:
            total = torch.zeros(parameter.shape, dtype=torch.float32, device=parameter.device)
        return total.to(torch.float64 if self.wide else accumulator(parameter.dtype))

    def without_rows(self, bad: Bool[Tensor, " batch"]) -> "Measured":
        """The same with the gradients of these examples zero, whatever they were."""
        parts = [
            Part(part.kernel.without_rows(bad.to(part.d.device)), part.slot, part.source, _without(part, bad))
            for part in self.parts
        ]
        whole = {name: _zeroed(gradient, bad) for name, gradient in self.whole.items()}
        return replace(self, parts=parts, bad=bad, whole=whole, closed=None)

    def _find_closed(self) -> dict[str, list[Part]]:
        """The parts of each parameter whose norms have closed forms: one part, or a product and a lookup of one
        matrix."""
        if self.closed is None:
            self.closed = self._sort()
        return self.closed

    def _sort(self) -> dict[str, list[Part]]:
        self._merge()
        by_root: dict[str, list[Part]] = {}
        for part in self.parts:
            for root in part.source.roots:
                by_root.setdefault(root, []).append(part)
        return {
            root: parts
            for root, parts in by_root.items()
            if all(part.source.isometric for part in parts) and (len(parts) == 1 or is_tied(parts))
        }

    def _merge(self) -> None:
        """Merge the contributions to one tensor where that has a closed form."""
        self.parts = [
            part
            for parts in _by_source(self.parts)
            for part in (merged(parts) if len(parts) > 1 and parts[0].source.isometric else parts)
        ]

    def _materialise(self, names: set[str]) -> None:
        """Compute the per-example gradients of these parameters, which have no closed form, into ``whole``."""
        for parts in _by_source(part for part in self.parts if names.intersection(part.source.roots)):
            source = parts[0].source
            total = parts[0].kernel.per_example(parts[0].slot, parts[0].d)
            for part in parts[1:]:
                total = total + part.kernel.per_example(part.slot, part.d)
            for name, gradient in self._pull(source, total).items():
                known = self.whole.get(name)
                self.whole[name] = gradient if known is None else known + gradient

    def _pull(self, source: Tracked, total: Tensor) -> dict[str, Tensor]:
        """Per-example gradients of the parameters that a tensor was made from, by the chain rule."""
        roots = [self.parameters[name] for name in source.roots]
        if len(roots) == 1 and roots[0] is source.tensor:
            return {source.roots[0]: total}
        rows = total.to(source.tensor.dtype).reshape(self.batch, *source.tensor.shape)

        def pull(part: Tensor, *, batched: bool) -> tuple[Tensor | None, ...]:
            return torch.autograd.grad(
                source.tensor, roots, part, retain_graph=True, is_grads_batched=batched, allow_unused=True
            )

        try:
            pulled = pull(rows, batched=True)
        except RuntimeError:  # not every operation knows vmap
            each = [pull(row, batched=False) for row in rows]
            pulled = tuple(
                None if g[0] is None else torch.stack(cast("list[Tensor]", list(g))) for g in zip(*each, strict=True)
            )
        return {
            name: gradient.to(accumulator(gradient.dtype))
            for name, gradient in zip(source.roots, pulled, strict=True)
            if gradient is not None
        }


def _by_source(parts: Iterable[Part]) -> Iterable[list[Part]]:
    """The parts, grouped by the tracked tensor that they are contributions to."""
    found: dict[int, list[Part]] = {}
    for part in parts:
        found.setdefault(id(part.source.tensor), []).append(part)
    return found.values()


def _without(part: Part, bad: Tensor) -> Tensor:
    """A part's output gradient, with those of the examples ``bad`` zero."""
    kernel = part.kernel
    packed = isinstance(kernel, PackedKernel)
    return kernel.zeroed(part.d, bad.to(part.d.device)) if packed else _zeroed(part.d, bad)


def _zeroed(rows: Tensor, bad: Tensor) -> Tensor:
    return zero_rows(rows, bad.to(rows.device))


def parts_of(uses: Sequence[Use], arrived: Sequence[Tensor | None]) -> list[Part]:
    """A part for each parameter of each use whose output gradient, (batch, ...) of at least float32, arrived."""
    return [
        Part(use.kernel, slot, source, d)
        for use, d in zip(uses, arrived, strict=True)
        if d is not None
        for slot, source in enumerate(use.parameters)
    ]
