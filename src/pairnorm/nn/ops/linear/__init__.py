"""Dropout and linear map of many trials."""
