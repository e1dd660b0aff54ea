"""Records that are several rows, in the data sets that people give Hugging Face trainers."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hf_tiny import bert, gpt2, plan_of, texts, tokenizer

import decrescendo as dc
from decrescendo.errors import InvalidValue
from decrescendo.integrations.hf.records import ONE_ROW_A_RECORD, Records
from decrescendo.training.data.repeated_records import check_distinct, share_records

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

PLAN = plan_of((1.0, 1.0), (1.0, 1.0), batch=6)


def settings(folder: Path, kind: Any = None, **change: Any) -> Any:
    usual = {
        "output_dir": str(folder), "max_steps": 2, "max_grad_norm": 0, "report_to": [], "use_cpu": True,
        "save_strategy": "no", "disable_tqdm": True, "bf16": False,
    }  # fmt: skip
    return (kind or transformers.TrainingArguments)(**{**usual, **change})


def rows(*numbers: int) -> Any:
    import datasets

    return datasets.Dataset.from_dict({"text": [f"w{n} w1" for n in numbers], "n": list(numbers)})


def made(kind: str, folder: Path) -> Any:
    import datasets

    one, other = rows(1, 2, 3, 4), rows(5, 6)
    one.save_to_disk(folder)
    again = [datasets.load_from_disk(folder) for _ in range(2)]
    join, mix = datasets.concatenate_datasets, datasets.interleave_datasets
    return {
        "concatenated": lambda: join([one, one]),
        "with a column added": lambda: join([one, one]).add_column("id", list(range(8))),
        "one of two with a column more": lambda: join([one, one.add_column("z", [0] * 4)]),
        "interleaved until all are exhausted": lambda: mix([one, other], stopping_strategy="all_exhausted"),
        "selected twice": lambda: one.select([0, 1, 1]),
        "repeated": lambda: one.repeat(2),
        "two": lambda: join([one, other]),
        "interleaved until the first is exhausted": lambda: mix([one, other]),
        "shuffled": lambda: one.shuffle(seed=0),
        "loaded": lambda: again[0],
        "loaded twice, parts apart": lambda: join([again[0].select([0, 1]), again[1].select([2, 3])]),
        "with nulls": lambda: datasets.Dataset.from_dict({"a": [None, None], "b": ["", ""], "c": [[], [1]]}),
    }[kind]()


SEVERAL = (
    "concatenated", "with a column added",
    "one of two with a column more", "interleaved until all are exhausted", "selected twice", "repeated",
)  # fmt: skip
ONCE = (
    "two", "interleaved until the first is exhausted", "shuffled", "loaded", "loaded twice, parts apart", "with nulls",
)  # fmt: skip


@pytest.mark.parametrize("kind", SEVERAL)
def test_a_record_of_a_data_set_that_is_there_several_times_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(InvalidValue, match="must be given each record once"):
        check_distinct(made(kind, tmp_path))


@pytest.mark.parametrize("kind", ONCE)
def test_a_data_set_with_each_record_once_is_taken(tmp_path: Path, kind: str) -> None:
    assert check_distinct(made(kind, tmp_path)) is None


def supervised(folder: Path, data: Any, **change: Any) -> Any:
    import trl

    return dc.hf.PrivateSFTTrainer(
        model=gpt2(), args=settings(folder, trl.SFTConfig, max_length=16, **change), train_dataset=data,
        processing_class=tokenizer(),
    )  # fmt: skip


def test_trls_copy_of_a_record_that_is_several_rows_is_refused(tmp_path: Path) -> None:
    """Its map had copied the rows before anybody looked: of a record in three, 12.38 was spent where 3.50 was said."""
    trainer = supervised(tmp_path, made("concatenated", tmp_path / "data"))
    with pytest.raises(InvalidValue, match="must be given each record once"):
        trainer.follow(PLAN, seed=3)
    trainer.train_dataset = trainer.train_dataset.select(range(4))  # other data than were given
    trainer.follow(PLAN, seed=3)
    assert ONE_ROW_A_RECORD in trainer._assumed


def test_packed_rows_are_refused_also_where_another_packed_them(tmp_path: Path) -> None:
    data = rows(1, 2).add_column("seq_lengths", [[2], [2]])
    trainer = dc.hf.PrivateTrainer(model=bert(), args=settings(tmp_path), train_dataset=data)
    with pytest.raises(InvalidValue, match="one record in each row, got packed rows"):
        trainer.follow(PLAN, seed=3)


def test_a_trainer_that_makes_more_rows_than_records_is_refused() -> None:
    records = Records([{"x": 1}])
    records.prepared([{"x": 1}, {"x": 2}])
    with pytest.raises(InvalidValue, match="one row of each record, got 2 rows of 1"):
        records.check(records.made, dc.Unit.EXAMPLE)
    assert records.check(records.made, dc.Unit.PERSON) is None  # whose each row is, is asked there


def test_what_cannot_be_seen_of_rows_that_code_made_is_assumed() -> None:
    class Own(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 2

    plain = [{"x": torch.zeros(1)}, {"x": torch.ones(1)}]
    for data, said in ((texts(), ONE_ROW_A_RECORD), (Own(), ONE_ROW_A_RECORD), (plain, None)):
        records = Records(data)
        assert records.check(data, dc.Unit.EXAMPLE) == said


def test_rows_that_are_trained_on_are_no_public_evaluation_data(tmp_path: Path) -> None:
    data = texts()
    for scored in (data, data.select([0, 1]), {"a": data.select([3])}):
        trainer = dc.hf.PrivateTrainer(
            model=bert(), args=settings(tmp_path), train_dataset=data, eval_dataset=scored, public_eval=True
        )
        with pytest.raises(InvalidValue, match="got rows of train_dataset in eval_dataset"):
            trainer.follow(PLAN, seed=3)
    assert not share_records(data.select([0, 1]), data.select([2, 3]))
