"""Builds the CUDA that owns no hardware: ``python stub.py SITE_PACKAGES OUT`` prints the two variables to run PyTorch with.

PyTorch's libraries say which functions of CUDA they need. Those that matter are in ``device.cpp``; all others become functions
that do nothing and report success. The headers come with PyTorch's CUDA wheels; a C++ compiler and ``nm`` must be there.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARIES = ("libc10_cuda", "libtorch_cuda", "libtorch_python", "libtorch_cpu", "libtorch_cuda_linalg")

MATH = {
    "cublasCreate_v2": "int cublasCreate_v2(void** h) { static int one; *h = &one; return 0; }",
    "cublasLtCreate": "int cublasLtCreate(void** h) { static int one; *h = &one; return 0; }",
    "cublasLtMatmulAlgoGetHeuristic": (
        "int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void*, int* n) { *n = 1; return 0; }"
    ),
}
"""Functions of the math libraries whose answers PyTorch looks at."""


def symbols(library: Path, *, defined: bool) -> set[str]:
    which = "--defined-only" if defined else "--undefined-only"
    listed = subprocess.run(["nm", "-D", which, str(library)], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].partition("@")[0] for line in listed.splitlines() if line}


def needed(site: Path, pattern: str) -> set[str]:
    """Functions that PyTorch's libraries import, of those named so."""
    found: set[str] = set()
    for name in LIBRARIES:
        library = site / "torch" / "lib" / f"{name}.so"
        if library.is_file():
            found |= {s for s in symbols(library, defined=False) if re.fullmatch(pattern, s)}
    return found


def nothing(names: Iterable[str]) -> str:
    return "".join(f"int {name}() {{ return 0; }}\n" for name in sorted(names))


def compile_library(output: Path, include: Path, *sources: Path, soname: str = "") -> None:
    extra = [f"-Wl,-soname,{soname}"] if soname else []
    subprocess.run(["c++", "-shared", "-fPIC", "-O1", "-std=c++17", f"-I{include}", *map(str, sources), "-o", str(output), *extra], check=True)


def build(site: Path, out: Path) -> dict[str, str]:
    """Build into ``out``; the environment that makes PyTorch in ``site`` use it."""
    out.mkdir(parents=True, exist_ok=True)
    header = next(iter(sorted(site.rglob("crt/host_defines.h"))), None)
    if header is None:
        raise SystemExit(f"{site}: holds no CUDA headers; install a CUDA build of PyTorch with its nvidia-* wheels")
    include = header.parent.parent
    device = HERE / "device.cpp"
    compile_library(out / "base.so", include, device)
    have = symbols(out / "base.so", defined=True)
    text = (include / "cuda.h").read_text(encoding="utf-8", errors="replace")
    driver = set(re.findall(r"CUDAAPI (cu[A-Z]\w*)", text)) | set(re.findall(r"#define cu[A-Z]\w* +(cu[A-Z]\w*)", text))
    math = needed(site, r"(cublas|cublasLt|cudnn|cusolver|cusparse|curand|cufft)[A-Z_0-9]\w*")
    (out / "driver.cpp").write_text('extern "C" {\n' + nothing(driver - have) + "}\n")
    (out / "runtime.cpp").write_text('extern "C" {\n' + nothing(needed(site, r"cuda[A-Z]\w*") - have) + "}\n")
    (out / "math.cpp").write_text('extern "C" {\n' + nothing(math - set(MATH)) + "\n".join(MATH.values()) + "\n}\n")
    compile_library(out / "libcuda.so.1", include, device, out / "driver.cpp", soname="libcuda.so.1")
    compile_library(out / "libnvidia-ml.so.1", include, HERE / "management.cpp", soname="libnvidia-ml.so.1")
    compile_library(out / "stub.so", include, device, out / "runtime.cpp", out / "driver.cpp", out / "math.cpp")
    return {"LD_LIBRARY_PATH": str(out), "LD_PRELOAD": str(out / "stub.so")}


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    print(*(f"{name}={value}" for name, value in build(Path(sys.argv[1]), Path(sys.argv[2])).items()))
