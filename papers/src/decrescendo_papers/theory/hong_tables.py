"""Tables 1 and 2 of Hong, Wang and Zhou: their orders as printed, and values where the constants are known.

An order such as O(D ln N/(N^2 R)) has no constant and so no value; a row has a value only where this library has the
bound itself. Table 1 is ERUB, a share of the first excess risk; Table 2 is in units of the loss.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from decrescendo_papers.theory.bounds import Optimum, best_dynamic, best_uniform, dynamic, uniform
from decrescendo_papers.theory.momentum import Momentum
from decrescendo_papers.theory.problem import Problem
from decrescendo_papers.theory.true_risk import by_stability, high_probability

Best = Callable[[Problem], Optimum]

NON_PRIVATE = "gamma^T after the dynamic row's steps"
CORRECTED = "corrected Theorem 4.5"
EXPONENTS = "the printed schedule contradicts z^2 ~ q^(-1/2)"
EXTRA_N = "without the extra 1/N of Eq. (15)"
ADDITIVE = "with the additive term, 2 G^2 eta T/N"
NOT_SHOWN = "Theorem 4.12 says nothing of momentum"


@dataclass(frozen=True, slots=True)
class Row:
    """One row: what the paper prints, and the bound for stated constants.

    Args:
        algorithm: its name in the paper, with its reference.
        schedule: the order of z_t^2 (their sigma_t^2) as printed; for Table 2 the number of steps.
        order: the order of the bound as printed.
        bound: the value, ``None`` where the paper gives no constants.
        steps: the best number of steps, where there is a value.
        note: what differs from the paper.

    >>> Row("GD+MA [34]", "T/R_ed", "D ln^2 N/(N^2 R_ed)").bound is None
    True
    """

    algorithm: str
    schedule: str
    order: str
    bound: float | None = None
    steps: int | None = None
    note: str = ""


def table_1(problem: Problem, *, beta: float) -> tuple[Row, ...]:
    """Table 1: bounds of the empirical risk.

    Args:
        problem: the constants.
        beta: of the two momentum rows, with the largest learning rate that the corrected Theorem 4.5 allows.

    >>> problem = Problem(0.1, 1.0, 1.0, 1_000, 50, 1.0, total=0.392704)
    >>> [(row.algorithm, round(row.bound, 4)) for row in table_1(problem, beta=0.5)[6:8]]
    [('GD+zCDP, static', 0.0367), ('GD+zCDP, dynamic', 0.0236)]
    """
    momentum = Momentum(problem, beta=beta)
    static, moving = best_uniform(problem), best_dynamic(problem)
    quiet = Optimum(moving.steps, without_noise(problem, moving.steps))
    slow_static, slow_dynamic = momentum.best_uniform(), momentum.best_dynamic()
    return (
        Row("GD+Adv [3], convex", "O(ln(N/delta)/R_ed)", "O(D ln^3 N/(N R_ed))"),
        Row("GD+MA [34]", "O(T/R_ed)", "O(D ln^2 N/(N^2 R_ed))"),
        Row("GD+MA, adjusted [39]", "O(T/R_ed)", "O(min(sqrt D/(N R_ed), D ln N/(N^2 R_ed^2)))"),
        Row("GD+Adv+BBImp [7], convex", "O(n^2 ln(n/delta)/R_ed)", "O_p(D^2 ln^2(1/p)/(R_ed N^(1-c)))"),
        Row("Adam+MA [42]", "O(T/R_ed)", "O_p(sqrt D ln(N D eps/(1-p))/(N R_ed))"),
        _row("GD, non-private", "0", "O(D/(N^2 R))", quiet, NON_PRIVATE),
        _row("GD+zCDP, static", "T/R", "O(D ln N/(N^2 R))", static),
        _row("GD+zCDP, dynamic", "O(gamma^((t-T)/2)/R)", "O(D/(N^2 R))", moving),
        _row("Momentum+zCDP, static", "T/R", "O(D/(N^2 R) (c + ln N [T > T^]))", slow_static, CORRECTED),
        _row(
            "Momentum+zCDP, dynamic",
            "O((c_1 gamma^(T+t) + c_2 gamma^((T-t)/2))/R)",
            "O(D/(N^2 R) (1 + cD/(N^2 R) [T > T^]))",
            slow_dynamic,
            f"{CORRECTED}; {EXPONENTS}",
        ),
    )


def table_2(problem: Problem, *, beta: float, failure: float, strongly_convex: bool, convex: bool) -> tuple[Row, ...]:
    """Table 2: bounds of the risk on unseen data.

    Args:
        problem: the constants.
        beta: of the momentum rows.
        failure: p' of `high_probability`, in (0, 1/2].
        strongly_convex: that every f(.; x) is ``pl``-strongly convex must be declared (rows by high probability).
        convex: that every f(.; x) is convex and ``smoothness``-smooth must be declared (rows by stability).

    >>> problem = Problem(0.1, 1.0, 1.0, 1_000, 50, 1.0, total=0.392704)
    >>> rows = table_2(problem, beta=0.5, failure=0.05, strongly_convex=True, convex=True)
    >>> [row.algorithm for row in rows if row.bound is None and "zCDP" in row.algorithm]
    ['SSGD+zCDP [11]', 'Stability: Momentum+zCDP, static', 'Stability: Momentum+zCDP, dynamic']
    """
    log_steps = "O(ln(N^2 R/D))"
    methods: dict[str, tuple[Best, str]] = {
        "GD+zCDP, static": (best_uniform, "sqrt(D ln N ln(1/p)/(N R))"),
        "GD+zCDP, dynamic": (best_dynamic, "sqrt(D ln(1/p)/(N R))"),
        "Momentum+zCDP, static": (
            lambda p: Momentum(p, beta=beta).best_uniform(),
            "sqrt(D ln(1/p)/(N R) (c + ln N [T > T^]))",
        ),
        "Momentum+zCDP, dynamic": (
            lambda p: Momentum(p, beta=beta).best_dynamic(),
            "sqrt(D ln(1/p)/(N R)) (1 + cD/(N^2 R) [T > T^])",
        ),
    }
    rows = [
        Row("GD+Adv [3]", "O(N^2)", "O_(1-p)(sqrt D ln^2 N ln(1/p)/(p m N R_ed))"),
        Row("SVRG+MA [34]", "O(ln(N^2 R_ed/D))", "O(D ln N/(m N^2 R_ed))"),
        Row("SSGD+zCDP [11]", "O(N^2/(16 D/R^2 + 4 N))", "O((1/sqrt N + 2 sqrt D/(sqrt R N)) ln N)"),
        Row("SGD+MA [2], convex", "O(min(N/8, N^2 R_ed/(32 D)))", "O(max(sqrt D/(N sqrt R_ed), 1/sqrt N))"),
    ]
    for name, (best, order) in methods.items():

        def erub(share: Problem, best: Best = best) -> float:
            return best(share).bound

        risk = high_probability(problem, erub, failure=failure, strongly_convex=strongly_convex)
        rows.append(
            Row(
                f"High probability: {name}",
                log_steps,
                f"O_(1-p)(G^2/(m N) ({order} + 4/p))",
                risk.bound,
                best(replace(problem, total=problem.total / risk.repetitions)).steps,
                EXTRA_N,
            )
        )
    static = best_by_stability(problem, uniform, most=best_uniform(problem).steps, convex=convex)
    moving = best_by_stability(problem, dynamic, most=best_dynamic(problem).steps, convex=convex)
    quiet = best_by_stability(problem, without_noise, most=_forgotten(problem), convex=convex)
    for name, found, order in (
        ("GD, non-private", quiet, "O(D/(N^2 R))"),
        ("GD+zCDP, static", static, "O(D ln N/(N^2 R))"),
        ("GD+zCDP, dynamic", moving, "O(D/(N^2 R))"),
    ):
        rows.append(Row(f"Stability: {name}", log_steps, order, found.bound, found.steps, ADDITIVE))
    rows += [
        Row(f"Stability: Momentum+zCDP, {kind}", log_steps, f"O(D/(N^2 R) ({order} [T > T^]))", note=NOT_SHOWN)
        for kind, order in (("static", "c + ln N"), ("dynamic", "1 + cD/(N^2 R)"))
    ]
    return tuple(rows)


def best_by_stability(problem: Problem, erub: Callable[[Problem, int], float], *, most: int, convex: bool) -> Optimum:
    """The number of steps up to ``most`` with the least f_1 ERUB(T) + 2 G^2 T/(M N), 0 included.

    ``most`` is the best T of ERUB alone: beyond it both terms rise.

    >>> problem = Problem(0.1, 1.0, 1.0, 1_000, 50, 1.0, total=0.392704)
    >>> best_by_stability(problem, dynamic, most=best_dynamic(problem).steps, convex=True).steps
    36
    """
    found = (
        Optimum(steps, by_stability(problem, erub(problem, steps), steps=steps, convex=convex))
        for steps in range(most + 1)
    )
    return min(found, key=lambda one: one.bound)


def without_noise(problem: Problem, steps: int) -> float:
    """gamma^T: what T steps without noise leave of the excess risk.

    >>> round(without_noise(Problem(0.5, 1.0, 1.0, 10, 4, 1.0, total=0.5), 3), 6)
    0.125
    """
    return math.exp(steps * problem.log_gamma) if steps else 1.0


def _forgotten(problem: Problem) -> int:
    # Where f_1 gamma^T has become smaller than what one more step adds, T cannot be the best.
    per_step = by_stability(problem, 0.0, steps=1, convex=True)
    if not math.isfinite(problem.log_gamma) or per_step >= problem.initial_excess:
        return 1
    return math.ceil(math.log(problem.initial_excess / per_step) / -problem.log_gamma)


def _row(algorithm: str, schedule: str, order: str, found: Optimum, note: str = "") -> Row:
    return Row(algorithm, schedule, order, found.bound, found.steps, note)
