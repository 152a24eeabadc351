# Token sample complexity of attention: `snakemake --cores all` runs the study in config.yaml.
from snakemake.utils import min_version

min_version("9.20")


include: "workflow/rules/common.smk"


wildcard_constraints:
    problem=r"[a-z0-9_]+-[0-9a-f]{12}",
    estimator=r"[a-z][a-z0-9_]*",
    made_by=r"[0-9a-f]{12}",
    first=r"\d+",
    last=r"\d+",
    replicates=r"\d+",
    experiment=r"[a-z][a-z0-9_]*",
    picture=r"[a-z][a-z0-9_]*",


include: "workflow/rules/sources.smk"
include: "workflow/rules/limits.smk"
include: "workflow/rules/estimates.smk"
include: "workflow/rules/precision.smk"
include: "workflow/rules/rates.smk"
include: "workflow/rules/budgets.smk"
include: "workflow/rules/downstream.smk"
include: "workflow/rules/pictures.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/cache.smk"


rule all:
    default_target: True
    localrule: True
    input:
        rules.tables.input.mark,
        rules.report.input.mark,
        [source.mark_path for source in PLAN.sources.values()],
        rules.tables.output,
        rules.report.output,
