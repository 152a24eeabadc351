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
        first=lambda w: int(w.first),
        last=lambda w: int(w.last),
    threads: lambda w: estimate_cell(w).threads
    resources:
        mem_mb=lambda w, attempt: memory(estimate_cell(w).memory_mib, attempt),
        runtime=lambda w, attempt: attempt * estimate_cell(w).minutes,
        attempt=lambda w, attempt: attempt,
    log:
        f"{LOGS}/estimate/{{problem}}/{{estimator}}~{{made_by}}/{{first}}-{{last}}.log",
    benchmark:
        f"{LOGS}/estimate/{{problem}}/{{estimator}}~{{made_by}}/{{first}}-{{last}}.jsonl"
    conda:
        "../../envs/estimates.yaml"
    shell:
        "exec python -m tsc_engine job --memory {resources.mem_mb} --minutes {resources.runtime}"
        " --attempt {resources.attempt} estimate --job {params.job:q} --first {params.first} --last {params.last}"
        " --output {output:q} {input.decision:q} {input.limit:q} > {log:q} 2>&1"


use rule estimate as estimate_gpu with:
    wildcard_constraints:
        estimator=PLAN.estimator_pattern(gpu=True),
    resources:
        mem_mb=lambda w, attempt: memory(estimate_cell(w).memory_mib, attempt),
        runtime=lambda w, attempt: attempt * estimate_cell(w).minutes,
        attempt=lambda w, attempt: attempt,
        gpu=1,
    log:
        f"{LOGS}/estimate_gpu/{{problem}}/{{estimator}}~{{made_by}}/{{first}}-{{last}}.log",
    benchmark:
        f"{LOGS}/estimate_gpu/{{problem}}/{{estimator}}~{{made_by}}/{{first}}-{{last}}.jsonl"
