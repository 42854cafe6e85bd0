"""The operations that layers are made of: references in torch, and kernels in numba and Triton.

Kernels compute the same in fewer passes over memory; ``kernels`` chooses between them.
"""
