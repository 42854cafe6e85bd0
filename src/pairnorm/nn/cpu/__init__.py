"""The operations as numba kernels, one thread each; equal, to rounding, to the plain torch forms, which are
their tested reference.
"""
