"""What `tsc predict` is asked: the texts of its options, read and answered."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tsc_engine.prediction.answer import Prediction
from tsc_engine.prediction.ask import predict_head, predict_spectrum, predict_study
from tsc_engine.study import Fault, StudyFaults

#: Endings of a figure's file.
FIGURE_ENDINGS = (".svg", ".png", ".pdf")


def answer(
    study: Mapping[str, Any] | None, asked: Mapping[str, Any], figure: Path | None = None
) -> tuple[list[Prediction], list[str]]:
    """Return the predictions that some options of the command line ask for.

    Parameters
    ----------
    study : mapping or None
        A study as read from YAML.
    asked : mapping
        Texts of the options by their names, as ``tsc predict --help`` lists them, with ``_`` for
        ``-``; None or an empty sequence for one that was not given.
    figure : Path, optional
        The file that a figure will be written to; only its ending is looked at.

    Returns
    -------
    predictions : list of Prediction
    left_out : list of str
        Groups of which nothing is known without a run.

    Raises
    ------
    StudyFaults
        With what is wrong, by the name of the option.
    """
    given = {name: value for name, value in asked.items() if value not in (None, ())}
    faults: list[Fault] = []
    if figure is not None and figure.suffix.lower() not in FIGURE_ENDINGS:
        message = f"a file that ends in {' or '.join(FIGURE_ENDINGS)} is expected"
        faults.append(Fault("--figure", str(figure), message))
    sizes = _sizes(given, faults)
    epsilon = _number(given["epsilon"]) if "epsilon" in given else None
    if study is not None:
        other = sorted(set(given) - {"size", "sizes", "epsilon"})
        faults += [Fault(_dashed(name), given[name], "not beside a study") for name in other]
        if faults:
            raise StudyFaults(faults)
        return predict_study(study, sizes=sizes, epsilon=epsilon)
    faults += _conflicts(given)
    law = _law(given, faults)
    if faults:
        raise StudyFaults(faults)
    group: dict[str, Any] = {"epsilon": 0.1 if epsilon is None else epsilon, "sizes": sizes}
    if "probe" in given:
        group["probes"] = [_numbers(text) for text in given["probe"]]
    if "radius" in given:
        group["radii"] = [_number(text) for text in given["radius"]]
    if "inverse_temperature" in given:
        group["inverse_temperature"] = [_yaml(text) for text in given["inverse_temperature"]]
    queries = given.get("queries", ("independent",))
    head = _head(given)
    if "spectrum" in given:
        return predict_spectrum(_numbers(given["spectrum"]), head, queries, **group), []
    return predict_head(law, head, queries, **group), []


def _dashed(name: str) -> str:
    return "--option" if name == "options" else "--" + name.replace("_", "-")


def _conflicts(given: Mapping[str, Any]) -> list[Fault]:
    if "spectrum" in given:
        other = [name for name in ("law", "dimension", "options", "score") if name in given]
        return [Fault(_dashed(name), given[name], "not beside a spectrum") for name in other]
    if "law" not in given:
        return [Fault("--law", None, "a study, a law or a spectrum is expected")]
    return []


def _law(given: Mapping[str, Any], faults: list[Fault]) -> dict[str, Any]:
    law: dict[str, Any] = {"name": given.get("law")}
    if "dimension" in given:
        law["dimension"] = _number(given["dimension"])
    for text in given.get("options", ()):
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            faults.append(Fault("--option", text, "KEY=VALUE is expected"))
        elif key.strip() in law:
            faults.append(Fault(f"--option {key.strip()}", value, "it is given already"))
        else:
            law[key.strip()] = _yaml(value)
    return law


def _head(given: Mapping[str, Any]) -> dict[str, Any]:
    head: dict[str, Any] = {name: given[name] for name in ("score", "value") if name in given}
    if "seed" in given:
        head["seed"] = _number(given["seed"])
    for name in ("horizon", "scale"):
        if name in given:
            head[f"{name}s"] = [_number(text) for text in given[name]]
    return head


def _sizes(given: Mapping[str, Any], faults: list[Fault]) -> Any:
    if "size" in given and "sizes" in given:
        faults.append(Fault("--sizes", given["sizes"], "not beside --size"))
    if "size" in given:
        return [_number(text) for text in given["size"]]
    text = given.get("sizes")
    if text is None:
        return None
    parts = text.split(":")
    if len(parts) != 3:
        faults.append(Fault("--sizes", text, "FIRST:LAST:COUNT is expected"))
    return dict(zip(("first", "last", "count"), map(_number, parts), strict=False))


def _number(text: str) -> Any:
    """Return a number, a whole one as such, or the text itself: the study's models say why."""
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number


def _numbers(text: str) -> list[Any]:
    return [_number(part.strip()) for part in text.split(",")]


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text
