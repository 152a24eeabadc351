# Token budgets of the heads and layers of real models, checked by fresh draws.


rule budget:
    input:
        pool=lambda w: pool_of(budget_cell(w)[0].limit),
        rates=lambda w: PLAN.rates_path(budget_cell(w)[0]),
        errors=lambda w: PLAN.errors_path(*budget_cell(w)),
        limit=lambda w: PLAN.limit_path(budget_cell(w)[0]),
    output:
        f"{RESULTS}/budgets/{{problem}}~{{made_by}}.json",
    params:
        job=lambda w: job_argument(PLAN, budget_cell(w)[0].budget),
    threads: lambda w: budget_cell(w)[1].threads
    resources:
        mem_mb=lambda w, attempt: memory(200 + budget_cell(w)[1].memory_mib, attempt),
        runtime=lambda w, attempt: attempt * (30 + budget_cell(w)[1].minutes),
        attempt=lambda w, attempt: attempt,
    log:
        f"{LOGS}/budget/{{problem}}~{{made_by}}.log",
    benchmark:
        f"{LOGS}/budget/{{problem}}~{{made_by}}.jsonl"
    conda:
        "../../envs/estimates.yaml"
    shell:
        "exec python -m tsc_engine job --memory {resources.mem_mb} --minutes {resources.runtime}"
        " --attempt {resources.attempt} budget --job {params.job:q} --rates {input.rates:q} --errors {input.errors:q}"
        " --limit {input.limit:q} --output {output:q} > {log:q} 2>&1"
