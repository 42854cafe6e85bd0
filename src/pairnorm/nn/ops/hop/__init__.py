"""One step of propagation over a graph that is mapped from disk: y = D̃⁻¹ Ã x, its edges without values."""
