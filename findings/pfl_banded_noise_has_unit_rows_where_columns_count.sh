#!/bin/bash
# pfl 0.6.0 with torch 2.13.0: the correlated noise of BandedMatrixFactorizationMechanism is too small. A user may move what is
# noised 1.2 to 1.7 times as far as the noise is for: asked for epsilon 2, it gives up to 3.7.
#
# Noise Z is correlated as C^-1 Z, which protects C X for the updates X: a user in rounds that are `min_separation` apart moves it
# by the norm of those columns of C, one each round (C is banded, so they do not overlap). pfl optimises the gram matrix
# G = C^T C with ones on its diagonal, that is columns of norm 1, and asks the accountant for that. It then takes
# numpy.linalg.cholesky(G), the lower L with L L^T = G: its *rows* have norm 1, and its first columns are up to three times as
# long. (A lower C with C^T C = G is L of the matrix with rows and columns in reverse order, reversed again.) Nothing checks the
# columns; the more bands there are, the more is missing. Early rounds cost most: a user who takes part once, early, pays too.
# No issue about it was found upstream.
#
# Seen, epsilon 2 at delta 1e-6 asked for, users in every `min_separation`-th round (reversed: with the other factor):
#     32 rounds, 8 apart: longest column 1.69, a user moves it by 2.39 where the noise is for 2.00: epsilon 2.43 (reversed: 2.00, 2.00)
#     64 rounds, 16 apart: longest column 2.23, a user moves it by 2.82 where the noise is for 2.00: epsilon 2.91 (reversed: 2.00, 2.00)
#     128 rounds, 32 apart: longest column 2.97, a user moves it by 3.45 where the noise is for 2.00: epsilon 3.65 (reversed: 2.00, 2.00)
source "$(dirname "$0")/install.bash"
install pfl==0.6.0 torch==2.13.0 prv-accountant==0.2.0 dp-accounting==0.5.1 numpy==2.4.6 scipy==1.17.1

python -W ignore - <<'END'
import shutil

import numpy as np
from pfl.internal.ops import pytorch_ops
from pfl.internal.ops.selector import set_framework_module
from pfl.privacy.ftrl_mechanism import BandedMatrixFactorizationMechanism
from pfl.privacy.privacy_accountant import PLDPrivacyAccountant
from scipy.optimize import brentq
from scipy.stats import norm

EPSILON, DELTA = 2.0, 1e-6
set_framework_module(pytorch_ops)


def epsilon_of(mu):
    """Of a Gaussian that moves by mu standard deviations, exactly."""
    return brentq(lambda e: norm.cdf(mu / 2 - e / mu) - np.exp(e) * norm.cdf(-mu / 2 - e / mu) - DELTA, 1e-6, 100)


def moved(strategy, apart):
    """How far a user in rounds that are so far apart moves C X, each update of norm 1, at worst."""
    gram, rounds = strategy.T @ strategy, len(strategy)
    places = [np.arange(first, rounds, apart) for first in range(apart)]
    return max(np.sqrt(np.abs(gram[np.ix_(taken, taken)]).sum()) for taken in places)


seen = []
for rounds, apart in ((32, 8), (64, 16), (128, 32)):
    shutil.rmtree("banded_mf_dp_ftrl", ignore_errors=True)
    asked = []

    def accountant(times):
        asked.append(PLDPrivacyAccountant(times, 1.0, "gaussian", epsilon=EPSILON, delta=DELTA))
        return asked[-1]

    strategy = BandedMatrixFactorizationMechanism(1.0, rounds, apart, accountant).query_matrix.astype(float)
    assert np.allclose(strategy, np.tril(strategy))
    gram = strategy @ strategy.T  # what was optimised: ones on its diagonal
    assert np.allclose(np.diag(gram), 1, atol=1e-5)
    other = np.linalg.cholesky(gram[::-1, ::-1])[::-1, ::-1].T
    assert np.allclose(other, np.tril(other)) and np.allclose(other.T @ other, gram)
    sigma, meant = asked[0].cohort_noise_parameter, np.sqrt(asked[0].num_compositions)
    columns = np.linalg.norm(strategy, axis=0)
    far, right = moved(strategy, apart), moved(other, apart)
    seen.append((columns.max(), far / meant, epsilon_of(far / sigma), right / meant, epsilon_of(right / sigma)))
    print(f"{rounds} rounds, {apart} apart: longest column {columns.max():.2f}, a user moves it by {far:.2f} where the noise is "
          f"for {meant:.2f}: epsilon {epsilon_of(far / sigma):.2f} (reversed: {right:.2f}, {epsilon_of(right / sigma):.2f})")
assert all(longest > 1.5 and more > 1.1 and epsilon > 2.2 for longest, more, epsilon, _, _ in seen)
assert all(abs(right - 1) < 1e-4 and abs(epsilon - EPSILON) < 0.02 for _, _, _, right, epsilon in seen)
assert seen[2][2] > 3
END
