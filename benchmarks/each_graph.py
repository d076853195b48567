"""Torch's compiler with a look at each graph that it makes, the first time that it is called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

Generate = Callable[[Any], tuple[Any, Path]]
"""Generates the code of a graph once more, with a pass over the scheduler's nodes; the module and its file."""


def compile_each(look: Callable[[Any, Path, Any, Any, Generate], Any], gm: Any, example_inputs: Any, again: int = 0) -> Any:
    """Compile with Inductor; ``look(module, path, call, arguments, generate)`` stands for the first call of each graph and returns its
    results. ``generate`` can be called ``again`` times."""
    from peakmem_inductor import backend
    from torch._inductor import compile_fx as module

    backend._install()

    def inner(gm: Any, example_inputs: Any, **kwargs: Any) -> Any:
        graphs = [backend._copy(gm) for _ in range(again)]

        def receive(loaded: Any, path: Path) -> None:
            original, seen = loaded.call, []

            def call(args: list[Any]) -> Any:
                if seen:
                    return original(args)
                seen.append(1)
                return look(loaded, path, original, args, generator(graphs, example_inputs, kwargs))

            loaded.call = call

        with backend._active(receive):
            return module.compile_fx_inner(gm, example_inputs, **kwargs)

    return module.compile_fx(gm, example_inputs, inner_compile=inner)


def generator(graphs: list[Any], example_inputs: Any, kwargs: Any) -> Generate:
    """Generates the code of one of several copies of a graph."""
    from peakmem_inductor import backend
    from torch._guards import TracingContext, detect_fake_mode
    from torch._inductor import compile_fx as module
    from torch._inductor import config

    def generate(scheduler_pass: Any) -> tuple[Any, Path]:
        loaded: list[tuple[Any, Path]] = []
        mode = detect_fake_mode(example_inputs)
        with (
            mock.patch.object(mode, "allow_non_fake_inputs", config.freezing),  # as Inductor does for frozen weights
            config.patch({"reorder_for_peak_memory": False, "_post_fusion_custom_pass": scheduler_pass}),
            TracingContext.report_output_strides(),
            backend._active(lambda m, p: loaded.append((m, p))),
        ):
            module.compile_fx_inner(graphs.pop(), example_inputs, **kwargs)
        if len(loaded) != 1:
            raise RuntimeError(f"{len(loaded)} modules were generated")
        return loaded[0]

    return generate


def buffers_in(graph: Any, order: Any) -> list[str]:
    """Buffers in the order in which an order of statements writes them, to be handed back to the scheduler."""
    found: dict[str, None] = {}
    for v in order:
        step = graph.steps[v]
        written = [n for n, access, _ in step.accesses if access != "r"]
        found.update(dict.fromkeys((*step.scratch, *step.defines, *written)))
    return [n for n in found if n.startswith("buf")]
