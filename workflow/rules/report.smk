# Tables of the whole study and the report. Their files keep their names when what makes them changes;
# a mark, named by the digest of what makes them, tells a run that they are of another plan also where
# Snakemake's own memory of them is gone.


rule mark:
    output:
        f"{RESULTS}/made/{{kind}}~{{made_by}}",
    wildcard_constraints:
        kind="tables|report",
    localrule: True
    log:
        f"{LOGS}/mark/{{kind}}~{{made_by}}.log",
    conda:
        "../../envs/report.yaml"
    shell:
        "exec python -m tsc_engine job mark --output {output:q} > {log:q} 2>&1"


rule tables:
    input:
        mark=f"{RESULTS}/made/tables~{PLAN.summary['digest']}",
        rates=[PLAN.rates_path(planned) for planned in PLAN.problems],
        budgets=PLAN.budget_paths(),
        pictures=[planned.path(RESULTS) for planned in PLAN.pictures],
        downstream=[planned.rows_path(RESULTS) for planned in PLAN.downstream],
    output:
        f"{RESULTS}/summary.csv",
        f"{RESULTS}/summary.parquet",
        f"{RESULTS}/curves.csv",
        f"{RESULTS}/curves.parquet",
        f"{RESULTS}/laws.csv",
        f"{RESULTS}/cells.csv",
        f"{RESULTS}/budget.csv",
        f"{RESULTS}/downstream.csv",
        f"{RESULTS}/downstream_slopes.csv",
        f"{RESULTS}/downstream_layers.csv",
        f"{RESULTS}/covering.csv",
        f"{RESULTS}/errors.parquet",
        f"{RESULTS}/provenance.json",
        f"{RESULTS}/run_config.yaml",
    params:
        plan=plan_path(PLAN, PLAN.summary),
        folder=lambda w, output: str(Path(output[0]).parent),
        code=PLAN.summary["digest"],
    resources:
        mem_mb=lambda w, attempt: memory(2000, attempt),
        runtime=lambda w, attempt: 20 * attempt,
    localrule: True
    log:
        f"{LOGS}/tables.log",
    benchmark:
        f"{LOGS}/tables.jsonl"
    conda:
        "../../envs/report.yaml"
    shell:
        "exec python -m tsc_engine job tables --plan {params.plan:q} --folder {params.folder:q}"
        " > {log:q} 2>&1"


rule report:
    input:
        mark=f"{RESULTS}/made/report~{PLAN.report_digest}",
        tables=rules.tables.output,
    output:
        page=report(
            f"{RESULTS}/report.html",
            category="Token sample complexity",
            labels={"study": PLAN.study.study},
        ),
        figures=directory(f"{RESULTS}/figures"),
    params:
        folder=lambda w, output: str(Path(output[0]).parent),
        code=PLAN.report_digest,
    resources:
        mem_mb=lambda w, attempt: memory(2000, attempt),
        runtime=lambda w, attempt: 20 * attempt,
    localrule: True
    log:
        f"{LOGS}/report.log",
    benchmark:
        f"{LOGS}/report.jsonl"
    conda:
        "../../envs/report.yaml"
    shell:
        "exec python -m tsc_engine job report --folder {params.folder:q} --figures {output.figures:q}"
        " --output {output.page:q} > {log:q} 2>&1"
