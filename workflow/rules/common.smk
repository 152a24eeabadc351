# The study and its plan. Everything that a rule needs is looked up in PLAN by wildcards; the rules
# are declarations and the engine does the work.
import os
import sys
from pathlib import Path

ENGINE = str(workflow.basedir)
# The engine and the interpreter beside this Snakefile are the ones that jobs use, also where
# another version is installed or no environment is activated.
if Path(ENGINE, "tsc_engine").is_dir():
    sys.path.insert(0, ENGINE)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [ENGINE, os.environ.get("PYTHONPATH", "")])
    )
os.environ["PATH"] = os.pathsep.join(
    [os.path.dirname(sys.executable), os.environ.get("PATH", "")]
)

if not workflow.configfiles:

    configfile: "config.yaml" if Path("config.yaml").is_file() else f"{ENGINE}/config.yaml"


from snakemake.exceptions import WorkflowError

from tsc_engine.identity import canonical_json
from tsc_engine.jobs import retry_token
from tsc_engine.plan import Plan
from tsc_engine.runs import begin, plan_path
from tsc_engine.study import load_study

try:
    PLAN = Plan(load_study(config))
except ValueError as faults:
    raise WorkflowError(str(faults))

RESULTS = PLAN.results
PYTHON = "exec python -m tsc_engine"


onstart:
    try:
        begin(PLAN)
    except BlockingIOError as taken:
        raise WorkflowError(str(taken))


onsuccess:
    print(f"The report is {RESULTS}/report.html")


onerror:
    print("Some jobs failed: the last line of each log says why. Run the same command again to go on.")
