"""The hooks of API version 1.0: what a plugin may offer.

A plugin is a module with ``TSC_API = "1.0"`` and one or more functions marked ``hookimpl``. Hooks
return classes; nothing is registered by callback, so a plugin is either taken whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from tsc_engine.estimators import Estimator
    from tsc_engine.laws import Law

PROJECT = "tsc_engine"
API = "1.0"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def tsc_estimators() -> Iterable[type[Estimator]]:
    """Return the estimator classes of this plugin (see `tsc_engine.estimators`)."""
    raise AssertionError("a hook specification is never called")


@hookspec
def tsc_laws() -> Iterable[type[Law]]:
    """Return the token laws of this plugin (see `tsc_engine.laws`)."""
    raise AssertionError("a hook specification is never called")
