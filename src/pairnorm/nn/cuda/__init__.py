"""The operations as Triton kernels; they equal the plain torch forms, up to rounding."""
