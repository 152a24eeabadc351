"""Exact expected moments of attention on n tokens: weights at one query, averages over queries."""
