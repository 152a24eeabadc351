# Whether a cell of a study that wants a precision needs the replicates of its next stage.


rule precision:
    input:
        limit=lambda w: PLAN.limit_path(decided(w)[0]),
        blocks=lambda w: PLAN.judged_paths(decided(w)[0], decided(w)[2]),
    output:
        f"{RESULTS}/precision/{{problem}}/{{estimator}}~{{made_by}}/{{replicates}}.json",
    params:
        job=lambda w: job_argument(PLAN, decided(w)[2]),
    resources:
        mem_mb=lambda w, attempt: memory(1000, attempt),
        runtime=lambda w, attempt: 10 * attempt,
    log:
        f"{LOGS}/precision/{{problem}}/{{estimator}}~{{made_by}}/{{replicates}}.log",
    benchmark:
        f"{LOGS}/precision/{{problem}}/{{estimator}}~{{made_by}}/{{replicates}}.jsonl"
    conda:
        "../../envs/estimates.yaml"
    shell:
        "exec python -m tsc_engine job precision --job {params.job:q} --problem {wildcards.problem}"
        " --limit {input.limit:q} --output {output:q} {input.blocks:q} > {log:q} 2>&1"
