"""The page of a report: one HTML file, filled from the tables of a study and its figures.

The answer comes first (rates and n(eps)), then the evidence, then how to read it, then provenance.
Every number of ``summary.csv`` that a table or a sentence shows carries the exact text of the file
in ``data-value``, so that what is rounded for reading can be read back exactly.
"""
