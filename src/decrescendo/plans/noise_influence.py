"""`noise_influence`: how much each step's noise matters at the end, from learning rate, curvature and momentum."""

import numpy as np
from jaxtyping import Float

from decrescendo.errors import InvalidValue, check_array, check_real

# The least influence, relative to the largest: it is negligible, but 0 would get none of the budget.
_LEAST = 1e-290


def noise_influence(
    learning_rate: object, *, curvature: float = 0.0, momentum: float = 0.0
) -> Float[np.ndarray, " steps"]:
    """The influences q_t, for `allocate`, of the variance of the noise on the *sum*; the largest is 1.

    With eta_1 the largest learning rate, M = 1/eta_1 and m the curvature, after Hong Theorems 4.1 and 4.5:

        q_t = a_t + momentum^2 q_{t+1},   a_t = (eta_t/eta_1)^2 ((1-momentum)/(1-momentum^t))^2 prod_{i>t} c_i,
        c_i = 1 - 2 m eta_i (1 - M eta_i/2).

    ==================  ======================================================================================
    given               q_t
    ==================  ======================================================================================
    rates only          eta_t^2: the noise terms of a descent lemma, for any smooth loss; nothing is forgotten
    curvature           steps contract by c_i, so early noise is partly forgotten: `influence.step_sizes`
    momentum            noise is in all later steps too: `influence.momentum`, of bias-corrected momentum
    ==================  ======================================================================================

    The theorems are for full gradients that clipping leaves alone; with momentum they ask for one constant rate. Beyond
    that the influences are a model. They choose a shape, they prove nothing.

    Args:
        learning_rate: eta_t > 0, one a step.
        curvature: m >= 0 with |grad f|^2 >= 2 m (f - f*), a PL or strong convexity constant; m max eta_t < 1.
        momentum: in [0, 1).

    Raises:
        InvalidValue: a value outside its range.

    >>> noise_influence([2.0, 1.0, 1.0])
    array([1.  , 0.25, 0.25])
    >>> noise_influence([2.0, 2.0, 2.0], curvature=0.25)
    array([0.25, 0.5 , 1.  ])
    """
    from scipy.signal import lfilter  # slow to load

    eta = check_array("learning_rate", learning_rate, above=0)
    if not eta.size:
        raise InvalidValue("learning_rate must have at least one step, got none")
    m, b = (
        check_real("curvature", curvature, at_least=0),
        check_real("momentum", momentum, at_least=0, below=1),
    )
    largest = float(eta.max())
    if m * largest >= 1:
        raise InvalidValue(
            f"curvature times the largest learning rate must be below 1, or one step without noise forgets everything; "
            f"got {m:g} * {largest:g} = {m * largest:.6g}. Lower the curvature: the smallest that the loss has counts"
        )
    relative = eta / largest
    kept = np.log1p(-2 * m * eta * (1 - relative / 2))  # log c_t
    later = np.r_[np.cumsum(kept[:0:-1])[::-1], 0.0]
    t = np.arange(1.0, eta.size + 1)
    logs = 2 * np.log(relative) + 2 * np.log((1 - b) / (1 - b**t)) + later
    own = np.exp(logs - logs.max())
    q = np.asarray(lfilter([1.0], [1.0, -b * b], own[::-1]), dtype=np.float64)[::-1]
    return np.maximum(q / q.max(), _LEAST)
