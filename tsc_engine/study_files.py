"""Study files that Snakemake would take for a program.

Snakemake reads configuration through YTE, which evaluates Python in a YAML file that says
``__use_yte__: true`` at its top. `tsc validate`, `tsc plan` and `tsc run` read a study as plain
YAML and refuse the key as unknown before Snakemake sees the file.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["refuse_programs"]


def refuse_programs(path: Path) -> None:
    """Refuse a study file that says it holds a program; one that is not there is passed over.

    Raises
    ------
    ValueError
        The file says so, or is no plain YAML.
    """
    import yaml

    if not path.is_file():
        return
    try:
        study = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not readable as YAML: {type(error).__name__}") from error
    if isinstance(study, dict) and "__use_yte__" in study:
        raise ValueError(
            f"{path}: a study is no program, and __use_yte__ makes Snakemake run it as one; "
            "look at what it holds before anything else"
        )
