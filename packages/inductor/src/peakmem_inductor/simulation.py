"""The memory of a wrapper exactly as it stands, and control flow taken as one statement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from peakmem_inductor.forms import Form, Wrapper
from peakmem_inductor.profile import Profile


def simulate(wrapper: Wrapper, profile: Profile) -> int:
    """Bytes above entry of a wrapper exactly as it stands, its own allocations, reuses and deletes included.

    Shares no code with `build_graph`. Used as the prediction for any wrapper, the original and the permuted one alike.
    """
    now = peak = 0
    for _, change in requests(wrapper, profile):
        now += change
        peak = max(peak, now)
    return peak


def requests(wrapper: Wrapper, profile: Profile) -> Iterator[tuple[str, int]]:
    """What a wrapper asks its allocator for, exactly as it stands: storages and their bytes, negative when they go.

    Names refer to storages, a storage goes when its last name goes. Where the profile knows what a call asks for one by one, that
    stands here; else its workspace comes after its results, named ``workspace``, and goes at once.
    """
    where: dict[str, str] = {}
    home: dict[str, str] = {}  # like `where`, of names that are gone too: an alias is recorded by its storage's first name
    size: dict[str, int] = {}
    parts: dict[str, list[tuple[str, int]]] = {}  # of what a call returned and nobody named
    freed = set(profile.freed)
    for name in wrapper.inputs:
        layout = profile.names.get(name)
        if layout is not None:
            where[name] = home[name] = layout.storage
            size[layout.storage] = layout.bytes if layout.storage in freed else 0
    elements = elements_of(wrapper)
    for form in merged_blocks(wrapper.forms):
        if form.kind == "allocation":
            name = form.defines[0]
            layout = profile.names[name]
            where[name] = name
            size[name] = layout.own_bytes
            yield name, layout.own_bytes
        elif form.kind in ("view", "rename") and form.target in where:
            where[form.defines[0]] = where[form.target]
        elif form.kind in CALLS:
            for name in made_by(form, elements):
                layout = profile.names.get(name)
                if layout is not None:
                    where[name] = home[name] = home.get(layout.storage, name) if layout.storage != name else name
                    if layout.storage == name:
                        size[name] = layout.bytes
            rows, unnamed = call_requests(form, profile, elements)
            yield from rows
            if unnamed:
                where[form.defines[0]], parts[form.defines[0]] = form.defines[0], unnamed
        home.update((name, where[name]) for name in form.defines if name in where)
        if form.kind == "delete":
            for name in form.deletes:
                storage = where.pop(name, None)
                if storage is not None and storage not in where.values():
                    yield from ((part, -bytes) for part, bytes in parts.get(storage) or [(storage, size[storage])])


CALLS = ("kernel", "extern", "operator", "block")
"""Kinds of forms that run something, which may ask for memory."""

Requests = list[tuple[str, int]]


def call_requests(form: Form, profile: Profile, elements: Mapping[str, Sequence[str]]) -> tuple[Requests, Requests]:
    """What a call asks for and gives back at once, and what it leaves to its result without a name."""
    asked = profile.requests.get(form.text)
    if asked is None:
        layouts = ((name, profile.names.get(name)) for name in made_by(form, elements))
        asked = tuple((name, layout.bytes) for name, layout in layouts if layout is not None and layout.storage == name)
        if workspace := profile.workspaces.get(form.text, 0):
            asked += (("workspace", workspace), ("workspace", -workspace))
        if residue := profile.residues.get(form.text, 0):
            asked += (("+0", residue),)
    container = form.defines[0] if form.defines else ""
    rows: Requests = []
    kept: dict[str, int] = {}
    for name, change in asked:
        called = f"{container}{name}" if name.startswith("+") else name
        if called != name:
            kept[called] = kept.get(called, 0) + change
        rows.append((called, change))
    unnamed = [(name, bytes) for name, bytes in kept.items() if bytes]
    if container in elements or (container and container not in profile.names):
        return rows, unnamed
    return [*rows, *((name, -bytes) for name, bytes in unnamed)], []


def elements_of(wrapper: Wrapper) -> dict[str, list[str]]:
    """Of each tuple the names of what is taken out of it."""
    elements: dict[str, list[str]] = {}
    for form in wrapper.forms:
        if form.kind == "getitem":
            elements.setdefault(form.target, []).append(form.defines[0])
    return elements


def made_by(form: Form, elements: Mapping[str, Sequence[str]]) -> list[str]:
    """What a call binds, tuples taken apart."""
    return [leaf for name in form.defines for leaf in (_leaves(name, elements) if name in elements else (name,))]


def merge_blocks(group: Sequence[Form]) -> Form:
    """Consecutive control-flow forms as one."""
    return Form(
        "block",
        "\n".join(f.text for f in group),
        group[0].line,
        defines=tuple(dict.fromkeys(n for f in group for n in f.defines)),
        uses=tuple(dict.fromkeys(n for f in group for n in f.uses)),
        deletes=tuple(dict.fromkeys(n for f in group for n in f.deletes)),
    )


def merged_blocks(forms: Sequence[Form]) -> Iterator[Form]:
    """The forms with every run of control-flow forms merged into one."""
    group: list[Form] = []
    for form in forms:
        if form.kind == "block":
            group.append(form)
            continue
        if group:
            yield merge_blocks(group)
            group = []
        yield form
    if group:
        yield merge_blocks(group)


def _leaves(name: str, elements: Mapping[str, Sequence[str]]) -> list[str]:
    found = []
    for element in elements.get(name, []):
        found += _leaves(element, elements) if element in elements else [element]
    return found
