"""Option models: strict pydantic models, and the number types that they use."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def no_bool(value: Any) -> Any:
    """Refuse true and false where a number is expected."""
    # YAML's yes/no become booleans, and Python counts them as integers.
    if isinstance(value, bool):
        raise ValueError("a number is expected, not true or false")
    return value


Real = Annotated[float, BeforeValidator(no_bool), Field(allow_inf_nan=False)]
Positive = Annotated[float, BeforeValidator(no_bool), Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, BeforeValidator(no_bool), Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, BeforeValidator(no_bool), Field(ge=1, le=10**15)]
Index = Annotated[int, BeforeValidator(no_bool), Field(ge=0, le=2**63)]
#: Size of something that is held in memory as a matrix: a dimension, a width, a number of heads.
Extent = Annotated[int, BeforeValidator(no_bool), Field(ge=1, le=10_000)]


class Options(BaseModel):
    """Base of every option model: unknown keys are errors, instances are frozen.

    Numbers given as text (``1e-3`` is text to a YAML 1.1 reader) are accepted.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoOptions(Options):
    """For an estimator or a law without options."""
