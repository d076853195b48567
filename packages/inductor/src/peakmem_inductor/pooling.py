"""A static pool: the buffers of a wrapper as views at planned offsets into one allocation.

What a wrapper allocates and deletes itself is placed by the arena planner over the statements at which it is alive. The
text then asks for one block, ``peakmem_pool = empty_strided_cpu((N, ), (1, ), torch.uint8)``, and each allocation becomes
``buf0 = alloc_from_pool(peakmem_pool, OFFSET, DTYPE, SIZE, STRIDE)``, which is Inductor's own way to say it. Views, reuses and
deletes stay as they are, and the block goes with the last view into it. Outside stay results, what calls return, and whatever
somebody might hold, resize or look into: see `_reasons`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from peakmem.arena import Item, plan
from peakmem.model import InputError, PeakmemError

from peakmem_inductor.effects import BARRIER, extern_effects
from peakmem_inductor.forms import Form, Wrapper, lines_of, names_in, pool_view
from peakmem_inductor.profile import Layout, Profile
from peakmem_inductor.regions import evaluate
from peakmem_inductor.simulation import simulate
from peakmem_inductor.wrapper import parse_wrapper

NAME = "peakmem_pool"
ALIGNMENT = {"empty_strided_cpu": 64, "empty_strided_cuda": 256}
"""Allocators that are served, and what they align blocks to, at least."""

_LOOKS_AT_STORAGE = re.compile(r"as_strided|set_|resize|storage|record_stream")
"""Operators to which it matters where in a storage a tensor lies."""


@dataclass(frozen=True)
class Pooled:
    """A wrapper with a pool.

    Attributes
    ----------
    wrapper : Wrapper
    profile : Profile
    predicted : int
        Bytes above entry at the peak, what stays outside of the pool included.
    sizes : dict of str to int
        Bytes of each pool, by its allocator.
    inside : int
        Buffers that are views now.
    outside : dict of str to str
        Buffers that stay allocations of their own, and why.
    least : bool
        No placement of these buffers at this alignment is smaller.
    """

    wrapper: Wrapper
    profile: Profile
    predicted: int
    sizes: dict[str, int]
    inside: int
    outside: dict[str, str]
    least: bool

    @property
    def size(self) -> int:
        return sum(self.sizes.values())

    def __str__(self) -> str:
        blocks = f"{len(self.sizes)} allocation{'s' if len(self.sizes) > 1 else ''}"
        more = f"; {len(self.outside)} allocated outside" if self.outside else ""
        return f"{self.inside} buffers in {blocks} of {self.size:,} bytes{', the least possible' if self.least else ''}{more}"


@dataclass
class _Block:
    """A storage that the wrapper allocates: when it lives, and whether it must stay outside."""

    name: str
    form: Form
    size: int
    first: int
    last: int = -1
    reason: str = ""
    names: list[str] = field(default_factory=list)


def add_pool(wrapper: Wrapper, profile: Profile, *, fixed_sizes: bool = False, effort: float = 0.5) -> Pooled:
    """The same program with its buffers in one pool for each device.

    Parameters
    ----------
    wrapper : Wrapper
    profile : Profile
        Recorded, or derived from the text.
    fixed_sizes : bool
        The text will only run with arguments of the recorded sizes, so sizes that are arguments may become numbers.
    effort : float
        Of the planner; see `peakmem.arena.plan`.

    Raises
    ------
    PeakmemError
        When no buffer can lie in a pool; the message says why.

    Notes
    -----
    Linear in the text, but for the planner.
    """
    if any(re.search(r"\bcuda\.stream\b|\bset_stream\b|\bwait_stream\b|\bStream\(", f.text) for f in wrapper.forms):
        raise PeakmemError("the program runs on several streams, between which a pool would need synchronization")
    blocks = _blocks(wrapper, profile)
    _reasons(wrapper, profile, blocks, fixed_sizes)
    edits: dict[int, list[str]] = {}
    names = dict(profile.names)
    sizes: dict[str, int] = {}
    inside, least = 0, True
    words = set(re.findall(r"\w+", wrapper.source))
    for allocator, alignment in ALIGNMENT.items():
        mine = [b for b in blocks if not b.reason and b.form.target == allocator]
        if not mine:
            continue
        placement = plan(
            [Item(b.name, -(-b.size // alignment) * alignment, b.first, b.last) for b in mine], alignment=alignment, effort=effort
        )
        pool = _free_name(NAME if allocator == "empty_strided_cpu" else f"{NAME}_{allocator.rpartition('_')[2]}", words)
        size = max(offset + b.size for offset, b in zip(placement.offsets, mine))
        for number, (b, offset) in enumerate(zip(mine, placement.offsets)):
            layout = names[b.name]
            dtype = _dtype(b.form)
            view = f"{b.name} = alloc_from_pool({pool}, {offset}, {dtype}, {_tuple(layout.shape)}, {_tuple(layout.stride)})"
            first = [f"{pool} = {allocator}(({size}, ), (1, ), torch.uint8)"] if not number else []
            last = [f"del {pool}"] if number + 1 == len(mine) else []
            edits[b.form.line] = [*first, view, *last]
            for name in b.names:
                old = profile.names.get(name)
                if old is not None:
                    names[name] = replace(old, bytes=size, offset=old.offset + offset // old.itemsize, storage=pool)
        names[pool] = Layout(size, (size,), (1,), 0, "torch.uint8", pool)
        sizes[allocator] = size
        inside += len(mine)
        least = least and placement.least
    if not inside:
        reason = next((f"{b.name} is {b.reason}" for b in blocks if b.reason), "")
        raise PeakmemError(f"no buffer can lie in a pool{f': {reason}' if reason else ', since the program allocates none'}")
    made = parse_wrapper(_edited(wrapper, edits), where="the wrapper with a pool")
    new = replace(profile, names=names, digest=made.digest, measured_peak=None)
    outside = {b.name: b.reason for b in blocks if b.reason}
    return Pooled(made, new, simulate(made, new), sizes, inside, outside, least)


def _blocks(wrapper: Wrapper, profile: Profile) -> list[_Block]:
    """Every allocation of the text with the statements between which some name of it is bound."""
    found: dict[str, _Block] = {}
    where: dict[str, str] = {}
    for i, form in enumerate(wrapper.forms):
        if form.kind == "allocation":
            name = form.defines[0]
            layout = profile.names.get(name)
            where[name] = name
            found[name] = _Block(name, form, layout.own_bytes if layout is not None else 0, i, names=[name])
            continue
        if form.kind in ("view", "rename") and form.target in where:
            where[form.defines[0]] = where[form.target]
        else:
            for name in form.defines:
                made = profile.names.get(name)
                if made is not None and made.storage != name and made.storage in where:
                    where[name] = where[made.storage]
                else:
                    where.pop(name, None)
        for name in form.defines:
            if name in where:
                found[where[name]].names.append(name)
        for name in form.deletes:
            root = where.pop(name, None)
            if root is not None and root not in where.values():
                found[root].last = i
    return list(found.values())


def _reasons(wrapper: Wrapper, profile: Profile, blocks: list[_Block], fixed_sizes: bool) -> None:
    """Say of each block why it must stay outside, if it must."""
    owner = {name: b for b in blocks for name in b.names}
    arguments = {f.defines[0] for f in wrapper.forms if f.kind == "symbol"}
    alone: dict[int, int] = {}
    for form in wrapper.forms:
        alone[form.line] = alone.get(form.line, 0) + 1

    def keep(names: Iterable[str], reason: str) -> None:
        for name in names:
            if name in owner:
                owner[name].reason = owner[name].reason or reason

    keep(wrapper.outputs, "a result, which outlives the call")
    for form in wrapper.forms:
        if form.kind == "block":
            keep(form.uses, "used by control flow")
        elif form.kind == "view" and pool_view(form) is not None:
            keep((form.target,), "a pool itself")
        elif form.kind in ("extern", "operator"):
            effects = extern_effects(form.target) if form.kind == "extern" else profile.operators.get(form.target, BARRIER)
            for key, expression in form.arguments:
                if not effects.known:
                    keep(names_in(expression), f"given to {form.target}, which is not known")
                elif _LOOKS_AT_STORAGE.search(form.target) or (key in effects.aliases and not profile.recorded):
                    keep(names_in(expression), f"given to {form.target}, which looks at its storage")
    for b in blocks:
        b.reason = b.reason or _unfit(b, profile, arguments if fixed_sizes else set(), alone[b.form.line])


def _unfit(b: _Block, profile: Profile, arguments: set[str], on_line: int) -> str:
    call = b.form.node.value if isinstance(b.form.node, ast.Assign) else None
    if b.form.target not in ALIGNMENT or not isinstance(call, ast.Call) or len(call.args) != 3 or call.keywords or on_line != 1:
        return f"allocated by {b.form.text[:60]!r}, which has no pool"
    if b.name in profile.names and profile.names[b.name].device:
        return f"on another device, {profile.names[b.name].device}"
    if b.name not in profile.names:
        return "of a size that is not known"
    if any(name not in arguments for e in call.args[:2] for name in names_in(e)):
        return "of a size that changes"
    if not b.size:
        return "without elements"
    return "" if b.last >= 0 else "never deleted"


def _free_name(name: str, words: set[str]) -> str:
    while name in words:
        name += "_"
    return name


def _dtype(form: Form) -> str:
    assert isinstance(form.node, ast.Assign) and isinstance(form.node.value, ast.Call)
    return ast.unparse(form.node.value.args[2])


def _tuple(values: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, values)) + ("," if len(values) == 1 else "") + ")"


def _edited(wrapper: Wrapper, edits: dict[int, list[str]]) -> str:
    """The source with the statements that begin at some lines replaced by others, or left out where there are none."""
    ends = {f.line: f.node.end_lineno or f.line for f in wrapper.forms if f.node is not None}
    rows, skip = [], 0
    for number, row in enumerate(lines_of(wrapper.source), 1):
        if number in edits:
            pad = row[: len(row) - len(row.lstrip())]
            rows += [pad + text for text in edits[number]]
            skip = ends[number]
        elif number > skip:
            rows.append(row)
    return "\n".join(rows) + "\n"


def has_pool(wrapper: Wrapper) -> bool:
    """Whether `add_pool` made a text."""
    return any(f.kind == "allocation" and f.defines[0].startswith(NAME) for f in wrapper.forms)


def remove_pool(wrapper: Wrapper, profile: Profile) -> tuple[Wrapper, Profile]:
    """A wrapper that `add_pool` made with allocations again, after a look at the pool: the text itself must show that its
    views fit and that none are alive together in the same bytes.

    Raises
    ------
    InputError
        When they do not; the message names them.
    """
    pools: dict[str, tuple[str, int]] = {}
    inside: dict[str, tuple[str, int, int]] = {}  # name -> pool, first byte, bytes
    edits: dict[int, list[str]] = {}
    home: dict[str, tuple[str, int]] = {}  # name -> the view its storage begins as, and where that lies in the pool
    live: dict[str, str] = {}
    names = dict(profile.names)
    for form in wrapper.forms:
        name = form.defines[0] if form.defines else ""
        if form.kind == "allocation" and name.startswith(NAME):
            pools[name] = (form.target, profile.names[name].own_bytes)
            edits[form.line] = []
            names.pop(name, None)
            continue
        view = pool_view(form)
        if view is not None and view.pool in pools:
            shape, stride = evaluate(view.size, {}), evaluate(view.stride, {})
            if not isinstance(shape, tuple) or not isinstance(stride, tuple) or not isinstance(offset := evaluate(view.offset, {}), int):
                raise InputError(f"{name} lies at no fixed place of {view.pool}")
            allocator, room = pools[view.pool]
            size = Layout(0, shape, stride, 0, view.dtype, name).own_bytes
            if offset < 0 or offset % ALIGNMENT.get(allocator, 64) or offset + size > room:
                raise InputError(f"{name} does not fit at byte {offset} of {view.pool}")
            for other in set(live.values()):
                pool, at, length = inside[other]
                if pool == view.pool and at < offset + size and offset < at + length:
                    raise InputError(f"{other} and {name} are alive together in the same bytes of {view.pool}")
            inside[name] = (view.pool, offset, size)
            home[name], live[name] = (name, offset), name
            edits[form.line] = [f"{name} = {allocator}({_tuple(shape)}, {_tuple(stride)}, {view.dtype})"]
        elif form.kind in ("view", "rename") and form.target in home:
            home[name] = home[form.target]
            live[name] = home[name][0]
        elif form.kind == "delete" and any(n in pools for n in form.deletes):
            rest = [n for n in form.deletes if n not in pools]
            edits[form.line] = [f"del {', '.join(rest)}"] if rest else []
        else:
            for made in form.defines:
                old = profile.names.get(made)
                if old is not None and old.storage in pools and (root := _containing(old, inside, set(live.values()))) is not None:
                    home[made] = (root, inside[root][1])
                    live[made] = root
        for gone in form.deletes:
            live.pop(gone, None)
    for name, (root, offset) in home.items():
        if name in names:
            old = names[name]
            names[name] = replace(old, bytes=inside[root][2], offset=old.offset - offset // old.itemsize, storage=root)
    made_wrapper = parse_wrapper(_edited(wrapper, edits), where="the wrapper without its pool")
    return made_wrapper, replace(profile, names=names, digest=made_wrapper.digest)


def _containing(layout: Layout, inside: dict[str, tuple[str, int, int]], live: set[str]) -> str | None:
    """The living view in whose bytes something begins that a call returned."""
    start = layout.offset * layout.itemsize
    for name in sorted(live):
        pool, at, length = inside[name]
        if pool == layout.storage and at <= start < at + length:
            return name
    return None

