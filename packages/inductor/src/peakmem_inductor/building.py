"""From a wrapper and its profile to a `Graph` and its `Program`.

The model, which measurements have confirmed to the byte: a step is one kernel or operator call with what belongs to
it (taking a tuple apart, asserts). Allocations and views are emitted right before the first step that needs them, a
``del`` right after the last. All names of one storage are one buffer. A storage taken over from a dead buffer
(``# reuse``) is the same buffer if the first step that touches it reads it; if that step only overwrites it, the reuse
is dead and becomes an allocation of its own, which frees both to move.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace

from peakmem.model import Buffer, Program

from peakmem_inductor.dependences import statements_of
from peakmem_inductor.drafting import Draft, Storage
from peakmem_inductor.effects import BARRIER, Effects
from peakmem_inductor.forms import Wrapper, names_in
from peakmem_inductor.graph import Definition, Graph, Step
from peakmem_inductor.profile import Profile
from peakmem_inductor.regions import evaluate
from peakmem_inductor.wrapper import UnknownForm


def build_graph(
    wrapper: Wrapper, profile: Profile, *, effects: Callable[[str], Effects] | None = None
) -> Graph:
    """Derive the program of a wrapper.

    Parameters
    ----------
    wrapper : Wrapper
    profile : Profile
    effects : callable, optional
        Effects of an operator by its name; default: what the profile recorded, anything else a full barrier.

    Raises
    ------
    UnknownForm
        When storage is shared in a way that the text does not tell, or a statement cannot be understood.
    """
    draft = Draft(wrapper, profile, effects or (lambda t: profile.operators.get(t, BARRIER))).read()
    _returned_allocations(draft)
    _join(draft)
    _mark_unrepeatable(draft)
    return _finish(draft)


def _returned_allocations(draft: Draft) -> None:
    """A returned buffer that nothing touches is still allocated: a step of its own."""
    touched = {id(draft.storages[n].find()) for s in draft.steps for n, _, _ in s.accesses}
    for name in draft.wrapper.outputs:
        storage = draft.storages.get(name)
        if storage is None or id(storage) in touched or storage.origin in ("input", "step"):
            continue
        if storage.origin == "reuse":
            storage.first_access = "rw"
            continue
        root = storage.root
        definition = draft.definitions.pop(root)
        step = Step(root, "allocation", [(definition.text, definition.needs)], uses=list(definition.needs), defines=[root])
        step.accesses.append((root, "w", None))
        draft.producer[root] = step
        draft.index[id(step)] = len(draft.steps)
        draft.steps.append(step)
        touched.add(id(storage))


def _join(draft: Draft) -> None:
    """Settle which reuses are alive: their names join the old storage; dead ones become allocations, and what was
    recorded of their names speaks of these from now on."""
    fresh = set()
    for name, storage in list(draft.storages.items()):
        if storage.origin != "reuse" or name != storage.root:
            continue
        assert storage.previous is not None
        text = _fresh_text(draft, name) if storage.first_access == "w" else None
        if text is None:
            target = storage.previous.find()
            target.names.extend(storage.names)
            storage.joined = target
            base = draft.definitions[name].needs[0]
            draft.definitions[name] = Definition(draft.definitions[name].text, (base,))
        else:
            storage.origin = "allocation"
            fresh.add(name)
            draft.definitions[name] = Definition(f"{name} = {text}", _symbols_of(text, draft.symbols))
    names = dict(draft.profile.names)
    for name, storage in draft.storages.items():
        if name in names and (root := storage.find().root) in fresh:
            names[name] = replace(names[name], storage=root)
    draft.profile = replace(draft.profile, names=names)


def _fresh_text(draft: Draft, name: str) -> str | None:
    """Allocation for a dead reuse, with symbolic sizes where the text has them; None if it cannot be written."""
    layout = draft.profile.names.get(name)
    if layout is None:
        return None
    text = draft.layout_text.get(name)
    if text is not None:
        allocator, size, stride, dtype = text
        shape = evaluate(ast.parse(size, mode="eval").body, draft.profile.symbols)
        steps = evaluate(ast.parse(stride, mode="eval").body, draft.profile.symbols)
        if shape == layout.shape and steps == layout.stride and dtype == layout.dtype:
            return f"{allocator}({size}, {stride}, {dtype})"
    maker = draft.profile.allocator_of(layout)
    if draft.symbols or maker is None:
        return None
    return f"{maker}({_tuple(layout.shape)}, {_tuple(layout.stride)}, {layout.dtype})"


def _mark_unrepeatable(draft: Draft) -> None:
    """What binds names that are no tensors, and, beside a barrier, what reads tensors of the module: a barrier may
    change them where no argument tells."""
    barriers = any(step.barrier for step in draft.steps)
    constants = set(draft.wrapper.constants)
    for step in draft.steps:
        tensors = all(name in draft.storages or name in step.scratch for name in step.defines)
        seen = barriers and any(constants.intersection(names_in(ast.parse(text))) for text, _ in step.parts)
        step.repeatable = step.repeatable and tensors and not seen


def _finish(draft: Draft) -> Graph:
    scratch = {name: step for step in draft.steps for name in step.scratch}
    for step in draft.steps:
        for name in step.uses:
            if scratch.get(name, step) is not step:
                raise UnknownForm(f"{step.name}: uses {name}, a tuple, as a whole; the graph is left as it is")
    for name in draft.wrapper.outputs:
        if name in scratch:
            raise UnknownForm(f"the result holds {name}, a tuple; the graph is left as it is")
    order: list[Storage] = []
    ids: dict[int, int] = {}
    for name in draft.storages:
        storage = draft.storages[name].find()
        if id(storage) not in ids:
            ids[id(storage)] = len(order)
            order.append(storage)
    buffer_of = {name: ids[id(s.find())] for name, s in draft.storages.items()}
    touched: list[bool] = [False] * len(order)
    for step in draft.steps:
        for name, _, _ in step.accesses:
            touched[buffer_of[name]] = True
    returned = {buffer_of[n] for n in draft.wrapper.outputs if n in buffer_of}
    freed = set(draft.profile.freed)
    buffers = []
    for i, storage in enumerate(order):
        layout = draft.profile.names[storage.root]
        if storage.origin == "input":
            pinned = i in returned or storage.root not in freed or not touched[i]
            buffers.append(Buffer(storage.root, layout.bytes, "input", pinned))
        else:
            size = layout.own_bytes if storage.origin == "allocation" else layout.bytes
            buffers.append(Buffer(storage.root, size, "output" if i in returned else "intermediate", i in returned))
    statements = statements_of(draft.steps, buffer_of, buffers, draft.definitions, draft.producer)
    program = Program(tuple(buffers), tuple(statements), name=draft.wrapper.digest[:19])
    return Graph(
        wrapper=draft.wrapper,
        profile=draft.profile,
        steps=tuple(draft.steps),
        definitions=draft.definitions,
        buffer_of=buffer_of,
        names_of=tuple(tuple(dict.fromkeys(s.names)) for s in order),
        prologue=tuple(draft.prologue),
        program=program,
        data_dependent=draft.data_dependent,
    )


def _symbols_of(text: str, symbols: set[str]) -> tuple[str, ...]:
    return tuple(n for n in dict.fromkeys(names_in(ast.parse(text))) if n in symbols)


def _tuple(values: tuple[int, ...]) -> str:
    return "(" + "".join(f"{v}, " for v in values) + ")"
