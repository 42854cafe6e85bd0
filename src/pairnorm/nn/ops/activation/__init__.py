"""Bias and activation."""
