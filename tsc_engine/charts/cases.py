"""What tells the problems of a group apart, in words."""

from __future__ import annotations

from collections.abc import Iterable

from tsc_engine.charts.table_rows import Row, ends_in_hardmax, is_map, number
from tsc_engine.charts.wording import parameter_words, temperature_words


class Cases:
    """What varies among problems, so that a label says that and no more.

    Parameters
    ----------
    rows : iterable of Row
        Rows of the summary; each group with its queries is looked at by itself.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._found: dict[tuple[str, str, str], set[str]] = {}
        self._named: dict[tuple[str, str, tuple[str, ...]], set[str]] = {}
        rows = list(rows)
        for row in rows:
            for column in ("dimension", "law", "inverse_temperature", "radius"):
                place = (row["group"], row["queries"], column)
                self._found.setdefault(place, set()).add(row[column])
        for row in rows:
            if not row["horizon"].strip():
                continue
            named = (row["group"], row["queries"], tuple(self._without_horizon(row)))
            self._named.setdefault(named, set()).add(row["horizon"])

    def _varies(self, row: Row, column: str) -> bool:
        return len(self._found.get((row["group"], row["queries"], column), ())) > 1

    def temperature(self, row: Row) -> str | None:
        """Return the inverse temperature, where it is not 1 or not the same in the group."""
        text = row["inverse_temperature"]
        said = text not in ("", "1") or self._varies(row, "inverse_temperature")
        return temperature_words(text) if text and said else None

    def _without_horizon(self, row: Row) -> list[str]:
        parts = []
        value = number(row["parameter_value"])
        known = ("", "horizon", "scale", "ball radius", "inverse temperature")
        if row["parameter"] not in known and value is not None:
            parts.append(f"{parameter_words(row['parameter'])} = {value:.3g}")
        radius = number(row["radius"])
        if is_map(row) and radius is not None:
            parts.append(f"R = {radius:.3g}")
        temperature = self.temperature(row)
        if temperature is not None:
            parts.append(temperature)
        if self._varies(row, "dimension"):
            parts.append(f"d = {row['dimension']}")
        if self._varies(row, "law"):
            parts.append(row["law"])
        return parts

    def parts(self, row: Row) -> list[str]:
        """Return what tells a problem from the others of its group and queries.

        The horizon is left out where the limit is that of argmax attention, which does not know
        it, and where the group varies something else and the horizon adds nothing.
        """
        found = self._without_horizon(row)
        horizon = number(row["horizon"])
        if horizon is None:
            return found
        alike = self._named.get((row["group"], row["queries"], tuple(found)), set())
        varied = row["parameter"] in ("", "horizon", "scale") and not ends_in_hardmax(row)
        return [f"H = {horizon:.3g}", *found] if varied or len(alike) > 1 else found
