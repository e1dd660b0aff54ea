"""A whole client app: a node that hosts many clients of one model."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from decrescendo.clipping.clipped import Batch, Loss
from decrescendo.federated.flower.keeper import Keeper
from decrescendo.federated.flower.mod import APP_FAILED, private_mod
from decrescendo.federated.flower.wire import Answer, Ask, Proposal
from decrescendo.federated.update import LocalSteps, client_update, client_values

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """The clients of one node, and how each computes its update.

    Args:
        keeper: their guard.
        model: of the same shape as the server's; its weights are replaced in every round.
        loss: ``loss(model, batch)`` returns one loss a record; losses and scores where the server's telemetry has
            ``accuracy``.
        records: the records of a client by its number; ``None`` for a client without any (a zero update).
        local: ``None`` for one gradient of the mean loss, else several local steps.
    """

    keeper: Keeper
    model: nn.Module
    loss: Loss
    records: Callable[[int], Batch | None]
    local: LocalSteps | None = None


def client_app(build: Callable[[Context], Shard]) -> ClientApp:
    """The client app of a node.

    Flower starts a process for every message, so ``build`` is called for each: what must last is in the keeper's
    folder.

    Args:
        build: the node's clients, from Flower's context (``context.node_config`` has what the SuperNode was
            started with).

    Guarantee:
        that of `private_mod`: nothing leaves but what the clients' policy allows. A client whose records make the loss
        fail is left out, alone; the reason is logged on the node.

    >>> app = client_app(lambda context: None)
    >>> type(app).__name__
    'ClientApp'
    """
    app = ClientApp()
    built: dict[int, Shard] = {}

    def shard(context: Context) -> Shard:
        if context.node_id not in built:
            built[context.node_id] = build(context)
        return built[context.node_id]

    @app.train(mods=[private_mod(lambda context: shard(context).keeper)])
    def train(message: Message, context: Context) -> Message:
        ask, own = Ask.from_content(message.content), shard(context)
        own.model.load_state_dict(dict(ask.weights))
        asked = ask.telemetry
        updates: list[tuple[int, dict[str, Tensor]]] = []
        told: dict[int, tuple[float, ...]] = {}
        for client in ask.clients:
            try:
                records = own.records(client)
                update = client_update(own.model, own.loss, records, own.local)
                values = () if asked is None else client_values(own.model, own.loss, records, asked)
            except Exception:  # one client's records must not take its neighbours' updates away
                log.exception("client %d has no update in this round", client)
            else:
                updates.append((client, update))
                told |= {client: values} if values else {}
        answer = Answer(ask.round.run, ask.round.number, tuple(updates), (), told)
        return Message(answer.to_content(), reply_to=message)

    @app.query("agree")
    def agree(message: Message, context: Context) -> Message:
        try:
            content = shard(context).keeper.agree(Proposal.from_content(message.content)).to_content()
        except Exception as error:  # its text may hold what is private here: only its kind may leave
            log.exception("this node cannot look at the plan")
            reason = f"the app raised {type(error).__name__}"
            return Message(Error(code=APP_FAILED, reason=reason), reply_to=message)
        return Message(content, reply_to=message)

    _ = train, agree
    return app
