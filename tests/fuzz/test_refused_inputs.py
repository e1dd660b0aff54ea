"""Inputs that were read wrongly once, each the smallest of its kind: refused, or read as what they say."""

import gzip
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from fuzzing import TARGETS, Outcome, judge_files
from fuzzing.mutations import resigned
from fuzzing.run_files import STORE
from fuzzing.seeds import ROWS, adaptive_plan, plan
from typer.testing import CliRunner

from decrescendo.accounting.budget import Budget
from decrescendo.accounting.ledger import Ledger
from decrescendo.base import sealed, strict_json
from decrescendo.base import sealed as kept
from decrescendo.cli import app
from decrescendo.errors import FileRefused, ImpossibleBudget, InvalidValue
from decrescendo.federated.policy import Memory
from decrescendo.plans.adaptive_plan import AdaptivePlan
from decrescendo.plans.calibration import calibrate
from decrescendo.plans.curves import constant
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling import PoissonSampling
from decrescendo.report.ledgers import read_ledger
from decrescendo.training.persistence.checkpoint import Checkpoints
from decrescendo.training.run import Run
from decrescendo.training.store import Store
from decrescendo_papers.data.idx import parse_idx
from decrescendo_papers.data.imdb import from_archive, from_lines
from decrescendo_papers.data.names import parse
from decrescendo_papers.data.xray import from_arrays, pictures

DEEP = "[" * 99_999


@pytest.mark.parametrize(
    "text",
    ["1e999", "-1e999", "NaN", '{"a": 1, "a": 2}', '"\\ud800"', DEEP, "[" * 200 + "]" * 200, "1" * 5000],
)
def test_json_that_cannot_be_written_back_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        strict_json.loads(text)


@pytest.mark.parametrize("where", ['"epsilon": 2.0', '"dataset_size": 500'])
def test_a_number_beyond_all_floats_in_a_signed_plan_or_terms_is_refused(where: str) -> None:
    """The checksum itself could not be computed: an error of json's, not of ours."""
    name = where.split(":")[0]
    for text, digest, read in (
        (plan().to_json(), sealed.digest, Plan.from_json),
        (adaptive_plan().to_json(), sealed.digest, AdaptivePlan.from_json),
    ):
        changed = resigned(text.replace(where, f"{name}: 1e999").encode(), digest).decode()
        assert changed != text
        with pytest.raises(FileRefused):
            read(changed)


def test_a_data_set_beyond_all_floats_is_refused() -> None:
    """Its sample rate was an OverflowError, later."""
    with pytest.raises(InvalidValue, match="dataset_size must be <="):
        PoissonSampling(10**400, 10)


@pytest.mark.parametrize("content", [DEEP, '{"x": 1e999}'])
def test_kept_files_and_memories_are_refused_and_not_a_traceback(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(FileRefused):
        kept.read(tmp_path / "x.json", "x", 1)
    with pytest.raises(FileRefused):
        Memory.from_json(content)
    (tmp_path / "list.json").write_text(f"[{content}]")
    with pytest.raises(FileRefused):
        read_ledger(tmp_path / "list.json", sample_rate=0.1)


def test_entries_of_another_kind_are_refused_where_they_are_read() -> None:
    """A result whose metrics are a number, a recipe whose scores are texts: they failed later, in a page."""
    for name, key, value in (
        ("result", "metrics", 5),
        ("result", "spec", 5),
        ("result", "certified", 5),
        ("recipe", "trials", [{"number": 0, "values": {}, "scores": ["a", "b"]}]),
        ("recipe", "machine", [1]),
        ("influence", "seeds", [{"seed": 0}]),
        ("influence", "seeds", [{"seed": 0, "base": 1, "slopes": []}]),
    ):
        target = TARGETS[name]
        (file, content), *_ = target.seeds()[0].items()
        changed = target.sign({file: json.dumps(json.loads(content) | {key: value}).encode()})
        assert judge_files(target, changed) is Outcome.REFUSED


def test_a_count_is_not_cut_to_a_whole_number(tmp_path: Path) -> None:
    """A run file that said 1.9 releases was read as one."""
    target = TARGETS["run"]
    files = dict(target.seeds()[0])
    body = json.loads(files["run.json"])
    body["ledger"]["count"] = [1.9, 1]
    files["run.json"] = json.dumps(body).encode()
    for name, content in target.sign(files).items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(FileRefused):
        Run.load(tmp_path)


@pytest.mark.parametrize(
    ("statement", "value"),
    [
        ("UPDATE runs SET cost = ?", "1/0"),
        ("UPDATE runs SET cost = ?", "1e999999999"),  # a number that fills any memory
        ("UPDATE facts SET value = ? WHERE name = 'composition'", "renyi:99999999"),
        ("CREATE TRIGGER t AFTER INSERT ON releases BEGIN DELETE FROM releases WHERE ? = 1; END", None),
        ("ALTER TABLE runs ADD COLUMN more TEXT", None),
    ],
)
def test_a_store_that_somebody_changed_is_refused(tmp_path: Path, statement: str, value: str | None) -> None:
    path = tmp_path / STORE
    path.write_bytes(TARGETS["store"].seeds()[0][STORE])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            statement.replace("?", "1") if value is None else statement, () if value is None else (value,)
        )
        connection.commit()
    before = path.read_bytes()
    with pytest.raises(FileRefused):
        Store(path).entries()
    assert path.read_bytes() == before


def test_sqlite_leaves_nothing_beside_a_store_it_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / STORE
    content = bytearray(TARGETS["store"].seeds()[0][STORE])
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(FileRefused):
        Store(path)
    assert os.listdir(tmp_path) == [STORE]


def test_checkpoints_in_the_place_of_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidValue, match="folder"):
        Checkpoints(tmp_path / "file")


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [((2**31, 2**31, 4), b""), ((1,) * 200, b"\x00"), ((2**32 - 1,), b"")],
    ids=["product wraps around to 0", "more dimensions than NumPy has", "announced and not there"],
)
def test_idx_headers_that_lie_are_refused(shape: tuple[int, ...], sizes: bytes) -> None:
    header = bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
    with pytest.raises(FileRefused):
        parse_idx(gzip.compress(header + sizes))


def test_a_small_file_that_unpacks_to_very_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decrescendo_papers.data.idx.LARGEST", 10_000)
    with pytest.raises(FileRefused, match="at most 10000 bytes"):
        parse_idx(gzip.compress(bytes(1_000_000)))


@pytest.mark.parametrize("content", [b"", b"x", gzip.compress(b"x" * 600, mtime=0), b"PK\x03\x04", b"\xff" * 40])
def test_parsers_of_data_say_what_is_wrong(content: bytes) -> None:
    for read in (from_archive, pictures, from_arrays, lambda raw: from_lines(raw, "train")):
        try:
            read(content)  # type: ignore[operator]
        except FileRefused:
            continue
        assert content in (b"",) or read is from_archive or read is pictures
    with pytest.raises(FileRefused):
        parse(b"\xff\n")


def test_pictures_of_other_kinds_in_a_file_of_arrays_are_refused() -> None:
    import io

    out = io.BytesIO()
    np.savez(out, x_train=np.zeros(3), y_train=np.zeros(3), x_test=np.zeros(3), y_test=np.zeros(3))
    with pytest.raises(FileRefused, match="bytes in 3 dimensions"):
        from_arrays(out.getvalue())


@pytest.mark.parametrize("options", [["--epochs", "1e308"], ["--steps", "1000000000000"], ["--steps", "9" * 400]])
def test_more_steps_than_there_is_memory_for_are_refused(options: list[str]) -> None:
    result = CliRunner().invoke(app, ["plan", "--epsilon", "1", "--dataset-size", "500", "--batch", "1", *options])
    assert result.exit_code == 2, result.output
    assert "must be" in result.stderr or "Invalid value" in result.stderr
    with pytest.raises(InvalidValue, match="steps must be <="):
        calibrate(
            Budget(1.0, 1e-5),
            PoissonSampling(ROWS, 10),
            steps=10**9,
            privacy=constant(1.0),
            clip=constant(1.0),
        )


@pytest.mark.parametrize("name", ["a" * 250, "\x00", "missing/plan.json"], ids=["long", "no name", "no folder"])
def test_a_plan_that_cannot_be_saved_says_so(tmp_path: Path, name: str) -> None:
    """Clearing up after the first error raised a second one in its place."""
    with pytest.raises(InvalidValue, match="path must be a file that can be written"):
        plan().save(tmp_path / name)
    assert os.listdir(tmp_path) == []
    with pytest.raises(FileRefused):
        Plan.load(tmp_path / name)


def test_a_file_name_that_is_no_text_is_printed_all_the_same(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.db")
    made = ["ledger", path, "--create", "--epsilon", "1", "--delta", "1e-5", "--rows", "9"]
    result = CliRunner().invoke(app, made)
    assert result.exit_code == 0, result.output
    assert CliRunner().invoke(app, made).exit_code == 2
    with pytest.raises(InvalidValue, match="half of a character"):
        Store.create(tmp_path / "x.db", Budget(1.0, 1e-5), dataset="\udcff", rows=9)


@pytest.mark.parametrize("epsilon", [1e155, 1.7e308])
@pytest.mark.parametrize("rule", ["ZcdpFilter", "GdpFilter", "RenyiFilter(order=12)"])
def test_filters_of_budgets_beyond_all_reason_do_not_overflow(rule: str, epsilon: float) -> None:
    """The square of epsilon is beyond all floats: an OverflowError where a filter or a refusal must be."""
    asked = AdaptivePlan(Budget(epsilon, 1e-6), PoissonSampling(ROWS, ROWS), rule, 10, "none")
    with pytest.raises(ImpossibleBudget, match="promises nothing"):
        asked.replay(Ledger())
