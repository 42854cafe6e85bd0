"""The operations as Triton kernels; equal, to rounding, to the plain torch forms, which are their tested
reference.
"""
