"""A server app, and the rounds of a `Server` over Flower's grid: who is asked, how long is waited, what silence is.

Flower's own loop (``Strategy.start``) is not used: it begins at round 1 after a restart, leaves the model as it was
when nobody replies (the missing noise would tell that a cohort was empty), waits for whoever is silent in every round
anew, and polls every three seconds. What it offers on top, averages by example counts, must not be had here.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import final

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from decrescendo.base.markdown import one_line
from decrescendo.errors import FileRefused, InvalidValue, check_integer, check_real
from decrescendo.federated.flower.hosting import Hosting
from decrescendo.federated.flower.wire import AGREE, TRAIN, Agreement, Answer, Ask, Proposal
from decrescendo.federated.messages import Opened, Reply
from decrescendo.federated.outcome import Outcome
from decrescendo.federated.server import Server
from decrescendo.federated.verdict import RoundReport, Verdict

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of a round's messages: for the holder of the server only, as `RoundReport`.

    Args:
        report: the verdicts.
        unhosted: members that no node hosts.
        errors: nodes whose answer was an error.
        silent: nodes that said nothing before the round's timeout.
        seconds: the round took.
    """

    report: RoundReport
    unhosted: int
    errors: int
    silent: int
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Deployment:
    """A server and its public rules of waiting, declared before the start.

    Args:
        server: with a journal, so that a restart goes on.
        round_timeout: > 0 seconds after which a round is closed without those that are silent.
        start_timeout: > 0 seconds to wait for nodes before the first round.
        wait_for: how many clients must be hosted before the first round; ``None`` for all. Those who have no node are
            zero updates whenever they are drawn.
        poll: > 0 seconds between looking for replies.
        after: called after every round; private facts, keep them where the journal is.
    """

    server: Server
    round_timeout: float = 600.0
    start_timeout: float = 600.0
    wait_for: int | None = None
    poll: float = 0.25
    after: Callable[[Delivery], None] | None = None

    def __post_init__(self) -> None:
        for name in ("round_timeout", "start_timeout", "poll"):
            check_real(name, getattr(self, name), above=0)
        if self.wait_for is not None:
            check_integer("wait_for", self.wait_for)
        if math.isinf(self.server.max_clip_norm):
            raise InvalidValue(
                "a ClipController for Flower nodes must have a max_clip_norm, got none: a node that declines a C_t "
                "above its own limit would look like one whose update was clipped, and C_t would rise for ever"
            )


def drive(grid: Grid, deployment: Deployment) -> Outcome:
    """Run what is left of the plan.

    Guarantee:
        that of `Server`. An answer speaks only for clients that its node was asked for; a node that is silent, fails or
        answers nonsense is a missing reply of its members; every round is released, or not at all if this process ends.

    Edge cases:
        a cohort that is empty, or of which nobody can be reached, is released with all of its noise, at once.
        a node that was silent is asked nothing until it has answered a message again; meanwhile its clients are
        missing.
        there is no rule by which a round is aborted for want of replies: whether it is would tell how many took part,
        without noise.

    Raises:
        InvalidValue: too few clients are hosted when ``start_timeout`` ends; no round was spent.
    """
    federation = _Federation(grid, deployment)
    if not deployment.server.done:
        federation.gather()
    while not deployment.server.done:
        delivery = federation.round()
        # How many were asked is private, and Flower shows this log to whoever may see the run.
        log.info("round %d of %d", delivery.report.number, deployment.server.plan.steps)
        if deployment.after is not None:
            deployment.after(delivery)
    # Nothing in Flower hides a single reply from the server app: docs/explanation/federated.md says why.
    return deployment.server.finish(secure_sum=False)


def server_app(build: Callable[[Context], Deployment], finished: Callable[[Context, Outcome], None]) -> ServerApp:
    """The server app of a federated plan.

    Args:
        build: the server and its rules, from Flower's context (``context.run_config`` has what ``flwr run`` was given).
            With a journal, a new ``flwr run`` after a crash goes on where the last one ended.
        finished: what is done with the outcome.

    Guarantee:
        that of `drive`.

    >>> app = server_app(lambda context: None, lambda context, outcome: None)
    >>> type(app).__name__
    'ServerApp'
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        finished(context, drive(grid, build(context)))

    _ = main
    return app


@final
class _Federation:
    def __init__(self, grid: Grid, deployment: Deployment) -> None:
        self._grid, self._deployment, self._server = grid, deployment, deployment.server
        self._hosting = Hosting(self._server.plan.sampling.dataset_size)
        about = (self._server.plan, self._server.placement, self._server.name, self._server.max_clip_norm)
        self._proposal = Proposal(*about, self._server.values)
        self._proposed: dict[str, int] = {}  # message to node
        self._refused: set[int] = set()
        self._looked = -float("inf")

    def gather(self) -> None:
        """Wait until enough clients have a node."""
        wanted = self._deployment.wait_for
        wanted = self._server.plan.sampling.dataset_size if wanted is None else wanted
        end = time.monotonic() + self._deployment.start_timeout
        self._meet()
        while self._hosting.hosted < wanted:
            if time.monotonic() > end:
                raise InvalidValue(
                    f"wait_for={wanted} clients must be hosted within start_timeout="
                    f"{self._deployment.start_timeout:g} seconds, got {self._hosting.hosted} on "
                    f"{len(self._hosting.nodes)} nodes ({len(self._refused)} refused). "
                    "Start the missing SuperNodes, or wait for fewer"
                )
            time.sleep(self._deployment.poll)
            self._meet()

    def round(self) -> Delivery:
        """One round, from the draw to the step."""
        start = time.monotonic()
        self._meet()
        opened = self._server.open()
        members, unhosted = self._hosting.group(opened.cohort)
        waiting = self._send(opened, members)
        errors = len(members) - len(waiting)
        end, late = time.monotonic() + self._deployment.round_timeout, False
        while waiting and not late:
            late = time.monotonic() >= end  # what has come by the end is taken, however slow this process is
            for message in self._pull(waiting):
                node = waiting.pop(message.metadata.reply_to_message_id, None)
                if node is None:
                    self._server.refused(Verdict.REPEATED, "a second answer to one message")
                else:
                    errors += not self._take(message, members[node], opened)
            if waiting and not late:
                time.sleep(self._deployment.poll)
        for node in waiting.values():
            self._hosting.drop(node)
            self._propose([node])
        report = self._server.close()
        return Delivery(report, len(unhosted), errors, len(waiting), time.monotonic() - start)

    def _send(self, opened: Opened, members: dict[int, tuple[int, ...]]) -> dict[str, int]:
        weights = self._server.weights() if members else {}
        nodes = list(members)
        messages = [
            Message(
                Ask(opened.round, members[node], weights, self._server.values).to_content(),
                node,
                TRAIN,
                ttl=self._deployment.round_timeout,
                group_id=str(opened.round.number),
            )
            for node in nodes
        ]
        return self._push(messages, nodes)

    def _take(self, message: Message, asked: Sequence[int], opened: Opened) -> bool:
        """Give a node's answer to the server, client by client; whether it was one."""
        if message.has_error():
            return False
        try:
            answer = Answer.from_content(message.content)
        except FileRefused as error:
            self._server.refused(Verdict.UNREADABLE, str(error))
            return True
        for client, tensors in answer.updates:
            if client in asked:
                told = answer.values.get(client, ())
                self._server.receive(Reply(client, answer.round, answer.run, tensors, told))
            else:
                self._server.refused(Verdict.NOT_ASKED, f"client {client} is not of this node's members")
        if (answer.run, answer.round) == (opened.round.run, opened.round.number):
            for client, reason in dict(answer.declined).items():
                if client in asked:
                    self._server.declined(client, reason[:200])
        return True

    def _meet(self) -> None:
        """Show the plan to nodes that have come, hear what they say, forget those that have gone."""
        if time.monotonic() - self._looked >= 1.0:
            self._looked = time.monotonic()
            online = set(self._grid.get_node_ids())
            for node in self._hosting.nodes - online:
                self._hosting.drop(node)
            known = self._hosting.nodes | self._refused | set(self._proposed.values())
            self._propose(sorted(online - known))
        for message in self._pull(self._proposed):
            node = self._proposed.pop(message.metadata.reply_to_message_id, None)
            reason = None if node is None else self._hear(node, message)
            if node is not None and reason is not None:
                self._refused.add(node)
                log.warning("node %d takes no part: %s", node, reason)

    def _hear(self, node: int, message: Message) -> str | None:
        if message.has_error():
            return f"error {message.error.code}"
        try:
            agreement = Agreement.from_content(message.content)
        except FileRefused as error:
            return str(error)
        if agreement.refused or agreement.run != self._server.run:
            return one_line(agreement.refused[:200]) or "it speaks of another run"
        return self._hosting.announce(node, agreement.spans)

    def _propose(self, nodes: Sequence[int]) -> None:
        ttl = max(self._deployment.round_timeout, self._deployment.start_timeout)
        messages = [Message(self._proposal.to_content(), node, AGREE, ttl=ttl) for node in nodes]
        self._proposed |= self._push(messages, nodes)

    def _push(self, messages: Sequence[Message], nodes: Sequence[int]) -> dict[str, int]:
        if not messages:
            return {}
        # Flower's list has None for a message that it did not take.
        numbers: Iterable[str | None] = self._grid.push_messages(messages)
        return {number: node for number, node in zip(numbers, nodes, strict=False) if number}

    def _pull(self, waiting: dict[str, int]) -> list[Message]:
        if not waiting:
            return []
        found = self._grid.pull_messages(list(waiting))
        return [message for message in found if message.metadata.reply_to_message_id in waiting]
