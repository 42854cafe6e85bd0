"""Sweeps: grids of specs, selection by validation accuracy, a resumable runner, and significance tests."""
