"""Deep graph neural networks that do not oversmooth, and node classification where many nodes have no features."""

import warnings

# torch prints this once per process at the first CSR tensor; CSR is how this package holds every graph.
warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")

__version__ = "0.1.0"
