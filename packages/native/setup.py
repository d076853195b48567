"""Builds the library. It is loaded through ctypes and knows nothing of Python, so one wheel a platform serves every version."""

import re
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext


class Library(build_ext):
    def get_ext_filename(self, fullname):
        return fullname.replace(".", "/") + ".so"

    def get_export_symbols(self, extension):
        return extension.export_symbols  # no PyInit_


class Wheel(bdist_wheel):
    def get_tag(self):
        platform = super().get_tag()[2]
        # The library needs nothing but libc. manylinux2014 is what has glibc 2.17: no version asked for may be later.
        built = [*Path(self.bdist_dir).rglob("kernel.so")]
        asked = {tuple(map(int, v)) for file in built for v in re.findall(rb"GLIBC_(\d+)\.(\d+)", file.read_bytes())}
        if platform.startswith("linux_") and asked and max(asked) <= (2, 17):
            platform = "manylinux2014_" + platform.removeprefix("linux_")
        return "py3", "none", platform


setup(
    ext_modules=[
        Extension("peakmem_native.kernel", ["src/peakmem_native/kernel.c", "src/peakmem_native/canonical.c"], py_limited_api=True)
    ],
    cmdclass={"build_ext": Library, "bdist_wheel": Wheel},
)
