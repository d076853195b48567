"""From steps to statements: dependences, by the storages and elements that steps touch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from peakmem.model import Buffer, Statement

from peakmem_inductor.forms import Access
from peakmem_inductor.graph import Definition, Step
from peakmem_inductor.regions import Region, overlap


def statements_of(
    steps: Sequence[Step],
    buffer_of: Mapping[str, int],
    buffers: Sequence[Buffer],
    definitions: Mapping[str, Definition],
    producer: Mapping[str, Step],
) -> list[Statement]:
    """The steps as statements: what they read and write, and which earlier ones they must follow.

    Parameters
    ----------
    steps : sequence of Step
        In the given order.
    buffer_of : mapping of str to int
        Name of a tensor -> its buffer.
    buffers : sequence of Buffer
    definitions : mapping
        Names that are bound when first needed.
    producer : mapping of str to Step
        Step that binds a name.
    """
    index = {id(step): v for v, step in enumerate(steps)}
    history: list[list[tuple[int, Access, Region | None]]] = [[] for _ in buffers]
    result = []
    barrier = -1
    random = -1
    needs = {name: d.needs for name, d in definitions.items()}
    for v, step in enumerate(steps):
        before: set[int] = set()
        if step.barrier:
            before.update(range(barrier + 1 if barrier >= 0 else 0, v))
        if barrier >= 0:
            before.add(barrier)
        if step.random or step.barrier:
            if random >= 0:
                before.add(random)
            random = v
        for name in _closure(step.uses, needs):
            maker = producer.get(name)
            if maker is not None and maker is not step:
                before.add(index[id(maker)])
        merged: dict[tuple[int, Region | None], set[Access]] = {}
        for name, access, region in step.accesses:
            merged.setdefault((buffer_of[name], region), set()).add(access)
        for (b, region), kinds in merged.items():
            writes = kinds != {"r"}
            for u, earlier, other in reversed(history[b]):
                if (writes or earlier != "r") and overlap(region, other):
                    before.add(u)
                    if earlier != "r" and other is None:
                        break
        for (b, region), kinds in merged.items():
            kind: Access = next(iter(kinds)) if len(kinds) == 1 else "rw"
            history[b].append((v, kind, region))
        before.discard(v)
        reads = sorted({b for (b, _), k in merged.items() if k != {"w"}})
        writes_to = sorted({b for (b, _), k in merged.items() if k != {"r"}})
        pure = step.repeatable and not step.barrier and not step.random and all(buffers[b].kind != "input" for b in writes_to)
        effects = (*(["barrier"] if step.barrier else []), *(["random"] if step.random else []))
        result.append(
            Statement(
                name=step.name,
                op=step.op,
                reads=tuple(reads),
                writes=tuple(writes_to),
                dependences=tuple(sorted(before)),
                workspace=step.workspace,
                cost=step.cost,
                pure=pure,
                effects=effects,
            )
        )
        if step.barrier:
            barrier = v
    return result


def _closure(names: Iterable[str], needs: Mapping[str, tuple[str, ...]]) -> set[str]:
    found: set[str] = set()
    stack = list(names)
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack.extend(needs.get(name, ()))
    return found
