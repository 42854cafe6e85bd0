"""A whole layer of GCN."""
