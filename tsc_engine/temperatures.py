"""Inverse temperatures: the factor s that multiplies every score, ``A -> s A``.

Physics and language models speak of the temperature ``1 / s``; the paper lets s grow. ``inf`` is
argmax attention (*hardmax*). A factor that grows with n has the limit of hardmax.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from tsc_engine.options import Options, Positive


class Growing(Options):
    """An inverse temperature tied to the number of tokens: ``c log n`` or ``c n^p``."""

    grows: Literal["logarithm", "power"] = Field(
        description="`logarithm`: factor x log n; `power`: factor x n^exponent"
    )
    factor: Annotated[Positive, Field(le=1e9, description="c")] = 1.0
    exponent: Annotated[Positive, Field(le=4)] | None = Field(None, description="p of a power")

    @model_validator(mode="after")
    def _consistent(self) -> Growing:
        if self.grows == "power" and self.exponent is None:
            raise ValueError("grows: power needs an exponent")
        if self.grows == "logarithm" and self.exponent is not None:
            raise ValueError("exponent: only a power has one")
        return self

    def at(self, size: int) -> float:
        """Return the factor at n tokens."""
        if self.exponent is None:
            return self.factor * math.log(size)
        return float(self.factor * size**self.exponent)


_EXPECTED = "a positive number, inf (argmax attention), or grows, factor and exponent is expected"


def _read(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Growing.model_validate(dict(value))
    if isinstance(value, Growing):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(_EXPECTED)
    try:
        # YAML writes infinity as .inf; the text `inf` is what people type.
        number = float(value.removeprefix(".") if isinstance(value, str) else value)
    except ValueError:
        raise ValueError(_EXPECTED) from None
    if not number > 0:
        raise ValueError(_EXPECTED)
    if 1e15 < number < math.inf:
        raise ValueError("at most 1e15 is expected, or inf: argmax attention")
    # Infinity has no JSON number.
    return "inf" if math.isinf(number) else number


InverseTemperature = Annotated[
    Growing | float | Literal["inf"],
    BeforeValidator(
        _read,
        json_schema_input_type=Growing | Annotated[float, Field(gt=0)] | Literal["inf", ".inf"],
    ),
]


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


InverseTemperatures = Annotated[
    list[InverseTemperature],
    Field(min_length=1),
    BeforeValidator(_listed, json_schema_input_type=InverseTemperature | list[InverseTemperature]),
]
