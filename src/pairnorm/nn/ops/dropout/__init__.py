"""Dropout by key."""
