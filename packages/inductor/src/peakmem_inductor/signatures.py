"""How a kernel uses its arguments, from the text of its definition."""

from __future__ import annotations

import re

from peakmem_inductor.forms import Access


def cpp_accesses(code: str) -> tuple[Access | None, ...] | None:
    """Accesses by position of a C++ kernel, from its signature; None if there is no signature to read.

    ``const T*`` is read. ``in_out_ptr`` is read and written, ``out_ptr`` written only; any other pointer that is not
    const counts as read and written.
    """
    match = re.search(r'extern\s+"C"\s*(?:\w+\s+)*?void\s+\w+\s*\(', code)
    if match is None:
        return None
    depth, end = 1, match.end()
    while end < len(code) and depth:
        depth += {"(": 1, ")": -1}.get(code[end], 0)
        end += 1
    result: list[Access | None] = []
    for parameter in filter(None, (p.strip() for p in code[match.end() : end - 1].split(","))):
        if "*" not in parameter:
            result.append(None)
            continue
        name = parameter.replace("*", " ").split()[-1]
        if parameter.lstrip().startswith("const"):
            result.append("r")
        else:
            result.append("w" if re.match(r"out_ptr\d+$", name) else "rw")
    return tuple(result)


def triton_accesses(code: str) -> tuple[Access | None, ...] | None:
    """Accesses by position of a generated Triton kernel, from the names of its parameters."""
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
