"""The doctor: runs a training that somebody has, with Opacus or by hand, and says what is wrong with its privacy.

=============  =======================================================================================
`examine`      a script, a notebook, the folder of a run or a checkpoint: a `Diagnosis`
`Finding`      one fault, with its place, its cost, and how sure it is: a `Certainty`
`rewrite`      the same training over `decrescendo.integrations.opacus`, and what could not be carried over
=============  =======================================================================================
"""

from decrescendo.doctor.examine import examine
from decrescendo.doctor.finding import CHECKS, Certainty, Diagnosis, Finding
from decrescendo.doctor.rewrite import Rewritten, rewrite

__all__ = ["examine", "rewrite", "CHECKS", "Certainty", "Diagnosis", "Finding", "Rewritten"]
