"""What the workflow itself costs: its start, its planning, and the jobs around the attention.

``python -m benchmarks.workflow`` times a call with nothing to do and a dry run of a thousand jobs
(`calls`), runs a study or takes a finished run, and says where the core seconds went (`shares`).
"""
