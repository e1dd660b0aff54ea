"""What a client computes: its update, clipped by itself, with its share of the noise if it has one."""

import copy
import hashlib
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from decrescendo.base.batches import count_rows, slice_rows
from decrescendo.base.rng import SecureStream, Streams, seeded
from decrescendo.clipping.clipped import (
    Batch,
    Loss,
    accumulator,
    check_clip_norm,
    check_real_floats,
    trainable,
)
from decrescendo.clipping.reference import check_losses
from decrescendo.clipping.telemetry import Telemetry
from decrescendo.errors import InvalidValue, UnsupportedModel, check_integer, check_real
from decrescendo.federated.messages import Round
from decrescendo.federated.summing import norm_of

# The client stays further below C than the server asks for (`summing.MARGIN`), so that no honest reply is re-clipped.
CLIENT_MARGIN = 2.0**-20


@dataclass(frozen=True, slots=True)
class LocalSteps:
    """Several steps of plain SGD at the client; its update is the way gone, w_0 - w_k.

    Args:
        learning_rate: > 0, of the client.
        epochs: >= 1, passes over the client's records, in their order.
        batch_size: >= 1 records a step; ``None`` for all of them.

    >>> LocalSteps(0.1, epochs=2).batch_size is None
    True
    """

    learning_rate: float
    epochs: int = 1
    batch_size: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "learning_rate", check_real("learning_rate", self.learning_rate, above=0))
        check_integer("epochs", self.epochs, at_least=1)
        if self.batch_size is not None:
            check_integer("batch_size", self.batch_size, at_least=1)

    def slices(self, records: int) -> Iterator[tuple[int, int]]:
        """First and last record (exclusive) of each step.

        >>> list(LocalSteps(0.1, epochs=2, batch_size=2).slices(3))
        [(0, 2), (2, 3), (0, 2), (2, 3)]
        """
        size = self.batch_size or max(records, 1)
        for _ in range(self.epochs):
            for start in range(0, records, size):
                yield start, min(start + size, records)


def client_update(
    model: nn.Module,
    loss: Loss,
    records: Batch | None,
    local: LocalSteps | None = None,
    *,
    seed: int | None = None,
) -> dict[str, Tensor]:
    """The update of a client with these records, not clipped yet: the direction that the model is moved against.

    Args:
        model: with the weights of this round; a copy of it is used, and it is left as it is: what one client's records
            leave in it (running statistics, a code book, an attribute) must not reach the update of the next client.
        loss: ``loss(model, batch)`` returns one loss a record.
        records: the client's own; ``None`` or no rows give a zero update.
        local: ``None`` for one gradient of the mean loss (FedSGD, Du et al. Algorithm 5), else several local steps,
            each on the mean loss of its records.
        seed: of the model's own random numbers (dropout), from 0 to 2^63 - 1; ``None`` for one of the operating
            system. torch's global generators are neither read nor moved: what one client draws must not shift the
            masks of the next client in this process.

    Returns:
        one tensor for each trainable parameter, by name, at least float32.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = model.weight.data.fill_(0.0)
    >>> loss = lambda model, batch: (model(batch) - 1).square().squeeze(1) / 2
    >>> client_update(model, loss, torch.tensor([[1.0], [3.0]]))["weight"]
    tensor([[-2.]])
    """
    parameters = trainable(model)
    rows = 0 if records is None else count_rows(records)
    if rows == 0:
        return {name: torch.zeros_like(p, dtype=accumulator(p.dtype)) for name, p in parameters.items()}
    devices = {parameter.device for parameter in parameters.values()}
    with seeded(secrets.randbits(63) if seed is None else seed, devices):
        worker = _copied(model)
        if local is None:
            return _gradient(worker, loss, records)
        for start, stop in local.slices(rows):
            found = _gradient(worker, loss, slice_rows(records, start, stop))
            with torch.no_grad():
                for name, parameter in trainable(worker).items():
                    parameter.sub_(found[name].to(parameter), alpha=local.learning_rate)
    with torch.no_grad():
        end = trainable(worker)
        return {
            name: p.detach().to(accumulator(p.dtype)) - end[name].detach().to(accumulator(p.dtype))
            for name, p in parameters.items()
        }


def client_values(
    model: nn.Module, loss: Loss, records: Batch | None, telemetry: Telemetry, *, seed: int | None = None
) -> tuple[float, ...]:
    """What a client tells beside its update, for `Reply.values`: the means over its records, before any local step.

    Args:
        model, records, seed: as in `client_update`; the model is left as it is.
        loss: ``loss(model, batch)`` returns one loss a record; with ``telemetry.accuracy``, losses and scores.
        telemetry: of the server: which of loss and accuracy it asks for.

    Returns:
        the mean loss, the mean score, or both, in this order; empty without records. They are private: only the sum
        over the clients, with the round's noise, is released.

    Raises:
        UnsupportedModel: accuracy is asked for, and the loss function returns losses alone.

    >>> loss = lambda model, batch: model(batch).squeeze(1)
    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = model.weight.data.fill_(2.0)
    >>> client_values(model, loss, torch.tensor([[1.0], [3.0]]), Telemetry(loss=True))
    (4.0,)
    """
    rows = 0 if records is None else count_rows(records)
    if rows == 0 or not telemetry.scalars:
        return ()
    devices = {parameter.device for parameter in trainable(model).values()}
    with seeded(secrets.randbits(63) if seed is None else seed, devices), torch.no_grad():
        found = means_of(loss(_copied(model), records), rows, telemetry, torch.full((rows,), 1 / rows))
    return tuple(found.double().tolist())


def means_of(
    returned: object, rows: int, telemetry: Telemetry, weights: Float[Tensor, " records"]
) -> Float[Tensor, " told"]:
    """The mean loss and the mean score, those of them that are asked for. A score counts as not a number, which is the
    worst, where the loss is none: a model that diverged must not look better than one that did not."""
    losses, scores = check_losses(returned, rows, scored=telemetry.accuracy, constant=True)
    told = [losses] if telemetry.loss else []
    if scores is not None:
        told.append(torch.where(torch.isfinite(losses), scores.to(losses), torch.nan))
    each = torch.stack(told).to(accumulator(losses.dtype))
    # (0 times infinity: padding has no part in it.)
    return torch.where(weights > 0, each * weights.to(each), 0.0).sum(1)


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise UnsupportedModel(
            "a client's model must be one that can be copied, so that nothing of its records stays in it, got "
            f"{type(model).__name__}, of which copy.deepcopy says: {str(error).splitlines()[0]}. Keep no result of a "
            "pass in an attribute; torch.nn.utils.parametrizations has weight norms that can be copied"
        ) from error


def _gradient(model: nn.Module, loss: Loss, records: Batch) -> dict[str, Tensor]:
    parameters = trainable(model)
    with torch.enable_grad():
        mean = check_losses(loss(model, records), count_rows(records))[0].mean()
        found = torch.autograd.grad(mean, list(parameters.values()), materialize_grads=True)
    return {name: gradient.to(accumulator(gradient.dtype)) for name, gradient in zip(parameters, found, strict=True)}


def clip_update(update: Mapping[str, Tensor], clip_norm: float) -> dict[str, Tensor]:
    """``update`` min(1, C / |update|), computed in float64 and rounded down; zeros where it is not finite.

    Guarantee:
        the joint norm of what is returned, in the dtypes it came in and at least float32, is at most C.

    Raises:
        InvalidType: a tensor that is not real floating point: whole numbers would be cut off to zeros.

    >>> clip_update({"w": torch.tensor([3.0, 4.0])}, 1.0)["w"]
    tensor([0.6000, 0.8000])
    """
    target = check_clip_norm("clip_norm", clip_norm) * (1 - CLIENT_MARGIN)
    for name, tensor in update.items():
        check_real_floats(f"update[{name!r}]", tensor)
    # In half precision rounding alone would make it longer than C.
    update = {name: tensor.to(accumulator(tensor.dtype)) for name, tensor in update.items()}
    norm = norm_of(update)
    if not norm < float("inf"):
        return {name: torch.zeros_like(tensor) for name, tensor in update.items()}
    if norm <= target:
        return update
    return {name: tensor.double().div(norm).mul(target).to(tensor.dtype) for name, tensor in update.items()}


def with_share(values: Mapping[str, Tensor], asked: Round, secret: Streams | SecureStream) -> dict[str, Tensor]:
    """Each value and N(0, share_std^2), in float64, rounded once to a public grid.

    `policy.Memory` sees to it that a round is answered once. A client whose memory was lost, put back or copied, and
    that is asked again, sends the same reply for the same update, and of a secure stream other noise for another
    update: two replies with one noise would tell the difference of the updates. Of a seed the noise is the round's.
    """
    if isinstance(secret, SecureStream):
        stream = secret.child(f"{asked.run}:{asked.number}:{_digest_of(values, asked.share_std)}")
    else:
        digest = hashlib.sha256(f"{asked.run}:{asked.number}".encode()).digest()
        stream = secret.child(int.from_bytes(digest, "big")).keyed("noise")
    found: dict[str, Tensor] = {}
    for name in sorted(values):
        exact = values[name].double().flatten().numpy()
        noisy = torch.from_numpy(stream.add_gaussian(exact, asked.share_std))
        found[name] = noisy.reshape(values[name].shape)
    return found


def _digest_of(values: Mapping[str, Tensor], share_std: float) -> str:
    found = hashlib.sha256(share_std.hex().encode())
    for name in sorted(values):
        exact = values[name].double().contiguous().numpy()
        found.update(hashlib.sha256(f"{name}:{exact.shape}".encode()).digest())
        found.update(hashlib.sha256(exact.tobytes()).digest())
    return found.hexdigest()


def prepare(update: Mapping[str, Tensor], asked: Round, secret: Streams | SecureStream | None) -> dict[str, Tensor]:
    """The message of a client: ``update`` clipped to C_t, with the client's share of noise.

    Args:
        update: from `client_update`.
        asked: the round, accepted by the client's `Policy` and noted in its `Memory`.
        secret: the client's own, kept as long as it lives: a `SecureStream` of a key that it drew once
            (`SecureStream.fresh`), or `Streams` of a seed for experiments; ``None`` where it adds no noise (CENTRAL).

    Returns:
        tensors for `messages.Reply`, on the CPU: in the dtypes of ``update`` (at least float32) without noise, in
        float64 with it.

    Raises:
        InvalidType: an update that is not of real floating-point numbers.
        InvalidValue: noise is asked for, and there is no stream for it.

    >>> from decrescendo.federated.placement import Placement
    >>> asked = Round("ab", 1, 9, 1.0, 2.0, Placement.CENTRAL, 0.0)
    >>> prepare({"w": torch.tensor([3.0, 4.0])}, asked, None)["w"]
    tensor([0.6000, 0.8000])
    """
    clipped = {name: tensor.detach().cpu() for name, tensor in clip_update(update, asked.clip_norm).items()}
    if asked.share_std == 0:
        return clipped
    if secret is None:
        raise InvalidValue(
            f"a client must have a secret stream to add its noise ({asked.placement}), got None. "
            "Give it a SecureStream of its own, from SecureStream.fresh()"
        )
    noised = with_share(clipped, asked, secret)
    return {name: noised[name] for name in clipped}
