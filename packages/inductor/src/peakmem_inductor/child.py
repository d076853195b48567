"""Child process of `InductorModel.verify`: runs wrappers on random arguments and writes what it saw as JSON."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from peakmem.model import RuntimeMissing

from peakmem_inductor.forms import Wrapper
from peakmem_inductor.profile import Layout, Profile, read_profile
from peakmem_inductor.wrapper import parse_wrapper

SEED = 20240917


def tensor_of(layout: Layout, storages: dict[str, Any], generator: Any) -> Any:
    """A random tensor of a layout; tensors of one storage share it. Whole numbers are 0 or 1, so that they may be
    used as indices."""
    import torch

    dtype = getattr(torch, layout.dtype.removeprefix("torch."))
    storage = storages.get(layout.storage)
    if storage is None:
        count = layout.bytes // dtype.itemsize
        if dtype.is_floating_point:
            flat = torch.randn(count, generator=generator).to(dtype)
        elif dtype.is_complex:
            flat = torch.randn(count, 2, generator=generator).view(torch.complex64).reshape(-1).to(dtype)
        else:
            flat = torch.randint(0, 2, (count,), generator=generator).to(dtype)
        storage = torch.empty(layout.bytes, dtype=torch.uint8).untyped_storage()
        torch.empty(0, dtype=dtype).set_(storage, 0, (count,), (1,)).copy_(flat)
        storages[layout.storage] = storage
    return torch.empty(0, dtype=dtype).set_(storage, layout.offset, layout.shape, layout.stride)


def arguments(wrapper: Wrapper, profile: Profile) -> list[Any]:
    """Random arguments of the recorded shapes, the same at every call."""
    import torch

    generator = torch.Generator().manual_seed(SEED)
    storages: dict[str, Any] = {}
    result = []
    for name in wrapper.inputs:
        layout = profile.names.get(name)
        if layout is None:
            result.append(ast.literal_eval(profile.numbers.get(name, "None")))
        else:
            result.append(tensor_of(layout, storages, generator))
    return result


def load(path: Path, profile: Profile, name: str) -> dict[str, Any]:
    """Globals of a wrapper's module, its constants made of random numbers."""
    import torch

    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    generator = torch.Generator().manual_seed(SEED + 1)
    storages: dict[str, Any] = {}
    for constant, layout in sorted(profile.constants.items()):
        if layout is not None and not hasattr(module, constant):
            setattr(module, constant, tensor_of(layout, storages, generator))
    return vars(module)


def run(files: list[Path]) -> dict[str, Any]:
    """Run the wrappers one after the other; the first is the reference."""
    import torch

    from peakmem_inductor.arguments import Again
    from peakmem_inductor.arguments import difference as differing
    from peakmem_inductor.record import measure

    wrappers = []
    for i, (path, beside) in enumerate(zip(files[::2], files[1::2])):
        profile = read_profile(beside)
        wrappers.append((parse_wrapper(path.read_text()), profile, load(path, profile, f"wrapper{i}")))

    def once(i: int) -> tuple[dict[str, bytes], int]:
        wrapper, profile, namespace = wrappers[i]
        torch.set_num_threads(max(1, profile.threads))
        args = arguments(wrapper, profile)
        freed = {*profile.freed, *(profile.names[n].storage for n in wrapper.donated)}
        held = [a for n, a in zip(wrapper.inputs, args) if n not in profile.names or profile.names[n].storage not in freed]
        again = Again(wrapper.inputs, args)
        torch.manual_seed(SEED)
        # Filled memory on both sides: what nobody wrote is the same in both, unless only one of them reads it.
        result, peak = measure(wrapper, namespace, args, poison=True)
        seen = again.seen(result, wrapper.inputs)
        del held
        return seen, peak

    with torch.no_grad():
        runs = [once(i) for i in range(len(wrappers))]
        first = runs[0][0]
        difference = differing(first, runs[1][0])
        reproducible = not (difference and differing(first, once(0)[0]))
    outputs = sum(what.startswith("output ") for what in first)
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "peaks": [peak for _, peak in runs],
        "difference": difference,
        "reproducible": reproducible,
        "outputs": outputs,
        "arguments": len(first) - outputs,
    }


def main(argv: list[str]) -> int:
    target = Path(argv[0])
    try:
        row = run([Path(a) for a in argv[1:]])
    except RuntimeMissing as error:
        row = {"missing": str(error)}
    except Exception as error:
        row = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
    target.write_text(json.dumps(row))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
