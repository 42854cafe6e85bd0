"""The layer, propagation over a graph, the models and the patch for any GNN. Imports torch only."""
