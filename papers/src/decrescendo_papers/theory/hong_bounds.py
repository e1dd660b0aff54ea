"""docs/hong-bounds.md: Tables 1 and 2 of Hong, Wang and Zhou with numbers, for stated constants.

``python -m decrescendo_papers.theory.hong_bounds > docs/hong-bounds.md`` writes it again; a test compares.
"""

from collections.abc import Sequence

from decrescendo import Budget
from decrescendo.base.markdown import table
from decrescendo_papers.theory.bounds import (
    Optimum,
    best_dynamic,
    best_uniform,
    dynamic_printed_steps,
    uniform,
    uniform_printed_steps,
)
from decrescendo_papers.theory.hong_tables import Row, table_1, table_2
from decrescendo_papers.theory.momentum import Momentum
from decrescendo_papers.theory.problem import Problem
from decrescendo_papers.theory.true_risk import by_stability, high_probability

BUDGET = Budget(4, 1e-8)
SIZES = (1_000, 10_000, 100_000)
BETA, FAILURE = 0.5, 0.05


def stated(examples: int) -> Problem:
    """The constants of the page: (4, 1e-8), kappa 10, G = M = f_1 = 1, d = 50.

    >>> round(stated(1_000).alpha, 8)
    6.366e-05
    """
    return Problem.of_budget(
        BUDGET, pl=0.1, smoothness=1.0, lipschitz=1.0, examples=examples, dimension=50, initial_excess=1.0
    )


def rows_of(tables: Sequence[Sequence[Row]]) -> list[list[str]]:
    """One Markdown row an algorithm, a value and its number of steps for every number of examples.

    >>> rows_of([[Row("A", "T/R", "O(1)", 0.5, 3)], [Row("A", "T/R", "O(1)", 0.25, 4)]])
    [['A', 'T/R', 'O(1)', '0.5 (3)', '0.25 (4)', '']]
    """
    return [
        [rows[0].algorithm, rows[0].schedule, rows[0].order, *(_value(row) for row in rows), rows[0].note]
        for rows in zip(*tables, strict=True)
    ]


def _value(row: Row) -> str:
    return "order only" if row.bound is None else f"{row.bound:.3g} ({row.steps})"


def page() -> str:
    """The whole page.

    >>> page().splitlines()[0]
    '# The bounds of Hong, Wang and Zhou, with numbers'
    """
    problems = [stated(size) for size in SIZES]
    momentum = Momentum(problems[0], beta=BETA)
    sizes = [f"N = {size:,}" for size in SIZES]
    first = table(
        ["algorithm", "z_t^2", "printed order", *sizes, "note"],
        rows_of([table_1(problem, beta=BETA) for problem in problems]),
        "lllrrrl",
    )
    second = table(
        ["algorithm", "T", "printed order", *sizes, "note"],
        rows_of(
            [table_2(problem, beta=BETA, failure=FAILURE, strongly_convex=True, convex=True) for problem in problems]
        ),
        "lllrrrl",
    )
    chosen = table(
        ["N", "static T, (24)", "ERUB", "static T, best", "ERUB", "dynamic T, printed", "dynamic T, best"],
        [_steps(problem) for problem in problems],
        "rrrrrrr",
    )
    one = problems[0]
    m, M, G, d, f_1, R = one.pl, one.smoothness, one.lipschitz, one.dimension, one.initial_excess, one.total
    runs = _runs(one)
    return f"""# The bounds of Hong, Wang and Zhou, with numbers

Written by `theory/hong_bounds.py` from `theory/hong_tables.py`; a test compares. What the paper prints and what is
right is in [errata.md](errata.md).

The paper's two tables compare *orders*. An order has no constant, so most rows have no value; those that this library
has a bound for are evaluated here for stated constants: PL constant m = {m:g}, smoothness M = {M:g} (kappa =
{one.kappa:g}, gamma = {one.gamma:g}), Lipschitz constant G = {G:g}, d = {d} parameters, first excess risk
f_1 = {f_1:g}, budget ({BUDGET.epsilon:g}, {BUDGET.delta:g}), that is rho = {R / 2:.6f} and R = {R:.6f} by zCDP.
Momentum has beta = {BETA:g} and the largest rate that the corrected Theorem 4.5 allows,
eta_0 = {momentum.eta_0:.4f}, so its gamma is {momentum.gamma:.5f}. In brackets: the best number of steps, 0 included.
R_ed is the budget eps^2/ln(1/delta) of other accountants, D is d, p (in orders) a probability of failure.

These are worst cases over all losses with these constants. They say how bounds compare, not how accurate a model gets.

## Table 1: empirical risk

The values are ERUB, the upper bound on the expected excess risk divided by f_1. Not training at all has the value 1.

{first}

The schedule printed for momentum, c_1 gamma^(T+t) + c_2 gamma^((T-t)/2), contradicts the paper's own Lemma 4.3: with
z_t^2 proportional to q_t^(-1/2), an influence gamma^(T+t) asks for gamma^(-t/2), which rises where the printed term
falls, and gamma^(T-t) asks for gamma^(t/2), which falls where the printed term rises. The values above use the exact
influence (`theory.influence.momentum`).

That momentum looks worse than plain gradient descent says something about the bound only: its proof needs a learning
rate {1 / momentum.eta_0:.1f} times smaller and counts the noise twice.

## The number of steps

{chosen}

## Table 2: risk on unseen data

Excess risk in units of the loss, f_1 = {f_1:g}. *High probability* assumes that every f(.; x) is m-strongly convex
and holds with probability {1 - 2 * FAILURE:g} (p' = {FAILURE:g} for the draw of the data and as much for the noise) for
the best of {runs} runs with R/{runs} each; finding out which is the best costs extra and is not covered. *Stability*
assumes that every f(.; x) is convex and M-smooth; its T minimises the whole bound.

{second}

The paper chooses T for the empirical bound alone and drops the additive term. If one keeps this term
and the paper's T, then at N = {one.examples:,}, the dynamic schedule has the *larger*
bound, {_at_their_steps(one, best_dynamic(one)):.3g} against {_at_their_steps(one, best_uniform(one)):.3g}:
it takes more steps. With T chosen for the sum it has the smaller one, as
the table shows.
"""


def _steps(problem: Problem) -> list[str]:
    printed, static = uniform_printed_steps(problem), best_uniform(problem)
    return [
        f"{problem.examples:,}",
        f"{printed:.1f}",
        f"{uniform(problem, round(printed)):.3g}",
        str(static.steps),
        f"{static.bound:.3g}",
        f"{dynamic_printed_steps(problem):.1f}",
        str(best_dynamic(problem).steps),
    ]


def _at_their_steps(problem: Problem, found: Optimum) -> float:
    return by_stability(problem, found.bound, steps=found.steps, convex=True)


def _runs(problem: Problem) -> int:
    return high_probability(problem, lambda _: 1.0, failure=FAILURE, strongly_convex=True).repetitions


if __name__ == "__main__":
    print(page(), end="")
