"""How a kernel uses its arguments and whether it may run twice, from the text of its definition."""

from __future__ import annotations

import re

from peakmem_inductor.forms import Access


def cpp_accesses(code: str) -> tuple[Access | None, ...] | None:
    """Accesses by position of a C++ kernel, from its signature; None if there is no signature to read.

    ``const T*`` is read. ``in_out_ptr`` is read and written, ``out_ptr`` written only; any other pointer that is not
    const counts as read and written.
    """
    parameters = _parameters(code)
    if parameters is None:
        return None
    result: list[Access | None] = []
    for parameter in parameters:
        if "*" not in parameter:
            result.append(None)
            continue
        name = _name(parameter)
        if parameter.lstrip().startswith("const"):
            result.append("r")
        else:
            result.append("w" if re.match(r"out_ptr\d+$", name) else "rw")
    return tuple(result)


def _parameters(code: str) -> list[str] | None:
    match = re.search(r'extern\s+"C"\s*(?:\w+\s+)*?void\s+\w+\s*\(', code)
    if match is None:
        return None
    depth, end = 1, match.end()
    while end < len(code) and depth:
        depth += {"(": 1, ")": -1}.get(code[end], 0)
        end += 1
    return [p for p in (p.strip() for p in code[match.end() : end - 1].split(",")) if p]


def _name(parameter: str) -> str:
    return parameter.replace("*", " ").split()[-1]


def _pointers(code: str) -> list[str]:
    return [_name(p) for p in _parameters(code) or () if "*" in p]


_RACE = re.compile(
    r"\batomic_add|\btl\.atomic_|out_ptr\d+\[[^;=]*\btmp\d+[^;=]*\]\s*=[^=]|\btl\.store\(\s*\w*out_ptr\d+ \+ [^,;]*\btmp\d"
)
"""Additions in any order, and stores to places that data names: threads that meet there leave what the last one wrote."""
_GENERATED = re.compile(r"(?:in|out|in_out)_ptr\d+$")


def runs_once(code: str) -> str:
    """Why a kernel must not run twice, or the empty string.

    A kernel made from a template (a matrix product, attention) has many MACs that are not known here. Kernels whose
    threads race may give other bits in a second run, so that readers of the first and of the second disagree.
    """
    accesses = cpp_accesses(code)
    if accesses is not None:
        if any(not _GENERATED.match(n) for n in _pointers(code)) or "micro_gemm" in code:
            return "made from a template"
        return "threads race" if "#pragma omp" in code and _RACE.search(code) else ""
    if "triton_heuristics.template" in code or re.search(r"\btl\.dot\w*\(", code):
        return "made from a template"
    return "threads race" if _RACE.search(code) else ""


def triton_accesses(code: str) -> tuple[Access | None, ...] | None:
    """Accesses by position of a generated Triton kernel, from the names of its parameters; None for one that the user wrote."""
    if "custom_kernel=True" in code:
        return None
    match = re.search(r"^def triton_\w*\(([^)]*)\)", code, re.M)
    if match is None:
        return None
    result: list[Access | None] = []
    for parameter in filter(None, (p.strip() for p in match.group(1).split(","))):
        name = parameter.split(":")[0].strip()
        if re.match(r"in_ptr\d+$|arg_\w+$", name):
            result.append("r")
        elif re.match(r"out_ptr\d+$", name):
            result.append("w")
        elif "ptr" in name:
            result.append("rw")
        else:
            result.append(None)
    return tuple(result)
