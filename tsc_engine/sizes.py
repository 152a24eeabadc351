"""Sample sizes as a study gives them: a list, or a geometric grid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from tsc_engine.options import Count, Options


class Geometric(Options):
    """A geometric grid of sizes, rounded to whole numbers."""

    first: Annotated[Count, Field(ge=2, description="smallest size")]
    last: Annotated[Count, Field(ge=2, description="largest size")]
    count: Annotated[Count, Field(ge=2, le=1000, description="number of sizes")]

    def sizes(self) -> list[int]:
        """Return the sizes."""
        ratio = math.log(self.last / self.first) / (self.count - 1)
        return [round(self.first * math.exp(ratio * step)) for step in range(self.count)]


def _listed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Geometric.model_validate(dict(value)).sizes()
    return value


def increasing(sizes: list[int]) -> list[int]:
    """Return sizes that increase strictly.

    Raises
    ------
    ValueError
        If they do not.
    """
    if any(later <= earlier for earlier, later in itertools.pairwise(sizes)):
        raise ValueError("sizes must increase strictly")
    return sizes


Sizes = Annotated[
    list[Annotated[Count, Field(ge=2)]],
    Field(min_length=2, description="sample sizes n: a list, or first, last and count"),
    BeforeValidator(_listed, json_schema_input_type=Geometric | list[Annotated[int, Field(ge=2)]]),
]
