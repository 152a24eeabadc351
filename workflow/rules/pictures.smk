# How samples of a few sizes cover the tokens of a layer.


rule picture:
    input:
        pool=lambda w: pool_of(picture(w).job),
    output:
        f"{RESULTS}/pictures/{{picture}}~{{made_by}}.json",
    params:
        job=lambda w: job_argument(PLAN, picture(w).job),
        pool=lambda w: pool_token(picture(w).job),
    resources:
        mem_mb=lambda w, attempt: memory(1500, attempt),
        runtime=lambda w, attempt: 20 * attempt,
    log:
        f"{LOGS}/picture/{{picture}}~{{made_by}}.log",
    benchmark:
        f"{LOGS}/picture/{{picture}}~{{made_by}}.jsonl"
    conda:
        "../../envs/models.yaml"
    shell:
        "exec python -m tsc_engine job picture --job {params.job:q} --output {output:q} > {log:q} 2>&1"
