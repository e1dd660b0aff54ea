"""What guards the clients of one node: their limits, their memory, their secret, and the plans they agreed to."""

import os
import re
import secrets
import sqlite3
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from torch import Tensor

from decrescendo.base.rng import SecureStream, Streams
from decrescendo.errors import FileRefused, InvalidValue, check_instance, check_integer
from decrescendo.federated.flower.wire import Agreement, Proposal, spans_of
from decrescendo.federated.messages import Round, run_id
from decrescendo.federated.placement import Placement
from decrescendo.federated.policy import Memory, Policy
from decrescendo.federated.update import prepare
from decrescendo.plans.plan import Plan

FILE = "keeper-private.sqlite"
# A key of 256 bits, or a seed: of no more digits than Python turns into a number at once.
_KEYED = "key:"
_SECRET = re.compile(rf"{_KEYED}[0-9a-f]{{64}}|[0-9]{{1,4000}}", re.ASCII)
_TABLES = """
create table if not exists secret (one integer primary key check (one = 1), seed text not null);
create table if not exists plans (run text primary key, plan text not null, placement text not null);
create table if not exists following (run text primary key, largest real not null);
create table if not exists memory (client integer primary key, content text not null);
"""


@dataclass(frozen=True, slots=True)
class Admitted:
    """Who answers a round, and who does not and why."""

    clients: tuple[int, ...]
    declined: tuple[tuple[int, str], ...]


@final
class Keeper:
    """Stands between the clients of a node and whatever a server asks of them.

    A round is answered only if its plan was shown and agreed to before, the round is the plan's to the last digit (and
    a share of its noise what it is in a cohort of all the plan's clients, or more; the clip norm may move up to
    what was agreed), the client lives here, and its `Policy` and `Memory` allow it. What was answered is on disk before
    the reply leaves.

    Args:
        folder: of this node alone; it must outlive the processes (Flower starts one for each message). A node that
            loses it starts a new life: its clients' limits are counted anew, and what they answered is forgotten.
        clients: the numbers of the clients that live here.
        policy: the limits of each of them.
        seed: of the clients' noise, for experiments; ``None`` (usual) draws a key from the system, once, and the noise
            is that of a `SecureStream`.

    Guarantee:
        a client adds noise to a round of a run at most once, so that no two replies can be subtracted; at most
        ``policy.max_rounds`` rounds are answered; no round outside of the policy or of the agreed plan is.

    Edge cases:
        a node that was killed after it noted a round and before it answered has wasted that round.
        a round without the client's own noise (CENTRAL) may be answered again under the same number: a restarted server
        does it again; it counts again.

    Raises:
        InvalidValue: a folder that cannot be written, or another seed than the one it was begun with.
        FileRefused: a damaged folder.

    >>> import tempfile
    >>> from decrescendo.federated import Placement, Policy
    >>> keeper = Keeper(tempfile.mkdtemp(), range(5), Policy(1.0, 0.5, max_rounds=9))
    >>> asked = Round("ab", 1, 9, 1.0, 2.0, Placement.CENTRAL, 0.0)
    >>> keeper.admit(asked, [0]).declined
    ((0, 'the plan of run ab was never shown to this node'),)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        clients: Iterable[int],
        policy: Policy,
        *,
        seed: int | None = None,
    ) -> None:
        check_instance("policy", policy, Policy)
        self._clients = frozenset(check_integer("client", client) for client in clients)
        if not self._clients:
            raise InvalidValue("a node must host at least one client, got none")
        self._spans = spans_of(self._clients)
        self._policy = policy
        self._file = Path(folder) / FILE
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o600))
        except OSError as error:
            raise InvalidValue(
                f"folder must be one that can be written, got {str(folder)!r} ({error.strerror})"
            ) from None
        with self._open() as store:
            store.executescript(_TABLES)
            drawn = _KEYED + secrets.token_bytes(32).hex() if seed is None else str(check_integer("seed", seed))
            store.execute("insert or ignore into secret values (1, ?)", (drawn,))
            found = store.execute("select seed from secret").fetchone()
        if found is None or not isinstance(found[0], str) or not _SECRET.fullmatch(found[0]):
            raise FileRefused(
                f"{self._file} must hold the key or seed it began with, got something else. It is damaged"
            )
        self._kept = found[0]
        if seed is not None and self._kept != str(seed):
            raise InvalidValue(
                "a keeper must go on with the seed it began with, got another one. Its clients' noise is drawn from it"
            )

    def agree(self, proposal: Proposal) -> Agreement:
        """Look at a whole plan before its first round; note it if every round of it can be allowed.

        Of DISTRIBUTED the client's own share is not known yet: it is looked at in each round. C_t may follow the
        updates' norms in CENTRAL only, where the server sees each of them and adds all of the noise, up to the
        `max_clip_norm` of the first proposal: a run that was agreed to without one cannot be given one.
        """
        plan, policy = proposal.plan, self._policy
        run = run_id(plan, proposal.placement, proposal.name)
        largest = max(proposal.max_clip_norm, float(plan.clip_norm.max()))
        if proposal.max_clip_norm and proposal.placement is not Placement.CENTRAL:
            return Agreement(run, (), f"clip norms of a run with {proposal.placement} noise must be the plan's")
        if proposal.values and not self.tells(proposal.placement):
            asked_for = " and ".join(proposal.values)
            return Agreement(
                run,
                (),
                f"each client's {asked_for} is asked for: with server noise, Policy(tell_values=True) agrees",
            )
        if self._spans[-1][1] > plan.sampling.dataset_size:
            return Agreement(run, (), f"the plan has {plan.sampling.dataset_size} clients, more live here")
        noise = plan.noise_multiplier * plan.clip_norm
        for index in sorted({int(plan.clip_norm.argmax()), int(plan.noise_multiplier.argmin()), int(noise.argmin())}):
            # The largest share that DISTRIBUTED can ask for is all of the noise; of the actual one each round tells.
            asked = Round.of(plan, proposal.placement, run, index, 1)
            if proposal.max_clip_norm:
                asked = replace(asked, clip_norm=largest)
            reason = policy.refusal(asked, Memory())
            if reason is not None:
                return Agreement(run, (), f"round {index + 1} of the plan: {reason}")
        with self._open() as store:
            agreed = (run, plan.to_json(), proposal.placement.value)
            new = store.execute("insert or ignore into plans values (?, ?, ?)", agreed).rowcount
            if new and proposal.max_clip_norm:
                store.execute("insert into following values (?, ?)", (run, largest))
            if _largest(store, run) != (largest if proposal.max_clip_norm else 0.0):
                return Agreement(run, (), "the run was agreed to with another max_clip_norm: give it another name")
        return Agreement(run, self._spans)

    def admit(self, asked: Round, clients: Sequence[int]) -> Admitted:
        """Who of ``clients`` answers this round, and why the others do not; the former is noted before it returns."""
        allowed: list[int] = []
        declined: list[tuple[int, str]] = []
        with self._open() as store:
            store.execute("begin immediate")
            general = self._deviation(store, asked)
            for client in dict.fromkeys(clients):
                memory = _remembered(store, client) if client in self._clients else None
                if memory is None:
                    reason = general or f"client {client} does not live here"
                else:
                    reason = general or self._policy.refusal(asked, memory)
                if memory is not None and reason is None:
                    content = memory.after(asked).to_json()
                    store.execute("insert or replace into memory values (?, ?)", (client, content))
                    allowed.append(client)
                else:
                    declined.append((client, reason or ""))
            store.execute("commit")
        return Admitted(tuple(allowed), tuple(declined))

    def prepare(self, client: int, update: Mapping[str, Tensor], asked: Round) -> dict[str, Tensor]:
        """What may leave of an admitted client's update: clipped, with its share of the noise."""
        return prepare(update, asked, self._secret(client))

    def tells(self, placement: Placement) -> bool:
        """Whether clients tell the server their loss and score."""
        return self._policy.tell_values and placement is Placement.CENTRAL

    def _secret(self, client: int) -> Streams | SecureStream:
        """Of one client; made when it is needed, as secure streams stay in the process that made them."""
        if self._kept.startswith(_KEYED):
            return SecureStream(bytes.fromhex(self._kept.removeprefix(_KEYED))).child(f"client {client}")
        return Streams(int(self._kept)).child(client)

    def _deviation(self, store: sqlite3.Connection, asked: Round) -> str | None:
        """How the round differs from the plan that was agreed to."""
        found = store.execute("select plan, placement from plans where run = ?", (asked.run,)).fetchone()
        if found is None:
            return f"the plan of run {asked.run[:12]} was never shown to this node"
        plan = Plan.from_json(str(found[0]), source="the agreed plan")
        # Else a server could have LOCAL agreed to, and then ask for replies without noise.
        if asked.placement.value != found[1]:
            return f"the agreed placement is {found[1]}, the server asks for {asked.placement}"
        if asked.rounds != plan.steps:
            return f"the plan has {plan.steps} rounds, the server says {asked.rounds}"
        c = float(plan.clip_norm[asked.number - 1])
        z = float(plan.noise_multiplier[asked.number - 1])
        moved = asked.clip_norm <= _largest(store, asked.run)
        if asked.noise_multiplier != z or (asked.clip_norm != c and not moved):
            return (
                f"round {asked.number} of the plan has clip_norm {c:g} and noise_multiplier {z:g}, "
                f"the server asks for {asked.clip_norm:g} and {asked.noise_multiplier:g}"
            )
        # A cohort that is called larger than it can be would have each member add next to nothing.
        clients = plan.sampling.dataset_size
        least = asked.placement.share_std(z * c, clients)
        if asked.share_std < least:
            return (
                f"a cohort of the plan has at most {clients} members, each with noise of {least:g} or more, the server "
                f"asks for {asked.share_std:g}"
            )
        return None

    @contextmanager
    def _open(self) -> Generator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self._file, timeout=60, isolation_level=None)) as store:
                store.execute("pragma synchronous = full")
                yield store
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: SQLite quotes what it cannot read
            raise FileRefused(f"{self._file} must be a keeper's file, got: {error}. It is damaged") from error


def _largest(store: sqlite3.Connection, run: str) -> float:
    """The largest C_t of a run whose C_t moves; 0 for others."""
    found = store.execute("select largest from following where run = ?", (run,)).fetchone()
    return 0.0 if found is None else float(found[0])


def _remembered(store: sqlite3.Connection, client: int) -> Memory:
    found = store.execute("select content from memory where client = ?", (client,)).fetchone()
    return Memory() if found is None else Memory.from_json(str(found[0]))
