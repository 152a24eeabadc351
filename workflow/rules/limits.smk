# What attention on infinitely many tokens gives.


rule limit:
    input:
        pool=lambda w: pool_of(PLAN.limit_of(w.problem, w.made_by).limit),
    output:
        f"{RESULTS}/limits/{{problem}}~{{made_by}}.npz",
    params:
        job=lambda w: job_argument(PLAN, PLAN.limit_of(w.problem, w.made_by).limit),
        pool=lambda w: pool_token(PLAN.limit_of(w.problem, w.made_by).limit),
    resources:
        mem_mb=lambda w, attempt: memory(
            PLAN.limit_of(w.problem, w.made_by).limit_memory_mib, attempt
        ),
        runtime=lambda w, attempt: 60 * attempt,
        attempt=lambda w, attempt: attempt,
    log:
        f"{LOGS}/limit/{{problem}}~{{made_by}}.log",
    benchmark:
        f"{LOGS}/limit/{{problem}}~{{made_by}}.jsonl"
    conda:
        "../../envs/estimates.yaml"
    shell:
        "exec python -m tsc_engine job --memory {resources.mem_mb} --minutes {resources.runtime}"
        " --attempt {resources.attempt} limit --job {params.job:q} --output {output:q} > {log:q} 2>&1"
