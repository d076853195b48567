"""Writing a wrapper and its profile to a folder, so that they can be studied anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from peakmem.system.files import write_atomically

from peakmem_inductor import settings
from peakmem_inductor.forms import Wrapper
from peakmem_inductor.profile import Profile, profile_path


def write_dump(folder: Path, name: str, wrapper: Wrapper, profile: Profile) -> Path:
    """Write ``name.py`` and ``name.peakmem.json``; an existing pair gets a number. Returns the path of the wrapper."""
    path = folder / f"{name}.py"
    number = 2
    while path.exists() or profile_path(path).exists():
        path = folder / f"{name}_{number}.py"
        number += 1
    write_atomically(profile_path(path), profile.to_bytes())
    write_atomically(path, wrapper.source.encode())
    return path


@contextmanager
def dump(folder: str | Path) -> Iterator[Callable[[], list[Path]]]:
    """While it is open, every graph that makes its first call under ``backend="peakmem"`` is dumped to ``folder``.

    >>> with peakmem_inductor.dump("wrappers") as written:      # doctest: +SKIP
    ...     torch.compile(net, backend="peakmem")(x)
    >>> written()                                               # doctest: +SKIP
    [PosixPath('wrappers/0_inference.py')]

    Parameters
    ----------
    folder : str or Path
        Created if it is missing.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    before = set(place.glob("*.py"))
    previous = settings.dump_folder
    settings.dump_folder = place
    try:
        yield lambda: sorted(set(place.glob("*.py")) - before)
    finally:
        settings.dump_folder = previous
