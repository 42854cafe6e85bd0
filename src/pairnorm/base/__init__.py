"""Shared foundations: errors, escaping, atomic files and locks, memory, CSR tensors, plotting style."""
