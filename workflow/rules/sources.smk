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


# One pass of the model over a text serves all layers that the study wants. What is made of a layer
# depends on that layer alone: the record, whose name does not know the layers, is an ancient input of
# limits and estimates, and a mark that does know them makes this rule run when one is added.
for SOURCE in PLAN.sources.values():

    rule:
        name:
            SOURCE.rule
        input:
            model=SOURCE.model_path,
        output:
            record=SOURCE.path,
            mark=SOURCE.mark_path,
        params:
            # A function: Snakemake takes braces in a plain text for wildcards.
            job=lambda w, source=SOURCE: job_argument(PLAN, source.job_of_layers),
            token=retry_token(Path(SOURCE.path)),
        resources:
            mem_mb=lambda w, attempt, mib=SOURCE.memory_mib: memory(mib, attempt),
            runtime=lambda w, attempt: 60 * attempt,
            attempt=lambda w, attempt: attempt,
        log:
            f"logs/pool/{SOURCE.name}.log",
        benchmark:
            f"logs/pool/{SOURCE.name}.jsonl"
        conda:
            "../../envs/models.yaml"
        shell:
            "exec python -m tsc_engine job --memory {resources.mem_mb} --minutes {resources.runtime}"
            " --attempt {resources.attempt} pool --job {params.job:q} --model {input.model:q} --token {params.token:q}"
            " --output {output.record:q} --mark {output.mark:q} > {log:q} 2>&1"
