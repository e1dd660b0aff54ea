"""Smooth random displacement fields, after Simard, Steinkraus and Platt (2003), in whole numbers."""

from functools import cache

import numpy as np
from jaxtyping import Int16
from scipy import ndimage

COUNT, SIZE = 1_522, 28
SIGMA = 4.0
AMPLITUDE = 1.0
UNIT = 256


@cache
def displacement_fields() -> Int16[np.ndarray, "count height width"]:
    """1,522 scalar fields of 28x28, in units of 1/256 pixel; fixed for ever.

    Uniform noise in [-1, 1) for each pixel, smoothed with a Gaussian of 4 pixels, scaled to a root mean square
    of 1 pixel over all fields. Drawn wider than needed and cut, so that the border is no special place. Rounded:
    the last digits of the smoothing, which depend on the machine, do not reach an image.

    >>> fields = displacement_fields()
    >>> fields.shape, round(float(np.sqrt(np.mean(np.square(fields / 256)))), 2)
    ((1522, 28, 28), 1.0)
    """
    margin = int(4 * SIGMA)
    # RandomState's stream is frozen by NumPy's compatibility policy; Generator's is not.
    noise = np.random.RandomState(0).uniform(-1.0, 1.0, (COUNT, SIZE + 2 * margin, SIZE + 2 * margin))
    smooth = ndimage.gaussian_filter(noise, SIGMA, axes=(1, 2))[:, margin:-margin, margin:-margin]
    fields = np.rint(smooth * (UNIT * AMPLITUDE / np.sqrt(np.mean(smooth**2)))).astype(np.int16)
    fields.setflags(write=False)
    return fields
