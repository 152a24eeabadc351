"""Deterministic quadrature of the limits at infinitely many tokens, by kind of law."""
