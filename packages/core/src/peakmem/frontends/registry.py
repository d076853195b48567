"""How adapters are found: by entry points of the group ``peakmem.frontends``, each naming one `Frontend` object.

The module that holds it must import nothing heavy: listing frontends imports no runtime.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from peakmem.frontends.contract import Frontend
from peakmem.model import InputError, UsageError, did_you_mean

GROUP = "peakmem.frontends"

OURS = ("inductor", "onnx", "tflite")
"""Frontends of this project by name; each is in a distribution ``peakmem-NAME``."""

_SUFFIXES = {".tflite": "tflite", ".onnx": "onnx", ".py": "inductor", ".pickle": "inductor"}


def discover() -> dict[str, EntryPoint]:
    """Entry points of all installed frontends by name, sorted; nothing is imported.

    Raises
    ------
    UsageError
        When two distributions offer a frontend of the same name; the message names both.
    """
    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda p: (p.name, p.value)):
        other = found.get(point.name)
        if other is None:
            found[point.name] = point
        elif other.value != point.value or _distribution(other) != _distribution(point):
            raise UsageError(
                f"two distributions offer a frontend called {point.name!r}: {_distribution(other)} and "
                f"{_distribution(point)}; uninstall one"
            )
    return found


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


def frontend_version(name: str) -> str | None:
    """Version of the distribution that offers a frontend; None if it is not installed as one."""
    point = discover().get(name)
    return point.dist.version if point is not None and point.dist is not None else None


def get_frontend(name: str) -> Frontend:
    """Load one frontend by name; `UsageError` names the known ones."""
    points = discover()
    if name not in points:
        if name in OURS:
            raise UsageError(f"frontend {name!r} is not installed; try: pip install peakmem-{name}")
        raise UsageError(
            f"no frontend is called {name!r} (installed are {', '.join(points) or 'none'})"
            + did_you_mean(name, {*points, *OURS})
        )
    try:
        frontend = points[name].load()
    except Exception as error:
        raise UsageError(f"frontend {name!r} of {_distribution(points[name])} cannot be loaded: {error}") from error
    if not isinstance(frontend, Frontend):
        raise UsageError(f"frontend {name!r} of {_distribution(points[name])} is no peakmem.frontends.Frontend")
    return frontend


def recognise(path: Path) -> Frontend:
    """The one frontend whose `sniff` accepts the file.

    Raises
    ------
    InputError
        When the file cannot be read or no frontend knows it.
    UsageError
        When several do.
    """
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder; give a file in it (peakmem survey takes a folder and all models in it)")
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: is a device, pipe or socket; a model is read more than once, so give a file")
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:  # a NUL in the name
        raise InputError(f"{path}: cannot be read ({error})") from None
    if not head:
        raise InputError(f"{path}: is empty; give a file that holds a model")
    matches: list[Frontend] = []
    broken: list[UsageError] = []
    for name in discover():
        try:
            candidate = get_frontend(name)
        except UsageError as error:  # one broken plugin must not hide the others
            broken.append(error)
            continue
        if candidate.sniff(path, head):
            matches.append(candidate)
    if not matches:
        if broken:
            raise broken[0]
        missing = _SUFFIXES.get(path.suffix.lower())
        advice = "name one with --frontend" if missing in (None, *discover()) else f"try: pip install peakmem-{missing}"
        raise InputError(
            f"{path}: no installed frontend recognises this file; installed are {', '.join(discover())} ({advice})"
        )
    if len(matches) > 1:
        raise UsageError(
            f"{path}: several frontends recognise this file ({', '.join(f.name for f in matches)}); "
            "name one with --frontend"
        )
    return matches[0]
