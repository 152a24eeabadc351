# Tables of the whole study and the report.


rule tables:
    input:
        [PLAN.rates_path(planned) for planned in PLAN.problems],
    output:
        f"{RESULTS}/summary.csv",
        f"{RESULTS}/summary.parquet",
        f"{RESULTS}/curves.csv",
        f"{RESULTS}/curves.parquet",
        f"{RESULTS}/cells.csv",
        f"{RESULTS}/errors.parquet",
        f"{RESULTS}/provenance.json",
        f"{RESULTS}/run_config.yaml",
        mark=f"{RESULTS}/made/tables~{PLAN.summary['digest']}",
    params:
        plan=plan_path(PLAN, PLAN.summary),
        folder=lambda w, output: str(Path(output[0]).parent),
        code=PLAN.summary["digest"],
    resources:
        mem_mb=lambda w, attempt: 2000 * attempt,
        runtime=lambda w, attempt: 20 * attempt,
    localrule: True
    log:
        f"{LOGS}/tables.log",
    conda:
        "../../envs/report.yaml"
    shell:
        "exec python -m tsc_engine job tables --plan {params.plan:q} --folder {params.folder:q}"
        " --mark {output.mark:q} > {log:q} 2>&1"


rule report:
    input:
        rules.tables.output,
    output:
        page=report(
            f"{RESULTS}/report.html",
            category="Token sample complexity",
            labels={"study": PLAN.study.study},
        ),
        figures=directory(f"{RESULTS}/figures"),
        mark=f"{RESULTS}/made/report~{PLAN.report_digest}",
    params:
        folder=lambda w, output: str(Path(output[0]).parent),
        code=PLAN.report_digest,
    resources:
        mem_mb=lambda w, attempt: 2000 * attempt,
        runtime=lambda w, attempt: 20 * attempt,
    localrule: True
    log:
        f"{LOGS}/report.log",
    conda:
        "../../envs/report.yaml"
    shell:
        "exec python -m tsc_engine job report --folder {params.folder:q} --figures {output.figures:q}"
        " --output {output.page:q} --mark {output.mark:q} > {log:q} 2>&1"
