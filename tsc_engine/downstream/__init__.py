"""Downstream accuracy: what a sample of the keys in every layer does to a model's own task.

A study says what is done (`options`); `experiment` has the two kinds of jobs, `summary` makes rows
of tables of their records. The keys are sampled by `sampled_attention`; the tasks are in
`article_probe`, `classification` and `perplexity`, one each. Nothing heavy is imported before a job
is done.

Source: Bohbot, Letrouit, Peyré, Vialard, "Token Sample Complexity of Attention", ICML 2026 (the
last experiment).
"""
