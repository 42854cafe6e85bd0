"""The operations that layers are made of, a folder each.

``plain`` defines an operation in torch, with gradients; ``cpu`` and ``cuda`` are kernels in numba and Triton
that do the same in fewer passes over memory.
"""
