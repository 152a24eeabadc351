"""What tests of real models and texts share: the sources of the default study."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tsc_engine.texts import SourceUnavailable
from tsc_engine.texts.options import TextOptions

PROJECT = Path(__file__).resolve().parents[1]
FLOAT32_TOLERANCE = 1e-5

#: The sources of the default study.
STUDY = yaml.safe_load((PROJECT / "config.yaml").read_text())
MINILM = STUDY["models"]["minilm"]
_DUMP = TextOptions.model_validate(STUDY["texts"]["wikipedia"]).wikipedia_dump
assert _DUMP is not None
WIKIPEDIA = _DUMP.model_dump(exclude_none=True)


def is_one_sentence(error: pytest.ExceptionInfo[SourceUnavailable]) -> bool:
    """Whether the message is one line without a traceback or an address."""
    message = str(error.value)
    leaks = re.search(r"https?:|127\.0\.0\.1|localhost|Traceback|\n|WARNING|ERROR", message)
    return message.endswith(".") and leaks is None and ". " not in message
