"""The figures of a study, as Vega-Lite specifications made with Altair.

One module per kind of figure (rates, sample complexity, error curves, local slopes, heads,
timings); they share what a table row means, words, colours, axes and panels.
"""
