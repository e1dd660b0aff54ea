"""Flower's grid within one process: every message goes through Flower's own serialisation, apps are called at once."""

from collections.abc import Callable, Iterable

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity


def over_the_wire(message: Message) -> Message:
    """The message as bytes, and again as a message."""
    message.metadata.__dict__["_message_id"] = message.object_id
    objects = {name: found.deflate() for name, found in get_all_nested_objects(message).items()}
    again = inflate_object_from_contents(message.object_id, objects)
    assert isinstance(again, Message)
    again.metadata.__dict__["_message_id"] = message.metadata.message_id
    return again


class LocalGrid(Grid):
    """Nodes are client apps with their node's configuration, by node id."""

    def __init__(self, nodes: dict[int, tuple[ClientApp, dict[str, str]]]) -> None:
        # Flower's processes are told who they are; a process that is all of them is the server.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.nodes = nodes
        self.silent: Callable[[int, Message], bool] = lambda node, message: False
        self.twice: Callable[[int, Message], bool] = lambda node, message: False
        self.sent: list[Message] = []
        self._replies: dict[str, list[Message]] = {}

    def set_run(self, run: Run) -> None: ...

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers: list[str] = []
        for message in messages:
            arrived = over_the_wire(message)
            self.sent.append(arrived)
            number, node = arrived.metadata.message_id, arrived.metadata.dst_node_id
            numbers.append(number)
            if self.silent(node, arrived):
                continue
            app, config = self.nodes[node]
            context = Context(
                run_id=1,
                node_id=node,
                node_config=dict(config),
                state=RecordDict(),
                run_config={},
                series_id=1,
            )
            try:
                reply = app(arrived, context)
            except Exception as error:
                reply = Message(Error(code=2, reason=str(error)), reply_to=arrived)
            times = 2 if self.twice(node, arrived) else 1
            self._replies[number] = [over_the_wire(reply) for _ in range(times)]
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [reply for number in list(message_ids) for reply in self._replies.pop(number, [])]

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError
