"""How fast and how lean pairnorm is, against peers in the same process: ``python -m benchmarks``."""
