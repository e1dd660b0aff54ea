"""What a script prints, logs, writes and saves is compared between runs that differ in the private rows alone."""

import os
import re
from pathlib import Path
from typing import Any

import doctor_trainings as trainings
import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from decrescendo.doctor import Certainty, Diagnosis
from decrescendo.doctor.exchanged import exchange
from decrescendo.doctor.moved_outputs import NOT_COMPARED, _moved
from decrescendo.doctor.outputs import Outputs, _refuse

from .conftest import Observe

# A right loop by hand, on 600 rows, whose steps end with these lines.
_CLEAN = trainings.CLEAN_BY_HAND["vmap"]
_BEGIN = """
import csv, json, logging, pickle, time
import numpy as np
test_x, test_y = torch.randn(200, 8), torch.randint(2, (200,))
table = open("table.csv", "w", newline="")

def loss_of(a, b):
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(a), b))

"""


def _script(after: str, *, before: str = _BEGIN, of: str = _CLEAN) -> str:
    """A loop, with lines after each epoch."""
    head, found, loop = of.partition("\nfor epoch in range(3):\n")
    assert found
    return f"{head}\n{before}{found}{loop}\n" + "".join(f"    {line}\n" for line in after.strip().splitlines())


def _proven(found: Diagnosis, script: Path) -> dict[str, str]:
    """The source of each line that was proven to release something, and what is said of it."""
    text = script.read_text().splitlines()
    proven = [f for f in found.findings if f.certainty is Certainty.PROVEN and f.check in ("beside", "selection")]
    lines = {f.says: [f.line, *map(int, re.findall(r"\d+", f.says.partition("(and in line")[2]))] for f in proven}
    return {text[line - 1].strip(): says for says, found in lines.items() for line in found}


_RELEASES = """
print("loss", loss_of(x, y))
logging.warning("loss %s", loss_of(x, y))
_ = table.write(f"{loss_of(x, y)}\\n")
csv.writer(table).writerow([loss_of(x, y)])
torch.save({"weights": model.state_dict(), "note": loss_of(x, y)}, "last.pt")
json.dump({"a": [loss_of(x, y)]}, open("history.json", "w"))
np.save("losses.npy", [loss_of(x, y)])
Path("loss.txt").write_text(str(loss_of(x, y)))
sys.stderr.write(str(loss_of(x, y)))
"""


def test_every_way_out_of_a_script_is_seen(observed: Observe, tmp_path: Path) -> None:
    os.chdir(tmp_path)
    found = observed(tmp_path, _script(_RELEASES, before=f"{_BEGIN}import sys\nfrom pathlib import Path\n"))
    assert set(_proven(found, tmp_path / "train.py")) == set(_RELEASES.strip().splitlines()), found.describe()
    assert "note" in next(f.says for f in found.findings if f.says.startswith("what is saved"))


_HARMLESS = """
print("loss", loss_of(test_x, test_y), "rows", len(x), "epoch", epoch)
print("noisy", loss_of(x, y) + float(torch.randn(()) * 0.1))
print("noisy", loss_of(x, y) + np.random.laplace(0, 0.1))
print(f"took {time.time():.1f} s", object())
print("norm", float(sum(p.norm() for p in model.parameters())))
torch.save({"weights": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
_ = table.write(f"{loss_of(test_x, test_y)}\\n")
print("read again", torch.load("last.pt")["optimizer"]["param_groups"][0]["lr"])
"""


def test_nothing_is_said_of_public_rows_of_noisy_numbers_and_of_weights(observed: Observe, tmp_path: Path) -> None:
    os.chdir(tmp_path)
    found = observed(tmp_path, _script(_HARMLESS))
    assert not _proven(found, tmp_path / "train.py"), found.describe()
    assert any("the outputs of 0 lines changed" in fact for fact in found.facts), found.describe()


def test_nothing_of_the_twins_reaches_the_disk(observed: Observe, tmp_path: Path) -> None:
    os.chdir(tmp_path)
    observed(tmp_path, _script(_RELEASES + _HARMLESS, before=f"{_BEGIN}import sys\nfrom pathlib import Path\n"))
    assert {path.name for path in tmp_path.iterdir()} == {"train.py", "kept", "table.csv"}
    assert (tmp_path / "table.csv").read_text() == ""


def test_noise_that_rounding_nearly_hides_is_noise(observed: Observe, tmp_path: Path) -> None:
    score = "float((model(x).argmax(1) == y).float().mean())"
    found = observed(tmp_path, _script(f'print("accuracy", round({score} + float(torch.randn(())) * 0.004, 2))'))
    assert not _proven(found, tmp_path / "train.py"), found.describe()


def test_rows_that_no_step_draws_are_no_private_rows(observed: Observe, tmp_path: Path) -> None:
    """Of one data set the loader's own sampler draws the first 500 rows, and another one the others."""
    sampler = "torch.utils.data.SubsetRandomSampler(range(500, 600))"
    held = f"held = DataLoader(loader.dataset, 50, sampler={sampler})\n"
    text = _script('print("held out", sum(loss_of(a, b) for a, b in held))', before=f"{_BEGIN}{held}")
    assert "torch.rand(600) < 0.1" in text
    found = observed(tmp_path, text.replace("torch.rand(600) < 0.1", "torch.rand(500) < 0.1"))
    assert not _proven(found, tmp_path / "train.py"), found.describe()


def test_a_score_in_a_large_checkpoint_is_seen(observed: Observe, tmp_path: Path) -> None:
    os.chdir(tmp_path)
    more = "{str(i): torch.ones(3) for i in range(300)}"
    save = f'torch.save({{"more": {more}, "score": np.float32(loss_of(x, y))}}, "a.pt")'
    found = observed(tmp_path, _script(save))
    assert list(_proven(found, tmp_path / "train.py")) == [save], found.describe()


def test_rows_that_lie_in_a_file_stay_as_they_are(observed: Observe, tmp_path: Path) -> None:
    os.chdir(tmp_path)
    np.save("rows.npy", np.random.default_rng(0).normal(size=(600, 8)).astype("float32"))
    before = Path("rows.npy").read_bytes()
    mapped = 'x = torch.from_numpy(__import__("numpy").load("rows.npy", mmap_mode="r+"))'
    text = _script('print("loss", loss_of(x, y))').replace("x = torch.randn(600, 8)", mapped)
    assert mapped in text
    found = observed(tmp_path, text)
    assert Path("rows.npy").read_bytes() == before
    assert NOT_COMPARED in found.unseen


def test_a_copy_that_fails_says_so(observed: Observe, tmp_path: Path) -> None:
    after = 'print("loss", loss_of(test_x, test_y))\nimport subprocess; subprocess.run(["ls"])'
    found = observed(tmp_path, _script(after))
    assert any("subprocess.Popen" in why for why in found.unseen), found.describe()


@pytest.mark.parametrize(
    "event", [("open", "/tmp/other", "w", os.O_WRONLY), ("socket.connect", None, None), ("os.remove", "x", -1)]
)
def test_a_twin_is_refused_what_would_leave_it(event: tuple[Any, ...]) -> None:
    with pytest.raises(PermissionError):
        _refuse(event[0], event[1:])


def test_files_of_the_user_are_opened_as_ever(tmp_path: Path) -> None:
    outputs, path = Outputs(), tmp_path / "a.txt"
    with outputs._opened(open, path, "w", encoding="utf-16", newline="\r\n") as file:
        print("ä", file=file)
        assert (str(file.name), file.mode, file.encoding) == (str(path), "w", "utf-16")
    assert path.read_bytes().decode("utf-16") == "ä\r\n"
    with outputs._opened(open, path, "a", 1, "utf-16-le") as file:
        file.write("b\n")
        assert path.read_bytes().endswith("b\n".encode("utf-16-le"))
    with pytest.raises(ValueError, match="unbuffered"):
        outputs._opened(open, path, "w", 0)


def test_reading_is_not_refused() -> None:
    _refuse("open", ("/etc/hosts", "r", os.O_RDONLY))


def test_an_end_by_private_scores_is_a_choice_by_private_rows(observed: Observe, tmp_path: Path) -> None:
    first = "first = float(y.float().mean())\n"
    stop = 'if float(y.float().mean()) == first:\n    print("stopped")\nprint("goes on")'
    text = _script(stop, before=first)
    sorted_rows = "x = torch.randn(600, 8).sort(0).values"  # the last ones are all of one class
    assert "x = torch.randn(600, 8)" in text
    found = observed(tmp_path, text.replace("x = torch.randn(600, 8)", sorted_rows))
    assert [f.check for f in found.findings if "whether this is printed" in f.says] == ["selection"], found.describe()


def test_weights_that_a_loop_moves_itself_are_held(observed: Observe, tmp_path: Path) -> None:
    after = 'print("loss", loss_of(x, y))\nprint("loss of others", loss_of(test_x, test_y))'
    result = observed(tmp_path, _script(after, of=trainings.CLEAN_BY_HAND["no optimiser"]))
    assert list(_proven(result, tmp_path / "train.py")) == ['print("loss", loss_of(x, y))'], result.describe()


def test_weights_in_a_dict_are_held(observed: Observe, tmp_path: Path) -> None:
    os.chdir(tmp_path)
    loss = "float(nn.functional.cross_entropy(functional_call(model, weights, ({},)), {}))"
    own, others = f'print("loss", {loss.format("x", "y")})', f'print("loss", {loss.format("test_x", "test_y")})'
    norm = 'print("norm", float(weights["0.weight"].norm()))'
    saved = 'torch.save(weights, "weights.pt")'
    result = observed(tmp_path, _script(f"{norm}\n{saved}\n{own}\n{others}\n{norm}\n{saved}", of=trainings.IN_A_DICT))
    assert list(_proven(result, tmp_path / "train.py")) == [own], result.describe()
    assert any("were compared" in fact for fact in result.facts)


def test_losses_of_clients_are_seen_and_scores_of_others_are_not(observed: Observe, tmp_path: Path) -> None:
    os.chdir(tmp_path)
    loss = "float(nn.functional.cross_entropy(model({0}), ({0}[:, 0] > 0).long()))"
    own = f'    print("loss", {loss.format("clients[0]")})'
    others = f'    print("others", {loss.format("public")}, float(sum(p.norm() for p in model.parameters())))'
    head, turns, loop = trainings.FEDERATED.partition("for turn in range(6):\n")
    text = f"{head}public = torch.randn(50, 8)\n{turns}{loop}{others}\n{own}\n"
    always = text.replace("clients if float(torch.rand(())) < rate", "clients[:2]")
    assert always != text
    result = observed(tmp_path, always)
    assert list(_proven(result, tmp_path / "train.py")) == [own.strip()], result.describe()


class _Rows(Dataset[int]):
    """A data set of one's own."""

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [10 * i for i in indices]

    def __len__(self) -> int:
        return 40


def test_rows_of_a_data_set_are_exchanged_and_no_others() -> None:
    table = torch.arange(100.0)[:, None]
    copy = table.numpy().copy()
    alone = table + 1
    exchange(Subset(Subset(TensorDataset(table), range(80)), range(40, 80)))
    assert table[:40, 0].tolist() == list(range(40))
    assert table[80:, 0].tolist() == list(range(80, 100))
    assert set(table[40:80, 0].tolist()) == {75, 76, 77, 78, 79}
    assert copy[40:80].tolist() == table[40:80].tolist()  # the same rows in another variable
    assert alone[:, 0].tolist() == list(range(1, 101))


def test_rows_of_other_data_sets_are_exchanged() -> None:
    own, others = _Rows(), _Rows()
    exchange(own)
    assert [own[0], own[5], own[39]] == [39, 39, 35]
    assert own.__getitems__([0, 39]) == [390, 350]
    assert len(own) == 40
    assert others[0] == 0
    part = Subset(others, [3, 5, 7, 9])
    both = ConcatDataset([part, part])
    exchange(both, {0, 2})
    assert [both[i] for i in range(8)] == [7, 5, 3, 9, 3, 5, 7, 9]
    exchange(part)
    assert [part[i] for i in range(4)] == [9, 7, 9, 7]
    assert others[3] == 3


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("loss 0.5", "loss 0.5000000001", True), ("loss 0.5", "loss 0.5004", False), ("0.5 a", "0.5 b", False),
        ("took 1.2s", "took 3.45 s", True), ("at 10:02:11", "at 10:02:12", True), ("nan", "nan", True),
        ("1e-3", "0.001", True), ("loss nan", "loss 1.0", False), ("<a at 0x7f00>", "<a at 0x7faa>", True),
    ],
)  # fmt: skip
def test_texts_are_the_same_up_to_rounding_and_time(one: str, other: str, same: bool) -> None:
    assert _moved(one, other, one) is not same
    assert not _moved(one, other, f"{one} 1")  # noise enters


def test_a_number_beside_a_noisy_one_is_seen() -> None:
    assert _moved("loss 0.5, noisy 3", "loss 0.6, noisy 4", "loss 0.5, noisy 2")
    assert not _moved("loss 0.5, noisy 3", "loss 0.5, noisy 4", "loss 0.5, noisy 2")
