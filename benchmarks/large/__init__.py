"""Graphs of a million to a hundred million nodes: walks, training, ``fit`` and packing, by size."""
