# Errors of each cell, and the rates of each problem.


rule errors:
    input:
        limit=lambda w: PLAN.limit_path(errors_cell(w)[0]),
        blocks=lambda w: PLAN.estimate_paths(*errors_cell(w)),
    output:
        f"{RESULTS}/errors/{{problem}}/{{estimator}}~{{made_by}}.npz",
    params:
        job=lambda w: job_argument(PLAN, errors_cell(w)[1].errors),
    resources:
        mem_mb=lambda w, attempt: memory(1000, attempt),
        runtime=lambda w, attempt: 10 * attempt,
    log:
        f"{LOGS}/errors/{{problem}}/{{estimator}}~{{made_by}}.log",
    benchmark:
        f"{LOGS}/errors/{{problem}}/{{estimator}}~{{made_by}}.jsonl"
    conda:
        "../../envs/estimates.yaml"
    shell:
        "exec python -m tsc_engine job errors --job {params.job:q} --limit {input.limit:q} --output {output:q}"
        " {input.blocks:q} > {log:q} 2>&1"


rule rates:
    input:
        errors=lambda w: PLAN.errors_paths(PLAN.rates_of(w.problem, w.made_by)),
    output:
        f"{RESULTS}/rates/{{problem}}~{{made_by}}.json",
    params:
        job=lambda w: job_argument(PLAN, PLAN.rates_of(w.problem, w.made_by).rates),
        code=lambda w: PLAN.rates_of(w.problem, w.made_by).rates["sources"],
    resources:
        mem_mb=lambda w, attempt: memory(1000, attempt),
        runtime=lambda w, attempt: 10 * attempt,
    log:
        f"{LOGS}/rates/{{problem}}~{{made_by}}.log",
    benchmark:
        f"{LOGS}/rates/{{problem}}~{{made_by}}.jsonl"
    conda:
        "../../envs/estimates.yaml"
    shell:
        "exec python -m tsc_engine job rates --job {params.job:q} --problem {wildcards.problem} --output {output:q}"
        " {input.errors:q} > {log:q} 2>&1"
