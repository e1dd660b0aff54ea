"""Plans, adaptive plans, ledgers, runs, stores and checkpoints."""

import hashlib
import json
import sqlite3
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as save_tensors

from decrescendo.accounting.budget import Budget
from decrescendo.accounting.ledger import Ledger
from decrescendo.accounting.release import Release
from decrescendo.base import sealed
from decrescendo.base.rng import Keystream, SecureStream
from decrescendo.errors import FileRefused
from decrescendo.plans.adaptive_plan import AdaptivePlan
from decrescendo.plans.plan import Plan
from decrescendo.report.ledgers import read_ledger
from decrescendo.training.persistence.checkpoint import Checkpoint, Checkpoints, Releases
from decrescendo.training.persistence.checkpoint import checkpoints as kept
from decrescendo.training.persistence.checkpoint import releases as listed
from decrescendo.training.persistence.checkpoint.streams import stream_at, stream_state
from decrescendo.training.run import History, Run
from decrescendo.training.run import entries as runs
from decrescendo.training.search import comparison_runs as compared
from decrescendo.training.statement import Declaration, Provenance
from decrescendo.training.store import Store
from fuzzing.decisions import Decisions
from fuzzing.judging import found
from fuzzing.mutations import VALUES, resigned
from fuzzing.seeds import ROWS, adaptive_plan, plain, plan
from fuzzing.target import Files, Target

PLAN, ADAPTIVE, LEDGER, STORE = "plan.json", "adaptive_plan.json", "ledger", "ledger.db"
TOML, COMPARED = "declaration.toml", "runs.jsonl"


def _read_plan(folder: Path) -> Plan:
    read = Plan.load(folder / PLAN)
    str(read).encode()
    read.describe().encode()
    _ = read.ledger.distinct(), read.sampling.sample_rate, hash(read)
    return read


def _plan_again(value: Plan, folder: Path) -> Plan:
    value.save(folder / PLAN)
    return Plan.load(folder / PLAN)


def _sign_plan(files: Files) -> Files:
    return {name: resigned(content, sealed.digest) for name, content in files.items()}


def _read_adaptive(folder: Path) -> AdaptivePlan:
    read = (
        AdaptivePlan.from_json((folder / ADAPTIVE).read_bytes().decode("utf-8", errors="replace"))
        if (folder / ADAPTIVE).exists()
        else adaptive_plan()
    )
    str(read).encode()
    read.replay(Ledger.of([4.0] * 3, sample_rate=0.02).first(0))
    return read


def _read_ledger(folder: Path) -> Ledger:
    read, _ = read_ledger(folder / LEDGER, sample_rate=None if (folder / "own").exists() else 0.1)
    repr(read).encode()
    return read.distinct() + read


def _ledger_again(value: Ledger, folder: Path) -> Ledger:
    lines = [f"{row.sample_rate!r},{row.noise_multiplier!r},{row.count}" for row in value]
    (folder / LEDGER).write_text("\n".join(["sample_rate,noise_multiplier,count", *lines]))
    return read_ledger(folder / LEDGER)[0]


@cache
def _ledgers() -> list[Files]:
    return [
        {LEDGER: b"[2.0, 1.5, 1.25, 1.0]"},
        {LEDGER: b"2.0\n1.5\n1\n"},
        {LEDGER: b"noise_multiplier,sample_rate,count\n1.5,0.02,3\n1.25,0.02,1\n", "own": b""},
        {LEDGER: plan().to_json().encode(), "own": b""},
    ]


class _Same:
    """A run that compares by what is in it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        weights = {
            name: (tensor.dtype, tensor.shape, tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
            for name, tensor in run.weights.items()
        }
        self.key = (
            run.plan, run.ledger, run.guarantee, dict(run.metrics), run.seconds, dict(run.versions), run.clip_norm,
            run.stopped, repr(run.diagnostics), weights, run.provenance,
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.key == other.key


def _read_run(folder: Path) -> _Same:
    read = Run.load(folder)
    str(read).encode()
    read.describe().encode()
    _ = read.covered.distinct()
    return _Same(read)


def _run_again(value: _Same, folder: Path) -> _Same:
    value.run.save(folder, include_diagnostics=True)
    return _Same(Run.load(folder))


@cache
def _runs() -> list[Files]:
    weights = {"weight": torch.arange(6, dtype=torch.float32).view(2, 3), "bias": torch.zeros(2)}
    history = History((3, 0), (0, 0), (1, 0), (0.5, 0.0))
    versions = {"python": "3.11", "torch": "2"}
    fixed = Run(
        plan(),
        plan().ledger.first(2),
        plan().guarantee,
        weights,
        {"accuracy": 0.5},
        1.5,
        versions,
        history,
        provenance=Provenance(random="seeded", resumed=(1,), model="Linear", device="cpu"),
    )
    ledger = Ledger([Release(0.02, 8.0, 1), Release(0.02, 9.0, 1)])
    moving = Run(
        adaptive_plan(),
        ledger,
        adaptive_plan().guarantee,
        weights,
        versions=versions,
        clip_norm=(1.0, 0.5),
        stopped="by its policy",
    )
    made: list[Files] = []
    bare = Run(plain(), plain().ledger, plain().guarantee, weights, versions=versions)
    for run in (fixed, moving, bare):
        with tempfile.TemporaryDirectory() as name:
            run.save(Path(name) / "run", include_diagnostics=True)
            made.append(found(Path(name) / "run"))
    return made


def _sign_run(files: Files) -> Files:
    """The plan's own checksum, those of the files, and the run's."""
    out = dict(files)
    for name, digest in ((runs.PLAN, sealed.digest), (runs.ADAPTIVE_PLAN, sealed.digest)):
        if name in out:
            out[name] = resigned(out[name], digest)
    if runs.RUN not in out:
        return out
    try:
        body: Any = json.loads(out[runs.RUN])
        for name, key in (
            (runs.PLAN, "plan_sha256"),
            (runs.ADAPTIVE_PLAN, "plan_sha256"),
            (runs.WEIGHTS, "weights_sha256"),
        ):
            if name in out and files.get(name) is not None and key in body:
                new = hashlib.sha256(out[name]).hexdigest()
                if isinstance(body[key], str) and len(body[key]) == 64:
                    out[runs.RUN] = out[runs.RUN].replace(body[key].encode(), new.encode())
    except (ValueError, TypeError, RecursionError):
        pass
    out[runs.RUN] = resigned(out[runs.RUN], sealed.digest)
    return out


@cache
def _stores() -> list[Files]:
    made: list[Files] = []
    for rule in ("sum", "renyi:12", "declared"):
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / STORE
            store = Store.create(path, Budget(5.0, 1e-5), dataset="patients", rows=ROWS, composition=rule)
            account = store.start(plan(), label="first", id="a" * 32)
            for position in range(2):
                account.record(
                    position,
                    Release(plan().sampling.sample_rate, float(plan().noise_multiplier[position])),
                    b"x",
                )
            if rule == "sum":
                store.start(adaptive_plan(), label="second", id="b" * 32)
            store.close()
            with sqlite3.connect(path) as connection:
                connection.execute("UPDATE runs SET who = 'someone', started = '2026-01-01T00:00:00+00:00'")
            connection.close()
            made.append(found(Path(name)))
    return made


def _read_store(folder: Path) -> Any:
    store = Store(folder / STORE)
    try:
        content = json.loads(store.to_json())
        for entry in store.entries():
            store.account(entry.id)
        return content
    finally:
        store.close()


_COLUMNS = {
    "facts": ("name", "value"),
    "runs": ("number", "id", "label", "who", "started", "kind", "agreed", "sha256", "cost", "state"),
    "releases": ("run", "position", "sample_rate", "noise_multiplier", "digest"),
}
_STATEMENTS = (
    "DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} LIMIT 1)",
    "CREATE TRIGGER t AFTER INSERT ON releases BEGIN DELETE FROM releases; END",
    "ALTER TABLE {table} ADD COLUMN more",
    "ALTER TABLE {table} RENAME TO other",
    "CREATE VIEW more AS SELECT * FROM facts",
    "PRAGMA user_version = 0",
    "PRAGMA user_version = 77",
    "PRAGMA application_id = 0",
    "PRAGMA journal_mode = WAL",
    "DROP TABLE releases",
    "DELETE FROM facts",
    "DELETE FROM runs",
)


def _bend_store(files: Files, choose: Decisions) -> Files:
    """Changed by SQL: every byte is right, only the content is not."""
    if STORE not in files:
        return files
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / STORE
        path.write_bytes(files[STORE])
        try:
            with sqlite3.connect(path) as connection:
                connection.execute("PRAGMA ignore_check_constraints = ON")
                if choose.below(2):  # no longer STRICT: any type fits any column
                    connection.execute("PRAGMA writable_schema = ON")
                    connection.execute("UPDATE sqlite_master SET sql = replace(sql, 'STRICT', '')")
                    connection.commit()
            connection.close()
            with sqlite3.connect(path) as connection:
                connection.execute("PRAGMA ignore_check_constraints = ON")
                for _ in range(1 + choose.below(3)):
                    table = choose.pick(sorted(_COLUMNS))
                    if choose.below(3):
                        column = choose.pick(_COLUMNS[table])
                        value: Any = choose.pick(
                            (
                                *VALUES,
                                b"\xff",
                                "1e999",
                                "nan",
                                "9" * 5000,
                                "1/1,1/3",
                                "renyi:99999",
                                "1e99999999",
                            )
                        )
                        if isinstance(value, (list, dict)):
                            value = json.dumps(value)
                        if isinstance(value, int) and not -(2**63) <= value < 2**63:
                            value = str(value)
                        connection.execute(f"UPDATE OR IGNORE {table} SET {column} = ?", (value,))
                    else:
                        connection.execute(choose.pick(_STATEMENTS).format(table=table))
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except (sqlite3.Error, OverflowError, UnicodeError):
            pass
        finally:
            connection.close()
        return {**files, STORE: path.read_bytes()} if path.exists() else files


@cache
def _checkpoints() -> list[Files]:
    made: list[Files] = []
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    streams: tuple[Any, ...] = (
        np.random.default_rng(0),
        SecureStream(bytes(32)),
        Keystream(bytes(32)),
    )
    for stream in streams:
        state = {
            "agreed": "ab", "run": None, "model": {"w": torch.ones(2)}, "optimizer": optimizer.state_dict(),
            "noise": stream_state(stream), "columns": [(1, 2, float("nan"))], "seconds": 1.5, "bytes": b"\x00",
            "array": np.arange(3, dtype=np.uint32),
        }  # fmt: skip
        with tempfile.TemporaryDirectory() as name:
            Checkpoints(Path(name), 1).save(Checkpoint(2, state))
            made.append(found(Path(name)))
    return made


def _read_checkpoint(folder: Path) -> str:
    read = Checkpoints(folder, 1, resume=True).newest()
    if read is None:
        return ""
    noise = read.state.get("noise") if isinstance(read.state, dict) else None
    for stream in (
        np.random.default_rng(1),
        SecureStream(bytes(32)),
        Keystream(bytes(32)),
    ):
        if isinstance(noise, dict) and noise.get("kind") == stream_state(stream)["kind"]:
            stream_at(stream, noise)
    return repr((read.step, sorted(map(repr, dict(read.state).items()))))


def sign_checkpoint(files: Files) -> Files:
    out = dict(files)
    for name, content in files.items():
        if not name.endswith(kept.STATE):
            continue
        tensors = out.get(name.removesuffix(kept.STATE) + kept.TENSORS)
        try:
            body: Any = json.loads(content)
            old = body.get("tensors_sha256")
            if tensors is not None and isinstance(old, str) and len(old) == 64:
                content = content.replace(old.encode(), hashlib.sha256(tensors).hexdigest().encode())
        except (ValueError, AttributeError, RecursionError):
            pass
        out[name] = resigned(content, sealed.digest)
    return out


@cache
def _releases() -> list[Files]:
    made: list[Files] = []
    for count in (0, 1, 4):
        with tempfile.TemporaryDirectory() as name:
            releases = Releases(name)
            releases.begin()
            for position in range(count):
                releases.record(position, bytes([position]) * 32)
            made.append({listed.RELEASES: (Path(name) / listed.RELEASES).read_bytes()})
    torn = made[-1][listed.RELEASES] + b'{"step": 5, "sha256": "0a'
    return [*made, {listed.RELEASES: torn}]


def _read_releases(folder: Path) -> tuple[str, ...]:
    releases = Releases(folder)
    path = folder / listed.RELEASES
    releases.go_on(listed._name_in(path) if path.exists() else "", 0)
    return tuple(releases._digests)


def _releases_again(value: tuple[str, ...], folder: Path) -> tuple[str, ...]:
    releases = Releases(folder)
    releases.begin()
    for position, digest in enumerate(value):
        assert releases.record(position, bytes.fromhex(digest))
    return _read_releases(folder)


@cache
def _declarations() -> list[Files]:
    return [
        {TOML: b'data = "letters"\nperson = "one"\n'},
        {TOML: b'tuning = """\nnone\n"""\ngroups = \'x\'\n'},
    ]


@cache
def _tensor_files() -> list[bytes]:
    return [
        save_tensors({}),
        save_tensors({"t0": torch.zeros(0)}),
        save_tensors({"t0": torch.zeros(2, dtype=torch.bfloat16)}),
    ]


def _bend_tensors(files: Files, choose: Decisions) -> Files:
    """Another whole file of tensors, or a header that says something else."""
    names = [name for name in files if name.endswith(".safetensors")]
    if not names:
        return files
    name = choose.pick(sorted(names))
    if choose.below(2):
        return {**files, name: choose.pick(_tensor_files())}
    content = files[name]
    size = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + size]
    for old, new in (
        choose.pick(
            (
                (b"F32", b"F64"),
                (b"F32", b"F8_E4M3"),
                (b"F32", b"F4"),
                (b"[2", b"[9"),
                (b"0,", b"1,"),
                (b'"dtype"', b'"dtypo"'),
            )
        ),
    ):
        header = header.replace(old, new)
    return {**files, name: len(header).to_bytes(8, "little") + header + content[8 + size :]}


@cache
def _compared() -> list[Files]:
    lines: list[str] = []
    for seed, scores in ((0, [0.5, 0.75]), (1, [None, 0.5])):
        facts = {
            "about": {"plan": plan().sha256, "seed": seed},
            "steps": [2, 4],
            "scores": scores,
            "seconds": 1.5,
        }
        lines.append(sealed.seal({"format": compared.FORMAT, "version": compared.VERSION, **facts}))
    return [{COMPARED: line.encode() + b"\n"} for line in ("\n".join(lines), lines[0])]


def _read_compared(folder: Path) -> dict[str, Any]:
    found = compared.read_finished(folder / COMPARED)
    if not found:
        raise FileRefused("no finished run")
    for line in found.values():
        run = compared.finished(compared.Wanted("constant", plan(), 0, 0.5), line)
        repr((run, run.scores[-1])).encode()
    return found


def _compared_again(value: dict[str, Any], folder: Path) -> dict[str, Any]:
    (folder / COMPARED).unlink(missing_ok=True)
    for line in value.values():
        compared.add_finished(folder / COMPARED, line)
    return compared.read_finished(folder / COMPARED)


def _sign_lines(files: Files) -> Files:
    """The checksum of each line."""
    lines = {name: content.split(b"\n") for name, content in files.items()}
    return {name: b"\n".join(resigned(line, sealed.digest) for line in found) for name, found in lines.items()}


RUNS = (
    Target(
        "plan",
        lambda: [{PLAN: made.to_json().encode()} for made in (plan(), plain())],
        _read_plan,
        _plan_again,
        _sign_plan,
    ),
    Target(
        "adaptive plan",
        lambda: [
            {ADAPTIVE: adaptive_plan(rule).to_json().encode()}
            for rule in ("RenyiFilter(order=12)", "ZcdpFilter", "GdpFilter")
        ],
        _read_adaptive, lambda value, _: AdaptivePlan.from_json(value.to_json()),
        lambda files: {name: resigned(content, sealed.digest) for name, content in files.items()},
    ),
    Target("ledger", _ledgers, _read_ledger, _ledger_again),
    Target("run", _runs, _read_run, _run_again, _sign_run, _bend_tensors),
    Target("compared run", _compared, _read_compared, _compared_again, _sign_lines),
    Target("store", _stores, _read_store, None, bend=_bend_store),
    Target("declaration", _declarations, lambda folder: Declaration.load(folder / TOML)),
    Target("checkpoint", _checkpoints, _read_checkpoint, None, sign_checkpoint, _bend_tensors),
    Target("releases", _releases, _read_releases, _releases_again, locks=frozenset({listed.LOCK})),
)  # fmt: skip
