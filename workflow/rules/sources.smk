# Models and texts. A source that cannot be had is a recorded outcome, so that the rest of the study
# still reports; the token makes the next run try again.


rule fetch_model:
    output:
        "resources/models/{model}.json",
    params:
        job=lambda w: canonical_json(MODELS[f"resources/models/{w.model}.json"]),
        token=lambda w: retry_token(Path(f"resources/models/{w.model}.json")),
    localrule: True
    log:
        "logs/fetch_model/{model}.log",
    conda:
        "../../envs/models.yaml"
    shell:
        "exec python -m tsc_engine job fetch --job {params.job:q} --token {params.token:q} --output {output:q}"
        " > {log:q} 2>&1"


rule pool:
    input:
        model=lambda w: PLAN.sources[w.pool, w.made_by].model_path,
    output:
        record="resources/pools/{pool}~{made_by}.npz",
        rows="resources/pools/{pool}~{made_by}.npy",
    params:
        job=lambda w: job_argument(PLAN, PLAN.sources[w.pool, w.made_by].job),
        token=lambda w: retry_token(Path(f"resources/pools/{w.pool}~{w.made_by}.npz")),
    resources:
        mem_mb=lambda w, attempt: 2500 * attempt,
        runtime=lambda w, attempt: 60 * attempt,
    log:
        "logs/pool/{pool}~{made_by}.log",
    benchmark:
        "logs/pool/{pool}~{made_by}.jsonl"
    conda:
        "../../envs/models.yaml"
    shell:
        "exec python -m tsc_engine job pool --job {params.job:q} --model {input.model:q} --token {params.token:q}"
        " --output {output.record:q} > {log:q} 2>&1"
