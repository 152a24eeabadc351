"""Documentation, and what draws its figures."""
