# Limits and estimates are functions of their parameters and of the limits that they name, so that
# studies can share them: `--cache` with SNAKEMAKE_OUTPUT_CACHE. Snakemake keeps no benchmark of what
# it takes from a cache and refuses rules that want one, so they do without it in such a run only.
if workflow.workflow_settings.cache is not None:
    from snakemake.caching.rule import RuleCache

    for shared in ("limit", "estimate", "estimate_gpu"):
        found = workflow.get_rule(shared)
        found._benchmark = None
        found.cache = RuleCache.from_rule(found, True)
