"""One training in several processes, started by ``torchrun``.

==========  ==================================================================
`join`      the world of this process, for ``train(..., world=world)``
`Group`     ranks that each clip their share of one batch, over torch.distributed
==========  ==================================================================
"""

from decrescendo.distributed.group import Group
from decrescendo.distributed.join import join

__all__ = ["join", "Group"]
