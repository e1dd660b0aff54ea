"""A corpus of small programs: hostile ones, which must be refused, and benign ones, which must be exact.

Every hostile program is an honest mistake: code that does what it seems to do, written by somebody who wants the
promise to hold and without this library's insides in mind, such as a norm over the batch, a division by the number of
rows, a running mean, a hook that centres gradients, or labels that another row decides. So programs have no tag.
Programs that are written to evade the checks (threads, ``sys.setprofile``, ``ctypes``, hooks put on nodes of the graph
during the pass, hooks on saved tensors, ``DisableTorchFunction``, replaced functions of torch, private attributes of
this library) are not part of it: no check in the same process holds against them. The ways that are known to get past
are listed as limits in docs/explanation/threat-model.md.
"""
