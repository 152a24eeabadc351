# Estimates: one job for each problem, estimator and block of replicates. Blocks of later stages wait
# for a decision; where it says that they are not needed the job only records that.


rule estimate:
    input:
        pool=lambda w: pool_of(estimate_cell(w).estimate),
        limit=lambda w: PLAN.estimate_limit_path(w.problem, w.estimator, w.made_by),
        decision=lambda w: PLAN.decision_paths(w.problem, w.estimator, w.made_by),
    output:
        f"{RESULTS}/estimates/{{problem}}/{{estimator}}~{{made_by}}/{{first}}-{{last}}.npz",
    wildcard_constraints:
        estimator=PLAN.estimator_pattern(gpu=False),
    params:
        job=lambda w: job_argument(PLAN, PLAN.stage_of(w.problem, w.estimator, w.made_by).estimate),
        pool=lambda w: pool_token(estimate_cell(w).estimate),
    threads: lambda w: estimate_cell(w).threads
    resources:
        mem_mb=lambda w, attempt: attempt * estimate_cell(w).memory_mib,
        runtime=lambda w, attempt: attempt * estimate_cell(w).minutes,
    log:
        f"{LOGS}/estimate/{{problem}}/{{estimator}}~{{made_by}}/{{first}}-{{last}}.log",
    benchmark:
        f"{LOGS}/estimate/{{problem}}/{{estimator}}~{{made_by}}/{{first}}-{{last}}.jsonl"
    conda:
        "../../envs/estimates.yaml"
    shell:
        "exec python -m tsc_engine job estimate --job {params.job:q} --first {wildcards.first}"
        " --last {wildcards.last} --output {output:q} {input.decision:q} {input.limit:q}"
        " > {log:q} 2>&1"


use rule estimate as estimate_gpu with:
    wildcard_constraints:
        estimator=PLAN.estimator_pattern(gpu=True),
    resources:
        mem_mb=lambda w, attempt: attempt * estimate_cell(w).memory_mib,
        runtime=lambda w, attempt: attempt * estimate_cell(w).minutes,
        gpu=1,
    log:
        f"{LOGS}/estimate_gpu/{{problem}}/{{estimator}}~{{made_by}}/{{first}}-{{last}}.log",
    benchmark:
        f"{LOGS}/estimate_gpu/{{problem}}/{{estimator}}~{{made_by}}/{{first}}-{{last}}.jsonl"
