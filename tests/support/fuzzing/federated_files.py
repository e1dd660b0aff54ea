"""What servers and clients keep and say."""

import base64
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from decrescendo.accounting.budget import Unit
from decrescendo.errors import DecrescendoError
from decrescendo.federated import journal as journals
from decrescendo.federated import server as servers
from decrescendo.federated.flower.keeper import FILE as KEEPER
from decrescendo.federated.flower.keeper import Keeper
from decrescendo.federated.flower.wire import Agreement, Answer, Ask, Proposal
from decrescendo.federated.messages import Round, run_id
from decrescendo.federated.placement import Placement
from decrescendo.federated.policy import Memory, Policy
from decrescendo.federated.server import Server
from decrescendo.plans.plan import Plan
from decrescendo.training.run import certify
from fuzzing.judging import found
from fuzzing.run_files import sign_checkpoint
from fuzzing.seeds import plan
from fuzzing.target import Files, Target

FILE = "file.json"


_certify = cache(certify)


def _clients() -> Plan:
    return plan(Unit.CLIENT)


def _round(placement: Placement = Placement.CENTRAL, share: float = 0.0) -> Round:
    return Round(run_id(_clients(), placement), 1, 4, 1.0, 2.0, placement, share)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}


@cache
def _messages() -> list[Files]:
    rounds = [_round(), _round(Placement.LOCAL, 2.0), _round(Placement.DISTRIBUTED, 0.5)]
    return [
        *(
            {FILE: json.dumps(asked.to_config()).encode(), "memory": Memory().after(asked).to_json().encode()}
            for asked in rounds
        )
    ]


def _read_message(folder: Path) -> Any:
    """A round as a server sends it, a memory as a client kept it, and what a policy says of them."""
    config = _json(folder / FILE)
    asked = Round.from_config(config if isinstance(config, dict) else {})
    text = (folder / "memory").read_bytes().decode("utf-8", "replace") if (folder / "memory").exists() else ""
    memory = Memory.from_json(text)
    refusal = Policy(1.0, 0.5, max_rounds=9).refusal(asked, memory)
    if refusal is None:
        memory = memory.after(asked)
    return asked, memory


def _message_again(value: Any, _: Path) -> Any:
    asked, memory = value
    return Round.from_config(json.loads(json.dumps(asked.to_config()))), Memory.from_json(memory.to_json())


def _server(folder: Path) -> Server:
    model = torch.nn.Linear(2, 1)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Server(model, _clients(), optimizer, seed=0, placement=Placement.CENTRAL, journal=folder)


@cache
def _journals() -> list[Files]:
    with tempfile.TemporaryDirectory() as name:
        server = _server(Path(name) / "run")
        server.open()
        server.close()
        server.stop()
        return [{n: c for n, c in found(Path(name) / "run").items() if n != journals.LOCK}]


def _read_journal(folder: Path) -> Any:
    with patch.object(servers, "certify", _certify):  # a second, for the same plan each time
        server = _server(folder)
    try:
        return server.ledger
    finally:
        server.stop()


@cache
def _keepers() -> list[Files]:
    with tempfile.TemporaryDirectory() as name:
        keeper = Keeper(name, range(5), Policy(1.0, 0.5, max_rounds=9), seed=3)
        keeper.agree(Proposal(_clients(), Placement.CENTRAL, ""))
        keeper.admit(_round(), [0, 1])
        return [found(Path(name))]


def _read_keeper(folder: Path) -> Any:
    """On a copy: a keeper writes down what it answers."""
    with tempfile.TemporaryDirectory() as name:
        if (folder / KEEPER).exists():
            (Path(name) / KEEPER).write_bytes((folder / KEEPER).read_bytes())
        keeper = Keeper(name, range(5), Policy(1.0, 0.5, max_rounds=9))
        return keeper.admit(_round(), [0, 1, 9])


@cache
def _wires() -> list[Files]:
    zeros = {"w": torch.zeros(2, 3), "b": torch.zeros(1, dtype=torch.float64)}
    contents = [
        Ask(_round(), (3, 5), zeros).to_content(),
        Answer("ab", 1, ((3, zeros), (4, zeros)), ((5, "no"),)).to_content(),
        Proposal(_clients(), Placement.CENTRAL, "first").to_content(),
        Agreement("ab", ((0, 5), (8, 9))).to_content(),
    ]
    return [_described(content) for content in contents]


def _described(content: RecordDict) -> Files:
    files: Files = {}
    records: dict[str, Any] = {}
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            records[name] = {
                key: {"dtype": a.dtype, "shape": list(a.shape), "stype": a.stype} for key, a in record.items()
            }
            files |= {f"{name}.{key}": a.data for key, a in record.items()}
        else:
            records[name] = {"config": dict(record)}
    return files | {FILE: json.dumps(records).encode()}


def _content(folder: Path) -> RecordDict:
    """The records that are described; what Flower itself does not take is left out."""
    content = RecordDict()
    described = _json(folder / FILE)
    for name, record in described.items() if isinstance(described, dict) else ():
        try:
            if isinstance(record, dict) and "config" in record:
                content[str(name)] = ConfigRecord(record["config"])
                continue
            arrays = ArrayRecord()
            for key, about in record.items():
                path = folder / f"{name}.{key}"
                data = path.read_bytes() if path.is_file() else b""
                arrays[key] = Array(str(about["dtype"]), tuple(about["shape"]), str(about["stype"]), data)
            content[str(name)] = arrays
        except (TypeError, ValueError, KeyError, AttributeError, OSError, OverflowError):
            continue
    return content


def _read_wire(folder: Path) -> Any:
    """Every kind of message reads the records; refused if none of them can."""
    content, problem, read = _content(folder), None, []
    for kind in (Ask, Answer, Proposal, Agreement):
        try:
            value: Any = kind.from_content(content)
            value.to_content()
            read.append(value)
        except DecrescendoError as error:
            problem = error
    if not read and problem is not None:
        raise problem
    return base64.b64encode(repr(read).encode("utf-8", "replace"))


FEDERATED = (
    Target("messages", _messages, _read_message, _message_again),
    Target("journal", _journals, _read_journal, None, sign_checkpoint, locks=frozenset({journals.LOCK})),
    Target("keeper", _keepers, _read_keeper),
    Target("wire", _wires, _read_wire),
)
