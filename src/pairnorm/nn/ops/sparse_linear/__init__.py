"""Dropout and linear map of sparse features."""
