# Downstream experiments: a whole model whose layers attend to a sample of their keys.


rule downstream_dense:
    input:
        model=lambda w: downstream(w).model_record,
    output:
        f"{RESULTS}/downstream/{{experiment}}/dense~{{made_by}}.npz",
    params:
        job=lambda w: job_argument(PLAN, downstream(w).dense),
    resources:
        mem_mb=lambda w, attempt: memory(downstream(w).memory_mib, attempt),
        runtime=lambda w, attempt: attempt * downstream(w).minutes,
        attempt=lambda w, attempt: attempt,
    log:
        f"{LOGS}/downstream/{{experiment}}/dense~{{made_by}}.log",
    benchmark:
        f"{LOGS}/downstream/{{experiment}}/dense~{{made_by}}.jsonl"
    conda:
        "../../envs/models.yaml"
    shell:
        "exec python -m tsc_engine job --memory {resources.mem_mb} --minutes {resources.runtime}"
        " --attempt {resources.attempt} downstream-dense --job {params.job:q} --model {input.model:q}"
        " --output {output:q} > {log:q} 2>&1"


rule downstream_sampled:
    input:
        model=lambda w: downstream(w).model_record,
        dense=lambda w: downstream(w).dense_path(RESULTS),
    output:
        f"{RESULTS}/downstream/{{experiment}}/sampled~{{made_by}}/{{first}}-{{last}}.npz",
    params:
        job=lambda w: job_argument(PLAN, downstream(w).sampled),
        first=lambda w: int(w.first),
        last=lambda w: int(w.last),
    resources:
        mem_mb=lambda w, attempt: memory(downstream(w).memory_mib, attempt),
        runtime=lambda w, attempt: attempt * downstream(w).minutes,
        attempt=lambda w, attempt: attempt,
    log:
        f"{LOGS}/downstream/{{experiment}}/sampled~{{made_by}}/{{first}}-{{last}}.log",
    benchmark:
        f"{LOGS}/downstream/{{experiment}}/sampled~{{made_by}}/{{first}}-{{last}}.jsonl"
    conda:
        "../../envs/models.yaml"
    shell:
        "exec python -m tsc_engine job --memory {resources.mem_mb} --minutes {resources.runtime}"
        " --attempt {resources.attempt} downstream-sampled --job {params.job:q} --model {input.model:q}"
        " --dense {input.dense:q} --first {params.first} --last {params.last} --output {output:q}"
        " > {log:q} 2>&1"


rule downstream_rows:
    input:
        dense=lambda w: downstream(w).dense_path(RESULTS),
        blocks=lambda w: downstream(w).sampled_paths(RESULTS),
    output:
        f"{RESULTS}/downstream/{{experiment}}/rows~{{made_by}}.json",
    params:
        job=lambda w: job_argument(PLAN, downstream(w).rows),
    resources:
        mem_mb=lambda w, attempt: memory(2000, attempt),
        runtime=lambda w, attempt: 20 * attempt,
    log:
        f"{LOGS}/downstream/{{experiment}}/rows~{{made_by}}.log",
    benchmark:
        f"{LOGS}/downstream/{{experiment}}/rows~{{made_by}}.jsonl"
    conda:
        "../../envs/estimates.yaml"
    shell:
        "exec python -m tsc_engine job downstream-rows --job {params.job:q} --dense {input.dense:q}"
        " --output {output:q} {input.blocks:q} > {log:q} 2>&1"
