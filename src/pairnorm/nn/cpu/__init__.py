"""The operations as numba kernels, one thread each; they equal the plain torch forms, up to rounding."""
