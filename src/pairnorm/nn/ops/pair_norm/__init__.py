"""PairNorm's centering and scaling."""
