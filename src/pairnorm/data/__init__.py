"""Graphs: the class, the named ones, generated ones, a user's own files, and which vectors are missing."""
