"""Short wrappers in the style of Inductor."""

from __future__ import annotations

from typing import Any

from peakmem_inductor.building import build_graph
from peakmem_inductor.statictext import profile_from_text
from peakmem_inductor.wrapper import parse_wrapper

HEAD = '''# AOT ID: ['0_inference']
import torch
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.select_algorithm import extern_kernels
empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu
async_compile = AsyncCompile()

k_read = async_compile.cpp_pybinding(['const float*', 'float*'], r"""
extern "C"  void  kernel(const float* in_ptr0,
                       float* out_ptr0)
{ }
""")

k_inplace = async_compile.cpp_pybinding(['float*', 'const float*'], r"""
extern "C"  void  kernel(float* in_out_ptr0,
                       const float* in_ptr0)
{ }
""")

k_two = async_compile.cpp_pybinding(['const float*', 'const float*', 'float*'], r"""
extern "C"  void  kernel(const float* in_ptr0,
                       const float* in_ptr1,
                       float* out_ptr0)
{ }
""")

async_compile.wait(globals())

class Runner:
    def __init__(self, partitions):
        self.partitions = partitions

    def call(self, args):
'''
TAIL = '''
runner = Runner(partitions=[])
call = runner.call


def get_args():
    from torch._dynamo.testing import rand_strided
    arg0_1 = rand_strided((4, 4), (4, 1), device='cpu', dtype=torch.float32)
    saved = rand_strided((4, 4), (4, 1), device='cpu', dtype=torch.float32)
    return [arg0_1, saved]
'''


def wrapper_of(body: str, inputs: str = "arg0_1, saved") -> str:
    rows = [f"{inputs} = args", "args.clear()", *body.strip().splitlines()]
    return HEAD + "\n".join("        " + row for row in rows) + "\n" + TAIL


def program_of(body: str, **more: Any) -> Any:
    wrapper = parse_wrapper(wrapper_of(body))
    profile = profile_from_text(wrapper)
    return build_graph(wrapper, profile, **more)
