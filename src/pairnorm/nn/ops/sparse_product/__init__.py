"""Products with sparse matrices."""
