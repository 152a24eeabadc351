"""Measurements of the program itself: what its numbers are worth."""
