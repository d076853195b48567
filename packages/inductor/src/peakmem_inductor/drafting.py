"""The first pass over a wrapper: which calls there are, what they touch, which names share a storage."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field

from peakmem_inductor.costs import macs
from peakmem_inductor.effects import BARRIER, Effects, extern_effects, races
from peakmem_inductor.forms import (
    UNBACKED,
    Access,
    Form,
    Wrapper,
    asserted_layouts,
    dotted,
    is_reuse,
    names_in,
    pool_view,
)
from peakmem_inductor.graph import Definition, Step
from peakmem_inductor.profile import Profile
from peakmem_inductor.regions import Region, inline_view, of_layout
from peakmem_inductor.simulation import merged_blocks
from peakmem_inductor.wrapper import UnknownForm


@dataclass
class Storage:
    """Names that certainly share one storage; those of a reuse are joined to the old ones later, or not."""

    root: str
    origin: str  # "input", "allocation", "step", "reuse"
    names: list[str] = field(default_factory=list)
    previous: Storage | None = None
    joined: Storage | None = None
    first_access: Access | None = None

    def find(self) -> Storage:
        storage = self
        while storage.joined is not None:
            storage = storage.joined
        return storage


class Draft:
    """Steps and storages of a wrapper as its statements name them, before it is settled which reuses are alive.

    `read` fills it; see `peakmem_inductor.building` for the model.
    """

    def __init__(self, wrapper: Wrapper, profile: Profile, effects: Callable[[str], Effects]) -> None:
        self.wrapper = wrapper
        self.profile = profile
        self.effects = effects
        self.steps: list[Step] = []
        self.definitions: dict[str, Definition] = {}
        self.storages: dict[str, Storage] = {}
        self.producer: dict[str, Step] = {}
        self.index: dict[int, int] = {}
        self.prologue: list[str] = []
        self.symbols = set(wrapper.symbols)
        self.layout_text: dict[str, tuple[str, str, str, str]] = {}  # name -> allocator, size, stride, dtype
        self.containers = {f.target for f in wrapper.forms if f.kind == "getitem"}
        self.data_dependent = any(UNBACKED.search(f.text) for f in wrapper.forms)
        self.numbers = {n for n in wrapper.inputs if n not in profile.names}
        self.sizes: set[str] = set()  # symbols that are arguments, by whatever name
        self.taken: set[str] = set()

    def fail(self, form: Form, what: str) -> UnknownForm:
        return UnknownForm(f"line {form.line}: {what}: {form.text[:120]!r}; the graph is left as it is")

    # -- pass over the forms ---------------------------------------------------------------------------------

    def read(self) -> Draft:
        """Take in all statements, in the order of the text."""
        for name in self.wrapper.inputs:
            if name in self.numbers:
                continue
            root = self.profile.names[name].storage
            storage = self.storages.get(root) or Storage(root, "input")
            storage.names.append(name)
            self.storages[name] = storage
        forms = list(merged_blocks(self.wrapper.forms))
        i = 0
        while i < len(forms):
            form = forms[i]
            following = forms[i + 1] if i + 1 < len(forms) else None
            if is_reuse(form, following):
                self.reuse(form)
                i += 2
                continue
            if form.kind == "block":
                self.block(form)
            else:
                self.one(form)
            i += 1
        return self

    def one(self, form: Form) -> None:
        kind = form.kind
        if kind == "symbol":
            if form.target not in self.wrapper.inputs and form.target not in self.sizes:
                raise self.fail(form, "a symbol that is no argument")
            self.sizes.add(form.defines[0])
            self.prologue.append(form.text)
        elif kind == "context":
            if form.text not in self.prologue:  # the stream is asked for before every launch
                self.prologue.append(form.text)
        elif kind == "align":
            if form.target not in self.wrapper.inputs:
                raise self.fail(form, "aligns what is no argument")
            self.prologue.append(form.text)
        elif kind == "delete":
            return
        elif kind == "none":
            if form.defines:
                self.prologue.append(form.text)
        elif kind == "allocation":
            self.allocation(form)
        elif kind in ("view", "rename"):
            self.alias(form)
        elif kind in ("kernel", "extern", "operator"):
            self.computation(form)
        elif kind == "getitem":
            self.getitem(form)
        elif kind == "measure" and form.target and form.text.rstrip(" \n)").endswith(".item("):
            step = self.new_step(form, "item")
            step.barrier = True
            self.access(step, form.target, "r", None, form)
            step.defines.extend(form.defines)
            self.producer.update(dict.fromkeys(form.defines, step))
        elif kind in ("measure", "guard", "assert"):
            self.glue(form)
        else:
            raise self.fail(form, "an unknown statement")

    def tensor(self, name: str, form: Form) -> Storage | None:
        """Storage of a local name; None for symbols, numbers and None."""
        if name in self.symbols or name in self.numbers:
            return None
        if name in self.storages:
            return self.storages[name]
        if name in self.producer or name in self.definitions or name not in self.profile.names:
            return None
        raise self.fail(form, f"{name} is used before it is bound")

    def new_step(self, form: Form, op: str) -> Step:
        base = form.defines[0] if form.defines else op
        name = base if base not in self.taken else f"{base}@{form.line}"
        self.taken.add(name)
        step = Step(name, op, [(form.text, form.uses)], workspace=self.profile.workspaces.get(form.text, 0))
        step.uses.extend(n for n in form.uses)
        self.index[id(step)] = len(self.steps)
        self.steps.append(step)
        return step

    def access(self, step: Step, name: str, access: Access, region: Region | None, form: Form) -> None:
        storage = self.tensor(name, form)
        if storage is None:
            return
        step.accesses.append((name, access, region))

    def note_first(self, step: Step) -> None:
        """Remember how a storage is first used: the whole step counts, reading wins."""
        modes: dict[int, tuple[Storage, set[Access]]] = {}
        for name, access, _ in step.accesses:
            storage = self.storages[name]
            modes.setdefault(id(storage), (storage, set()))[1].add(access)
        for storage, found in modes.values():
            if storage.first_access is None:
                storage.first_access = "w" if found == {"w"} else "rw"

    def region(self, expression: ast.expr) -> Region | None:
        """What part of its storage an argument covers; None for all of it or unknown."""
        if isinstance(expression, ast.Name):
            layout = self.profile.names.get(expression.id)
            if layout is None or self.depends_on_data(expression.id):
                return None
            return of_layout(layout)
        if isinstance(expression, ast.Call) and dotted(expression.func) == "reinterpret_tensor":
            base = expression.args[0]
            if isinstance(base, ast.Name) and base.id in self.profile.names and not self.depends_on_data(base.id):
                return inline_view(expression, self.profile.names[base.id], self.profile.symbols)
        return None

    def depends_on_data(self, name: str) -> bool:
        if not self.data_dependent:
            return False
        definition = self.definitions.get(name)
        if definition is not None:
            return bool(UNBACKED.search(definition.text)) or any(map(self.depends_on_data, definition.needs))
        return name in self.producer

    def computation(self, form: Form) -> None:
        if form.kind == "kernel":
            self.kernel(form)
            return
        effects = (extern_effects if form.kind == "extern" else self.effects)(form.target)
        step = self.new_step(form, form.target)
        step.barrier = not effects.known
        step.random = effects.random and not _draws_nothing(form)
        for key, expression in form.arguments:
            access: Access = effects.accesses.get(key, "r") if effects.known else "rw"
            region = self.region(expression)
            for name in dict.fromkeys(names_in(expression)):
                self.access(step, name, access, region, form)
            if access != "r" and not any(n in self.storages for n in names_in(expression)):
                step.barrier = step.barrier or not _is_constant(expression)
        for name in form.defines:
            self.producer[name] = step
            if name in self.containers or self.untouched_tuple(name):
                step.scratch.append(name)
                step.defines.append(name)
            else:
                self.produced(step, name, effects, form)
        cost = macs(form, self.profile)
        step.cost, step.repeatable = cost or 0, cost is not None and not (self.profile.threads != 1 and races(form.target))
        self.note_first(step)

    def untouched_tuple(self, name: str) -> bool:
        """Whether a call returned a tuple that nobody takes apart; it can go at once."""
        return self.profile.recorded and name not in self.profile.names and name not in self.profile.numbers

    def kernel(self, form: Form) -> None:
        accesses = self.wrapper.kernels[form.target]
        if len(form.arguments) > len(accesses) and not form.text.startswith(form.target + ".run"):
            raise self.fail(form, "more arguments than the kernel has")
        step = self.new_step(form, form.target)
        for key, expression in form.arguments:
            if not key.isdigit() or int(key) >= len(accesses):
                continue
            access = accesses[int(key)] or "r"
            names = [n for n in dict.fromkeys(names_in(expression)) if self.tensor(n, form) is not None]
            if access != "r" and not names:
                step.barrier = True  # writes a constant of the module
            for name in names:
                self.access(step, name, access, self.region(expression), form)
        step.repeatable = form.target not in self.wrapper.once
        self.note_first(step)

    def produced(self, step: Step, name: str, effects: Effects, form: Form) -> None:
        """Bind what a call returned to its storage, as recorded, if the schema allows what was recorded."""
        step.defines.append(name)
        self.producer[name] = step
        layout = self.profile.names.get(name)
        if layout is None:
            return
        if layout.storage == name:
            storage = Storage(name, "step", [name])
        else:
            # An argument that took its memory over from a dead buffer has that buffer's name in the recording.
            aliased = [n for k, e in form.arguments if k in effects.aliases for n in names_in(e) if self.recorded(n) == layout.storage]
            owner = self.storages.get(aliased[0] if aliased else layout.storage)
            if owner is None:
                raise self.fail(form, f"the storage of {name} is opaque or belongs to something outside the wrapper")
            if not aliased and self.producer.get(layout.storage) is not step:
                raise self.fail(form, f"{name} shares storage with {layout.storage}, which its operator does not declare")
            storage = owner
            storage.names.append(name)
        self.storages[name] = storage
        step.accesses.append((name, "w", None))

    def recorded(self, name: str) -> str | None:
        """First name of the storage that a name had in the recorded run."""
        return self.profile.names[name].storage if name in self.profile.names and name in self.storages else None

    def getitem(self, form: Form) -> None:
        step = self.producer.get(form.target)
        if step is None:
            raise self.fail(form, "an element of something unknown")
        step.parts.append((form.text, form.uses))
        name = form.defines[0]
        if name in self.containers:
            step.defines.append(name)
            step.scratch.append(name)
            self.producer[name] = step
            return
        self.produced(step, name, BARRIER, form)
        self.note_first(step)

    def block(self, first: Form) -> None:
        """cond or while: one barrier with everything it names."""
        step = self.new_step(first, "control_flow")
        step.barrier = True
        inside = set(first.defines)
        step.uses = [n for n in step.uses if n not in inside]
        for name in step.uses:
            if self.tensor(name, first) is not None:
                step.accesses.append((name, "rw", None))
        for name in sorted(inside):
            self.producer[name] = step
            step.defines.append(name)
            step.scratch.append(name)
        # Names bound in one branch only cannot be deleted blindly.
        if inside:
            step.parts.insert(0, (" = ".join((*sorted(inside), "None")), ()))
        self.note_first(step)

    def allocation(self, form: Form) -> None:
        name = form.defines[0]
        self.storages[name] = Storage(name, "allocation", [name])
        self.definitions[name] = Definition(form.text, form.uses)
        value = form.node.value if isinstance(form.node, ast.Assign) else None
        if isinstance(value, ast.Call) and len(value.args) == 3:
            size, stride, dtype = map(ast.unparse, value.args)
            self.layout_text[name] = (form.target, size, stride, dtype)

    def alias(self, form: Form) -> None:
        name, base = form.defines[0], form.target
        storage = self.tensor(base, form)
        if storage is None:
            if base in self.producer and base not in self.containers:
                self.glue(form)
                self.producer[name] = self.producer[base]
                self.producer[base].defines.append(name)
                return
            raise self.fail(form, f"{base} is no tensor")
        self.definitions[name] = Definition(form.text, (base, *(u for u in form.uses if u != base)))
        self.storages[name] = storage
        storage.names.append(name)
        text = self.layout_text.get(base)
        if text is not None and pool_view(form) is None:
            self.layout_text[name] = self.view_text(form, text)

    def view_text(self, form: Form, base: tuple[str, str, str, str]) -> tuple[str, str, str, str]:
        value = form.node.value if isinstance(form.node, ast.Assign) else None
        if isinstance(value, ast.Call) and len(value.args) == 4:
            return (base[0], ast.unparse(value.args[1]), ast.unparse(value.args[2]), base[3])
        return base

    def reuse(self, form: Form) -> None:
        name, base = form.defines[0], form.target
        old = self.tensor(base, form)
        if old is None:
            raise self.fail(form, f"{base} is no tensor")
        self.storages[name] = Storage(name, "reuse", [name], previous=old)
        self.definitions[name] = Definition(form.text, (base,))
        text = self.layout_text.get(base)
        if text is not None:
            self.layout_text[name] = self.view_text(form, text)

    def glue(self, form: Form) -> None:
        """Attach a form that computes nothing to the step that bound what it looks at, or put it first."""
        owners: list[Step] = []
        for name in form.uses:
            if name in self.producer:
                owners.append(self.producer[name])
            elif name in self.definitions:
                storage = self.storages[name]
                owners.extend(s for s in self.steps if any(self.storages[n] is storage for n, _, _ in s.accesses))
        for name in form.uses:
            # An argument that a step has already deleted in some order must not be looked at later.
            if not owners and name in self.definitions:
                raise self.fail(form, f"looks at {name} before anything is in it")
        if not owners:
            self.prologue.append(form.text)
            return
        step = max(owners, key=lambda s: self.index[id(s)])
        step.parts.append((form.text, form.uses))
        for name in form.uses:
            if name not in step.uses and name not in step.defines:
                step.uses.append(name)
            seen = self.storages.get(name)
            if seen is not None and all(self.storages[n] is not seen for n, _, _ in step.accesses):
                step.accesses.append((name, "r", None))
        for name in form.defines:
            step.defines.append(name)
            self.producer[name] = step
        for target, size, stride, _ in asserted_layouts(form):
            layout = self.profile.names.get(target)
            allocator = None if layout is None else self.profile.allocator_of(layout)
            if layout is not None and allocator is not None:
                self.layout_text[target] = (allocator, ast.unparse(size), ast.unparse(stride), layout.dtype)


def _draws_nothing(form: Form) -> bool:
    """Attention on the CPU draws only for dropout, and here it has none."""
    if "._scaled_dot_product_flash_attention_for_cpu." not in form.target:
        return False
    share = next((e for k, e in form.arguments if k in ("3", "dropout_p")), None)
    return share is None or (isinstance(share, ast.Constant) and share.value == 0)


def _is_constant(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Constant)
