"""Recipes by registration: what is searched for, where and by which rule, written down before its first run.

Each target is the best number of others that was known here for a model like the paper's. For each there is one search
on public data, of these trials in this space, and one evaluation: the best trial's settings, as they are, with seeds
100 to 104. Nothing is searched a second time, and no row is left out. The spaces were written by a person who had seen
what the recipes of the archive (`experiments.strong`) score on the test data; for the targets here nothing had
been run.
"""

from dataclasses import dataclass
from pathlib import Path

from decrescendo_papers.experiments.recipes import Recipe, load_recipe
from decrescendo_papers.experiments.strong import Strong

FOLDER = Path("results/registered")
TRIALS = 8
_PICTURES = ("batch=1000,2000,4000", "clip=0.1..1:log", "stride=0.5..8:log")
_TANH = ("model=tanh", "method=constant", "epochs=20", "lr_decay=cosine", "averaging=0.98", "momentum=0.0")


@dataclass(frozen=True, slots=True)
class Registration:
    """One search and one evaluation.

    Args:
        task: a key of `experiments.tasks.TASKS`.
        epsilon: certified, where the target's is what its source's accountant says.
        delta: the source's.
        target: its test accuracy in %.
        source: who published it, in words.
        stand_in: public data that are searched on.
        vary: what moves, as ``papers search`` takes it.
        fix: what does not.
    """

    task: str
    epsilon: float
    delta: float
    target: float
    source: str
    stand_in: str
    vary: tuple[str, ...]
    fix: tuple[str, ...]

    @property
    def key(self) -> str:
        """Of the recipe in ``results/registered``, without its end."""
        return f"{self.task}-{self.epsilon:g}"

    @property
    def words(self) -> list[str]:
        """The command that searches, behind ``papers``.

        >>> " ".join(REGISTERED[0].words)[:66]
        'search names --epsilon 11.8 --on synthetic-names --trials 8 --vary'
        """
        asked = [
            "search",
            self.task,
            "--epsilon",
            f"{self.epsilon:g}",
            "--on",
            self.stand_in,
            "--trials",
            str(TRIALS),
        ]
        for option, texts in (("--vary", self.vary), ("--fix", (*self.fix, f"delta={self.delta:g}"))):
            for text in texts:
                asked += [option, text]
        return asked


REGISTERED = (
    Registration(
        "names", 11.8, 8e-5, 73.95, "a public example of a character LSTM", "synthetic-names",
        ("batch=800,1600", "epochs=25,50", "stride=1..8:log"),
        ("method=constant", "clip=1.0", "lr_decay=cosine", "averaging=0.0", "momentum=0.0"),
    ),
    Registration(
        "imdb-half", 20.0, 1e-5, 84.0, "a public example at a noise multiplier of 0.56", "imdb-public",
        ("clip=0.05..0.5:log", "learning_rate=0.01..0.1:log", "batch=512,1024"),
        ("method=constant", "epochs=25", "lr_decay=cosine", "averaging=0.98", "momentum=0.0"),
    ),
    Registration(
        "fashion-mnist", 1.0, 1e-5, 83.63, "the paper's network with tanh", "mnist", _PICTURES, _TANH,
    ),
    Registration(
        "mnist", 1.0, 1e-5, 97.06, "the paper's network with tanh", "fashion-mnist", _PICTURES,
        (*_TANH, "start=enlarged-digits"),
    ),
    Registration(
        "fashion-mnist", 2.0, 1e-5, 85.33, "the paper's network with tanh", "mnist", _PICTURES, _TANH,
    ),
    Registration(
        "mnist", 2.0, 1e-5, 97.87, "the paper's network with tanh", "fashion-mnist", _PICTURES,
        (*_TANH, "start=enlarged-digits"),
    ),
)  # fmt: skip


def read_registered(folder: Path = FOLDER) -> Strong:
    """What the searches have found so far, in the order of `REGISTERED`.

    Raises:
        FileRefused: a recipe is damaged.
    """
    found: dict[str, Recipe] = {}
    for registration in REGISTERED:
        path = folder / f"{registration.key}.json"
        if path.exists():
            found[registration.key] = load_recipe(path)
    return Strong(found)
