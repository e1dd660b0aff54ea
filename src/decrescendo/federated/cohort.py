"""The clipped sum of a whole cohort at once: what `update.client_update` and `clip_update` do one by one."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn

from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import assumed
from decrescendo.base.batches import map_rows, select_rows, slice_rows
from decrescendo.base.rng import seeded
from decrescendo.clipping import Batch, ClippedSum, Diagnostics, Engine, EngineSettings, Loss, Telemetry
from decrescendo.clipping.clipped import accumulator, check_loss, trainable
from decrescendo.clipping.reference import check_losses
from decrescendo.errors import InvalidValue, UnsupportedModel
from decrescendo.federated.clients import Records
from decrescendo.federated.replies import extra_coordinates
from decrescendo.federated.update import CLIENT_MARGIN, LocalSteps, means_of
from decrescendo.training.data.by_person import person_loss
from decrescendo.training.data.data_memory import memory_of

LOCAL_STEPS = assumed("rows-local-steps")

# Numbers of one chunk of updates, unless the settings say how many clients go at once.
_CHUNK = 2**22


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """Some clients with up to m records each: leaves of shape (clients, m, ...), and how many are real."""

    rows: Batch
    counts: Int[Tensor, " clients"]
    width: int

    def weights(self, start: int, stop: int) -> Float[Tensor, "clients slice"]:
        """1 / n for each of a client's n records in a slice of places, 0 for padding."""
        places = torch.arange(start, stop, device=self.counts.device)
        real = (places < self.counts[:, None]).to(torch.get_default_dtype())
        return real / real.sum(1, keepdim=True).clamp_min(1)


def folded(records: Records, device: torch.device) -> Iterator[Folded]:
    """Clients in groups of like size. How far a client's records are padded depends on their number alone: a loss may
    look at them all together (and sees the padding then).

    Padding repeats the client's own first record, with weight 0: what one client holds never touches another's
    update, not even by 0 times infinity. Clients without records are left out: their update is zero.
    """
    if records.rows is None:
        return
    counts = records.counts
    starts = np.cumsum(counts) - counts
    widths = _width(counts)
    for width in np.unique(widths[widths > 0]).tolist():
        members = np.flatnonzero(widths == width)
        if len(members) < len(counts) or int(counts[members].min()) < width:
            places = np.arange(width)
            inside = np.where(places < counts[members, None], places, 0)
            index = torch.from_numpy((starts[members, None] + inside).reshape(-1))
            rows = select_rows(records.rows, index)
        else:
            rows = records.rows
        shape = (len(members), width)
        rows = map_rows(lambda leaf, shape=shape: leaf.to(device).reshape(*shape, *leaf.shape[1:]), rows)
        yield Folded(rows, torch.from_numpy(counts[members]).to(device), width)


def _width(counts: Int[np.ndarray, " clients"]) -> Int[np.ndarray, " clients"]:
    """The next of 0 to 8, 10, 12, 14, 16, 20, 24, .. records: four sizes for each power of two.

    >>> _width(np.array([0, 5, 9, 17, 100])).tolist()
    [0, 5, 10, 20, 112]
    """
    step = 2 ** np.maximum(np.ceil(np.log2(np.maximum(counts, 1))) - 3, 0).astype(np.int64)
    return -(-counts // step) * step


class CohortSum:
    """Clipped sums over cohorts: one gradient a client by the engine, or several local steps by vmap.

    Args:
        model: with the weights of the round; left as it is.
        loss: ``loss(model, batch)`` returns one loss a record.
        local: see `update.client_update`.
        settings: of the engine; ``microbatch_size`` counts clients.
        seeds: where the model's own random numbers (dropout) begin, once a group of clients.
        telemetry: of the updates, and of each client's mean loss and mean score with the round's weights; or none.

    Guarantee:
        as `Engine`'s, with clients for examples. Local steps: each client's part is clipped in float64.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        local: LocalSteps | None,
        settings: EngineSettings,
        seeds: Callable[[], int],
        telemetry: Telemetry | None = None,
    ) -> None:
        check_loss(loss)
        if settings.gamma is not None:
            raise InvalidValue(
                f"settings must have gamma=None for clients, got gamma={settings.gamma:g}: clients clip their own "
                "updates, by min(1, C / norm)"
            )
        self._telemetry = telemetry
        self._model, self._loss, self._local, self._settings = model, loss, local, settings
        self._seeds = seeds
        self._single = Engine(model, loss, settings, seeds=seeds, telemetry=telemetry)
        self._many = Engine(model, person_loss(loss), settings, seeds=seeds, telemetry=telemetry)
        self._stepper = _Stepper(model, loss)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What was assumed to call clients independent; see `Engine.assumptions`."""
        local = () if self._local is None else (LOCAL_STEPS,)
        return tuple(sorted({*self._single.assumptions, *self._many.assumptions, *local}))

    def withhold(self, held: object) -> None:
        """Refuse losses that read the records in memory beside their batch; see `Engine.withhold`."""
        for engine in (self._single, self._many):
            engine.withhold(memory_of(held))

    def clipped_sum(self, records: Records | None, clip_norm: float) -> ClippedSum:
        """The sum of the clients' updates, each clipped to ``clip_norm``; ``None`` is an empty cohort."""
        device = next(iter(trainable(self._model).values())).device
        total = self._single.clipped_sum(None, clip_norm)
        if records is None:
            return total
        idle = int((records.counts == 0).sum())
        parts = [self._part(group, clip_norm) for group in folded(records, device)]
        if len(parts) == 1 and not idle:
            return parts[0]
        gradients, seen, extra = dict(total.gradients), Diagnostics(idle, 0, 0, 0.0), total.extra_coordinates
        if self._telemetry is not None:  # updates of nothing are 0 long
            extra = extra_coordinates(self._telemetry, torch.zeros(idle), None, clip_norm)
        for part in parts:
            seen += part.diagnostics
            gradients = {name: gradients[name] + value for name, value in part.gradients.items()}
            extra = None if extra is None or part.extra_coordinates is None else extra + part.extra_coordinates
        return ClippedSum(gradients, clip_norm, seen, extra)

    def _part(self, group: Folded, clip_norm: float) -> ClippedSum:
        if self._local is not None:
            return self._local_part(group, self._local, clip_norm)
        if group.width == 1:
            return self._single.clipped_sum(map_rows(lambda leaf: leaf.squeeze(1), group.rows), clip_norm)
        return self._many.clipped_sum((group.rows, group.weights(0, group.width)), clip_norm)

    def _local_part(self, group: Folded, local: LocalSteps, clip_norm: float) -> ClippedSum:
        size = sum(parameter.numel() for parameter in trainable(self._model).values())
        chunk = self._settings.microbatch_size or max(8, _CHUNK // size)
        total: dict[str, Tensor] = {}
        seen, extra = Diagnostics(0, 0, 0, 0.0), None
        for start in range(0, len(group.counts), chunk):
            stop = min(start + chunk, len(group.counts))
            part = Folded(slice_rows(group.rows, start, stop), group.counts[start:stop], group.width)
            with seeded(self._seeds(), [group.counts.device]):
                updates = self._stepper.updates(part, local)
            told = self._telemetry
            limit = clip_norm if told is None else told.gradient_limit(clip_norm)
            sums, diagnostics, lengths, counted = clip_rows(updates, limit)
            seen += diagnostics
            if told is not None:
                one = extra_coordinates(told, lengths, self._values(part, told), clip_norm, counted)
                extra = one if extra is None else extra + one
            total = sums if not total else {name: total[name] + value for name, value in sums.items()}
        return ClippedSum(total, clip_norm, seen, extra)

    def _values(self, part: Folded, told: Telemetry) -> Float[Tensor, "clients told"] | None:
        """`update.client_values` of each client, each from its own records alone."""
        if not told.scalars:
            return None
        with seeded(self._seeds(), [part.counts.device]):
            return self._stepper.values(part, told)


def clip_rows(
    updates: Mapping[str, Tensor], clip_norm: float
) -> tuple[dict[str, Tensor], Diagnostics, Float64[Tensor, " clients"], Bool[Tensor, " clients"]]:
    """The sum of clipped updates, given one a row, in float64; rows that are not finite count as zero. And the clipped
    lengths, and which are finite.

    >>> sums, seen, *_ = clip_rows({"w": torch.tensor([[3.0, 4.0], [0.3, 0.0], [float("nan"), 0.0]])}, 1.0)
    >>> sums["w"], seen.clipped, seen.nonfinite
    (tensor([0.9000, 0.8000], dtype=torch.float64), 1, 1)
    """
    wide = {name: value.double().flatten(1) for name, value in updates.items()}
    norms = torch.stack([value.square().sum(1) for value in wide.values()]).sum(0).sqrt()
    counted = torch.isfinite(norms)
    target = clip_norm * (1 - CLIENT_MARGIN)
    factors = torch.where(counted & (norms > target), target / norms, counted.double())
    sums = {
        name: (factors @ torch.where(counted[:, None], value, 0.0)).reshape(updates[name].shape[1:])
        for name, value in wide.items()
    }
    clipped = int((counted & (norms > clip_norm)).sum())
    seen = Diagnostics(len(norms), len(norms) - int(counted.sum()), clipped, 0.0)
    return sums, seen, torch.where(counted, norms * factors, 0.0), counted


class _Loss(nn.Module):
    """The loss as a module, so that torch can call it with other parameters."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, rows: Batch) -> object:
        """One loss a record, and perhaps one score."""
        return self._loss(self.model, rows)


class _Stepper:
    """Local SGD of many clients at once: the first step from common weights, the others from each client's own."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self._model, self._caller = model, _Loss(model, loss)

    def updates(self, group: Folded, local: LocalSteps) -> dict[str, Tensor]:
        start = {name: p.detach() for name, p in trainable(self._model).items()}
        now: dict[str, Tensor] = {}
        for first, last in local.slices(group.width):
            rows = map_rows(lambda leaf, a=first, b=last: leaf[:, a:b], group.rows)
            found = self._gradients(now or start, None if not now else 0, rows, group.weights(first, last))
            before = now or start
            now = {name: before[name] - local.learning_rate * found[name] for name in start}
        return {
            name: start[name].to(accumulator(start[name].dtype)) - now[name].to(accumulator(now[name].dtype))
            for name in start
        }

    def values(self, group: Folded, told: Telemetry) -> Float[Tensor, "clients told"]:
        """What each client tells of the weights that the steps start from."""
        start = {f"model.{name}": p.detach() for name, p in trainable(self._model).items()}

        def own(rows: Batch, weights: Tensor) -> Tensor:
            def means(values: dict[str, Tensor]) -> Tensor:
                found = torch.func.functional_call(self._caller, values, (rows,))
                return means_of(found, len(weights), told, weights)

            return torch.func.vjp(means, start)[0]  # as a pass of the steps: vmap has no rule for an LSTM without

        each = torch.func.vmap(own, randomness="different")
        return each(group.rows, group.weights(0, group.width)).detach()

    def _gradients(
        self, parameters: dict[str, Tensor], axis: int | None, rows: Batch, weights: Tensor
    ) -> dict[str, Tensor]:
        def mean(values: dict[str, Tensor], records: Batch, weight: Tensor) -> Tensor:
            named = {f"model.{name}": value for name, value in values.items()}
            found = torch.func.functional_call(self._caller, named, (records,))
            losses, _ = check_losses(found, len(weight), constant=True)
            return (losses * weight).sum()

        try:
            each = torch.func.vmap(torch.func.grad(mean), in_dims=(axis, 0, 0), randomness="different")
            return each(parameters, rows, weights)
        except RuntimeError as error:
            text = str(error).splitlines()[0]
            if "mutate a captured Tensor" in text:
                raise UnsupportedModel(
                    "a client's steps must not change the model's buffers, got a model that does (BatchNorm keeps "
                    "statistics of its inputs). Replace it by GroupNorm: decrescendo.training.without_batch_norm(model)"
                ) from error
            if not any(word in text for word in ("vmap", "functorch", "transform", "atching rule")):
                raise
            raise UnsupportedModel(
                "local steps of many clients at once must run in torch.func.vmap, got a model or loss that does not: "
                f"{text.split('. ')[0].rstrip('.')}. Take one gradient a client (local=None), or decrescendo.federated."
                "client_update with a Server, one client after another"
            ) from error
