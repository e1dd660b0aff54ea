"""Facts: the bounds are exact where they can be, valid for every mechanism, and near the truth where they should be."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.stats import binom, norm

from decrescendo.accounting import Pld, delta_of, epsilon_of
from decrescendo.accounting.ledger import Ledger
from decrescendo.audit import (
    AuditResult,
    ErrorRates,
    PrivacyCurve,
    errors_epsilon,
    noise_p_value,
    one_run_epsilon,
    one_run_p_value,
)
from decrescendo.audit.likelihood import participation_evidence
from decrescendo.audit.threshold import choose_threshold, rates_at
from decrescendo.errors import FileRefused, InvalidValue

CONFIDENCE = 0.95


def largest_chance(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Of ``correct`` right guesses, over *all* (epsilon, delta)-DP mechanisms: a linear program in their tables."""
    coins = list(itertools.product((-1, 1), repeat=canaries))
    outputs = [answer for answer in itertools.product((-1, 0, 1), repeat=canaries) if sum(map(abs, answer)) <= guesses]
    pairs = [
        (i, j)
        for i, j in itertools.permutations(range(len(coins)), 2)
        if sum(a != b for a, b in zip(coins[i], coins[j], strict=True)) == 1
    ]
    n, k = len(coins), len(outputs)
    size = n * k + len(pairs) * k

    def right(s: tuple[int, ...], t: tuple[int, ...]) -> int:
        return sum(a == b for a, b in zip(s, t, strict=True))

    objective = np.zeros(size)
    for i, j in itertools.product(range(n), range(k)):
        objective[i * k + j] = -(right(coins[i], outputs[j]) >= correct) / n
    rows, limits = [], []
    for number, (i, j) in enumerate(pairs):
        # slack(t) >= M(t | i) - e^epsilon M(t | j), and the slacks of a pair add up to delta at most.
        start = n * k + number * k
        for t in range(k):
            row = np.zeros(size)
            row[i * k + t], row[j * k + t], row[start + t] = 1, -math.exp(epsilon), -1
            rows.append(row)
            limits.append(0.0)
        total = np.zeros(size)
        total[start : start + k] = 1
        rows.append(total)
        limits.append(delta)
    equal = np.zeros((n, size))
    for i in range(n):
        equal[i, i * k : (i + 1) * k] = 1
    found = linprog(objective, np.array(rows), limits, equal, np.ones(n), bounds=(0, 1))
    assert found.success
    return -found.fun


class TestOneRun:
    @pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
    @pytest.mark.parametrize(("canaries", "guesses"), [(1, 1), (2, 1), (2, 2), (3, 2)])
    def test_without_delta_it_is_the_best_that_any_mechanism_can_do(
        self, canaries: int, guesses: int, epsilon: float
    ) -> None:
        for correct in range(1, guesses + 1):
            bound = one_run_p_value(canaries, guesses, correct, epsilon, 0.0)
            assert bound == pytest.approx(largest_chance(canaries, guesses, correct, epsilon, 0.0), abs=1e-7)

    @pytest.mark.parametrize("delta", [0.01, 0.1])
    @pytest.mark.parametrize("epsilon", [0.0, 1.0])
    @pytest.mark.parametrize(("canaries", "guesses"), [(1, 1), (2, 1), (2, 2), (3, 2)])
    def test_with_delta_no_mechanism_does_better_and_the_addition_is_needed(
        self, canaries: int, guesses: int, epsilon: float, delta: float
    ) -> None:
        for correct in range(1, guesses + 1):
            best = largest_chance(canaries, guesses, correct, epsilon, delta)
            assert best <= one_run_p_value(canaries, guesses, correct, epsilon, delta) + 1e-7
            # Without its second term the bound would be false.
            assert best > one_run_p_value(canaries, guesses, correct, epsilon, 0.0) + 1e-4

    def test_the_published_second_term_is_too_small(self) -> None:
        """A mechanism over two coins that is (1, 0.01)-DP, by its table: which of them are guessed rightly."""
        epsilon, delta, e = 1.0, 0.01, math.e
        # Probability of one output under coins that it guesses both, one, or none of rightly; all the luck goes
        # where it saves a guess that has been wrong so far.
        none = (1 - delta * (e + 2)) / (1 + e) ** 2
        one = e * none + delta
        both = e * one
        assert both + 2 * one + none == pytest.approx(1)
        # One coin turned: an output that had both right has one right, one that had one right has both or none.
        assert max(both - e * one, 0) + max(one - e * none, 0) == pytest.approx(delta)
        assert max(one - e * both, 0) + max(none - e * one, 0) == 0
        reached = 1 - none
        law = binom(2, e / (1 + e))
        published = law.sf(0) + 2 * 2 * delta * law.pmf(0)
        assert reached > published + 5e-4
        assert reached == pytest.approx(largest_chance(2, 2, 1, epsilon, delta))
        assert reached <= one_run_p_value(2, 2, 1, epsilon, delta)

    @pytest.mark.slow
    def test_randomised_response_is_below_with_confidence_and_close(self) -> None:
        epsilon, m, runs = 1.0, 2000, 400
        rng = np.random.default_rng(0)
        right = rng.binomial(m, math.exp(epsilon) / (1 + math.exp(epsilon)), size=runs)
        values, of = np.unique(right, return_inverse=True)
        bounds = np.array([one_run_epsilon(m, m, int(v), 0.0, CONFIDENCE) for v in values])[of]
        wrong = int((bounds > epsilon).sum())
        # 5 % of wrong bounds is what is allowed; 1 in 10^4 of seeds would show more than 35 of 400.
        assert binom.sf(35, runs, 0.05) < 1e-3
        assert 5 <= wrong <= 35  # as many as allowed, so the bound is exact: it wastes nothing
        assert np.median(bounds) > 0.85

    def test_randomised_response_that_fails_with_probability_delta_is_covered(self) -> None:
        epsilon, delta, m, runs = 0.5, 0.002, 1000, 400
        rng = np.random.default_rng(1)
        # Each coin is shown with probability delta: (epsilon, delta)-DP, by the mixture of the two.
        shown = rng.random((runs, m)) < delta
        right = shown | (rng.random((runs, m)) < math.exp(epsilon) / (1 + math.exp(epsilon)))
        values, of = np.unique(right.sum(axis=1), return_inverse=True)
        bounds = np.array([one_run_epsilon(m, m, int(v), delta, CONFIDENCE) for v in values])[of]
        assert np.mean(bounds > epsilon) <= 0.05
        # All coins shown at once, with probability delta: the worst case for one delta, also covered.
        assert one_run_p_value(m, m, m, epsilon, delta) >= delta

    @given(
        m=st.integers(1, 300), data=st.data(), delta=st.sampled_from([0.0, 1e-6, 1e-3]),
        confidence=st.sampled_from([0.5, 0.95, 0.999]),
    )  # fmt: skip
    def test_the_bound_is_where_the_p_value_crosses_the_level_and_falls_with_fewer_right(
        self, m: int, data: st.DataObject, delta: float, confidence: float
    ) -> None:
        r = data.draw(st.integers(1, m))
        v = data.draw(st.integers(1, r))
        found = one_run_epsilon(m, r, v, delta, confidence)
        level = 1 - confidence
        if found > 0:
            assert one_run_p_value(m, r, v, found * (1 - 1e-6), delta) <= level * (1 + 1e-6)
            assert one_run_p_value(m, r, v, found * (1 + 1e-6), delta) >= level * (1 - 1e-6)
        assert one_run_epsilon(m, r, v - 1, delta, confidence) <= found + 1e-9
        assert one_run_epsilon(m, r, v, min(0.9, delta + 0.01), confidence) <= found + 1e-9
        if found > 0:  # no more than all right ones show without delta
            assert found <= -math.log(level ** (-1 / r) - 1) + 1e-6

    def test_the_worst_luck_by_a_linear_program(self) -> None:
        """The largest Pr[A + F >= v] over all joint laws with A as W and E[F] <= m delta."""
        m, r, v, epsilon, delta = 40, 12, 11, 1.0, 2e-3
        law = np.array([math.comb(r, k) * math.exp(epsilon * k) / (1 + math.exp(epsilon)) ** r for k in range(r + 1)])
        # Variables: mass of A = k that is lifted to v.
        prices = np.maximum(v - np.arange(r + 1), 0.0)
        found = linprog(-np.ones(r + 1), [prices], [m * delta], bounds=[(0, mass) for mass in law])
        assert one_run_p_value(m, r, v, epsilon, delta) == pytest.approx(-found.fun)
        assert -found.fun > law[v:].sum() + 1e-3

    def test_more_right_than_guessed_is_refused(self) -> None:
        with pytest.raises(InvalidValue, match="correct <= guesses <= canaries"):
            one_run_p_value(10, 5, 6, 1.0, 0.0)


class TestErrors:
    def test_clopper_and_pearson_cover_in_every_case(self) -> None:
        """Exactly, by adding up the law of the counts: not too seldom, for any rate."""
        n, level = 30, 0.95
        ends = [ErrorRates(k, n, 0, 1).upper(level)[0] for k in range(n + 1)]
        for rate in np.linspace(0.01, 0.99, 40):
            missed = sum(binom.pmf(k, n, rate) for k in range(n + 1) if ends[k] < rate)
            assert missed <= 0.025 + 1e-12

    def test_the_bound_of_known_errors(self) -> None:
        positive, negative = ErrorRates(3, 500, 100, 500).upper(CONFIDENCE)
        assert binom.cdf(3, 500, positive) == pytest.approx(0.025)
        wanted = max(math.log((1 - 1e-5 - negative) / positive), math.log((1 - 1e-5 - positive) / negative))
        assert errors_epsilon(ErrorRates(3, 500, 100, 500), 1e-5, CONFIDENCE) == pytest.approx(wanted)
        assert errors_epsilon(ErrorRates(100, 500, 3, 500), 1e-5, CONFIDENCE) == pytest.approx(wanted)

    def test_errors_of_a_gaussian_release_are_below_its_epsilon_in_as_many_cases_as_promised(self) -> None:
        mu, delta, n, repetitions = 1.0, 0.01, 400, 500
        rng = np.random.default_rng(2)
        true = epsilon_of(delta, mu)
        positive, negative = norm.sf(1.5), norm.cdf(1.5 - mu)
        rates = [
            ErrorRates(int(a), n, int(b), n)
            for a, b in zip(rng.binomial(n, positive, repetitions), rng.binomial(n, negative, repetitions), strict=True)
        ]  # fmt: skip
        assert np.mean([errors_epsilon(r, delta, CONFIDENCE) > true for r in rates]) <= 0.05
        curve = PrivacyCurve(Ledger.of([1 / mu], 1.0))
        assert np.mean([curve.excess(*r.upper(CONFIDENCE)) > 0 for r in rates]) <= 0.05
        # A release with two thirds of the noise is refuted most of the time; one point of the curve shows nothing.
        stronger = norm.cdf(0.75 - 1.5), norm.sf(0.75)
        rates = [
            ErrorRates(int(a), n, int(b), n)
            for a, b in zip(rng.binomial(n, stronger[1], 100), rng.binomial(n, stronger[0], 100), strict=True)
        ]  # fmt: skip
        assert np.mean([curve.excess(*r.upper(CONFIDENCE)) > 0 for r in rates]) > 0.9
        assert np.mean([errors_epsilon(r, delta, CONFIDENCE) > true for r in rates]) < 0.1

    def test_a_threshold_is_counted_on_other_trials(self) -> None:
        rng = np.random.default_rng(3)
        absent, present = rng.standard_normal(50), rng.standard_normal(50) + 3
        at = choose_threshold(absent, present, lambda r: -r.false_positives - r.false_negatives)
        assert 0.5 < at < 2.5
        assert rates_at(at, np.array([at, 9.0]), np.array([at, 9.0])) == ErrorRates(1, 2, 1, 2)

    def test_evidence_without_end_that_says_nothing_is_counted_as_errors(self) -> None:
        """Log-likelihood ratios may be infinite on either side. The threshold between them was no number, and
        nothing an error: right code was called broken."""
        absent, present = np.array([-np.inf, np.inf, np.inf]), np.array([-np.inf, -np.inf, np.inf])
        threshold = choose_threshold(absent, present, lambda rates: -rates.false_positives)
        assert rates_at(threshold, absent, present) == ErrorRates(2, 3, 2, 3)
        mixed = np.array([-np.inf, -1.0, 2.0, np.inf])
        for aim in range(1, 4):
            cut = choose_threshold(mixed, mixed, lambda rates, aim=aim: -abs(rates.false_positives - aim))
            assert rates_at(cut, mixed, mixed) == ErrorRates(aim, 4, 4 - aim, 4)

    @pytest.mark.parametrize("where", ["absent", "present", "threshold"])
    def test_evidence_that_is_no_number_is_refused_and_not_taken_for_right(self, where: str) -> None:
        one, none = np.array([1.0]), np.array([math.nan])
        with pytest.raises(InvalidValue, match="evidence that is a number, got NaN"):
            rates_at(
                math.nan if where == "threshold" else 0.5,
                none if where == "absent" else one,
                none if where == "present" else one,
            )

    def test_more_errors_than_trials_are_refused(self) -> None:
        with pytest.raises(InvalidValue, match="false_positives must be at most absent"):
            ErrorRates(5, 4, 0, 1)


class TestCurve:
    def test_it_is_the_gaussian_curve_for_one_release(self) -> None:
        curve = PrivacyCurve(Ledger.of([2.0], 1.0))
        # Just inside and just outside of the trade-off of N(0,1) and N(1/2,1), in both roles.
        for threshold in (-0.5, 0.25, 1.0):
            positive, negative = norm.sf(threshold), norm.cdf(threshold - 0.5)
            for pair in ((positive, negative), (negative, positive)):
                assert curve.excess(*pair) <= 1e-6
        best = norm.sf(0.25)
        assert curve.excess(best - 0.01, best - 0.01) == pytest.approx(0.02, abs=1e-3)

    def test_the_best_evidence_reaches_the_curve_of_sampled_steps(self) -> None:
        """Many simulated trials of the mechanism itself: never beyond, and near where the test is the best one."""
        p, z, steps, n = 0.3, 0.8, 3, 200_000
        rng = np.random.default_rng(4)
        noise = z * rng.standard_normal((2, n, steps))
        drawn = rng.random((n, steps)) < p
        absent = participation_evidence(noise[0], p, z).sum(axis=1)
        present = participation_evidence(noise[1] + drawn, p, z).sum(axis=1)
        ledger = Ledger.of([z] * steps, p)
        for e in (0.0, 1.0, 2.0):
            # Neyman and Pearson: delta(e) is reached at the threshold e on the log-likelihood ratio.
            rates = rates_at(e, absent, present)
            reached = 1 - rates.false_negatives / n - math.exp(e) * rates.false_positives / n
            assert reached == pytest.approx(Pld().delta(ledger, e).value, abs=8e-3)

    def test_the_epsilon_of_the_least_noise_refuted(self) -> None:
        """Errors of a release with half the noise: near its epsilon, above the ledger's, and not beyond."""
        n = 20_000
        positive, negative = norm.sf(1.0), norm.cdf(1.0 - 2.0)
        rates = ErrorRates(round(positive * n), n, round(negative * n), n)
        found = PrivacyCurve(Ledger.of([1.0], 1.0)).epsilon(rates, 1e-5, CONFIDENCE)
        assert epsilon_of(1e-5, 1.0) < 0.85 * epsilon_of(1e-5, 2.0) < found <= epsilon_of(1e-5, 2.0)

    def test_errors_that_show_nothing_give_zero(self) -> None:
        assert PrivacyCurve(Ledger.of([1.0], 1.0)).epsilon(ErrorRates(50, 100, 50, 100), 1e-5, CONFIDENCE) == 0
        assert delta_of(0.0, 1.0) > 0.3


class TestNoise:
    def test_declared_noise_passes_as_often_as_it_should_and_a_percent_is_seen(self) -> None:
        rng = np.random.default_rng(5)
        coordinates, steps = 2000, 40

        def p_of(factor: float) -> float:
            return noise_p_value(factor**2 * rng.chisquare(coordinates, size=steps), coordinates)

        assert sum(p_of(1.0) < 0.05 for _ in range(200)) <= 22  # 10 expected at most; 22 has a chance below 1e-3
        assert all(p_of(factor) < 1e-3 for factor in (0.98, 1.02))

    def test_one_step_that_is_off_is_seen(self) -> None:
        squares = np.full(50, 2000.0)
        assert noise_p_value(squares, 2000) > 0.5
        squares[17] *= 0.8
        assert noise_p_value(squares, 2000) < 1e-4

    def test_noise_that_is_no_number_is_refused_and_not_taken_for_declared(self) -> None:
        with pytest.raises(InvalidValue, match="must be a number at each inspected coordinate, got NaN"):
            noise_p_value(np.array([10.0, math.nan]), 10)


RESULT = AuditResult("one run", "canaries", 2.0, 1e-5, 0.95, 1, 100, 0.5, 1.5, {"guesses": 10, "right": 9}, 0.4, 3)


class TestResult:
    def test_each_test_alone_can_tell_and_the_verdict_says_which(self) -> None:
        from dataclasses import replace

        assert RESULT.caught_by == ()
        assert replace(RESULT, lower=2.1).caught_by == ("bound",)
        assert replace(RESULT, lower_by_curve=2.1).caught_by == ("curve",)
        # A third of 1 - confidence each.
        assert replace(RESULT, noise_p_value=0.016).caught_by == ("noise",)
        assert replace(RESULT, noise_p_value=0.017).verdict == "nothing found"
        assert "BROKEN (curve)" in replace(RESULT, lower_by_curve=2.1).describe()
        assert "this attack is weak" in RESULT.describe()

    def test_an_edited_verdict_is_refused(self) -> None:
        with pytest.raises(FileRefused, match="does not follow"):
            AuditResult.from_json(RESULT.to_json().replace("1.5", "3.5"))
        with pytest.raises(FileRefused, match="must be an audit's result"):
            AuditResult.from_json("[]")


def test_a_lower_end_for_cut_batches_is_not_above_that_of_whole_ones() -> None:
    cut = Ledger.of([1.0] * 4, sample_rate=0.02).cut(1000, 46)
    assert cut.is_cut
    whole = Pld(rtol=1e-2).bracket(cut.cut(1, None), 1e-5)[0]
    assert 0 < PrivacyCurve(cut)._least(1e-5) <= whole
