"""A Flower mod that lets nothing leave a node but clipped updates, with their noise, of clients that agree."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import Tensor

from decrescendo.errors import FileRefused
from decrescendo.federated.flower.keeper import Keeper
from decrescendo.federated.flower.wire import Answer, Ask

# Codes of our own: Flower's are small numbers, and it passes on any other as it is.
UNREADABLE, APP_FAILED = 900, 901

log = logging.getLogger(__name__)


def private_mod(keeper: Callable[[Context], Keeper]) -> Mod:
    """The mod for a train function of one's own; `client_app` uses it too. It must be the outermost (the first).

    The train function gets an `Ask` with those clients only that may answer (``Ask.from_content(message.content)``) and
    returns an `Answer` with one update a client, as `client_update` makes it: not clipped; and, where the ask has
    ``values``, those of each client, as `client_values` has them.

    Args:
        keeper: of the node, from Flower's context.

    Guarantee:
        whatever the train function returns, each update leaves clipped to C_t, with the client's share of noise, for
        clients that were admitted, each once; every other record (metrics, counts), and the text of an exception,
        stays here. Loss and score leave in CENTRAL only, if the policy has ``tell_values``.

    Edge cases:
        an admitted client without an update is a missing reply. An exception out of the train function makes *all*
        clients of the node missing, so one client's records must not be able to raise it: the noise covers one client,
        not its neighbours on the node. `client_app` leaves out the client that failed, and nobody else.
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        try:
            ask = Ask.from_content(message.content)
        except FileRefused as error:
            return _failed(message, UNREADABLE, str(error))
        try:
            content = _answer(keeper(context), ask, message, context, call_next)
        except Exception as error:  # its text may hold records: only its kind may leave
            log.exception("this node's part of a round failed")
            return _failed(message, APP_FAILED, f"the app raised {type(error).__name__}")
        return Message(content, reply_to=message)

    return mod


def _answer(guard: Keeper, ask: Ask, message: Message, context: Context, call_next: ClientAppCallable) -> RecordDict:
    admitted = guard.admit(ask.round, ask.clients)
    updates: dict[int, Mapping[str, Tensor]] = {}
    told: dict[int, tuple[float, ...]] = {}
    if admitted.clients:
        inner = replace(ask, clients=admitted.clients)
        message.content = inner.to_content()
        reply = call_next(message, context)
        answer = Answer.from_content(reply.content)
        updates = dict(answer.updates)
        if ask.values and guard.tells(ask.round.placement):
            told = {
                client: values
                for client, values in answer.values.items()
                if client in updates and client in admitted.clients and len(values) == len(ask.values)
            }
    ready = tuple(
        (client, guard.prepare(client, updates[client], ask.round)) for client in admitted.clients if client in updates
    )
    return Answer(ask.round.run, ask.round.number, ready, admitted.declined, told).to_content()


def _failed(message: Message, code: int, reason: str) -> Message:
    return Message(Error(code=code, reason=reason), reply_to=message)
