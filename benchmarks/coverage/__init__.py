"""Whether the 95% intervals cover, and what the comparison of laws names wrongly.

``python -m benchmarks.coverage`` simulates error curves whose expectation is known (`curves`), fits
them with `tsc_engine.fitting` as a study does (`measure`), and counts (`table`). The cases are in
`cases`; other intervals and weights that were considered are in `methods`.
"""
