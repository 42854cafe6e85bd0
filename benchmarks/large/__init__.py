"""Graphs of a million to a hundred million nodes: propagation, training, ``fit`` and packing, by size."""
