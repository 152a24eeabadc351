"""Token sample complexity of attention: laws, heads, limits, estimators, errors and rates.

The package is importable without Snakemake; importing it imports nothing else. Every step of the
workflow is one function here and one verb of ``python -m tsc_engine``.
"""

__version__ = "0.1.0"
