"""Peak memory of estimate jobs beside what the plan asks for them.

``python -m benchmarks.memory`` plans a study with the works of `benchmarks.attention.work`, runs
one estimate job of each cell in a fresh process (`jobs`, `launch`) and holds the claims to the
measured peaks (`table`).
"""
