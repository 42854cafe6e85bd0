"""PairNorm's centring and scaling."""
