"""How fast the sampling estimators are beside attention size by size, and beside the machine.

``python -m benchmarks.attention`` times contenders (`contenders`) on the same tokens (`work`) in
one process, interleaved (`measure`), compares them with what the machine's products and
exponentials take at least (`rates`), and holds the ratios to targets (`targets`). Where the time of
an estimator goes is in `profile`.
"""
