"""Builds the library. It is loaded through ctypes and knows nothing of Python, so one wheel a platform serves every version."""

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
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[Extension("peakmem_native.kernel", ["src/peakmem_native/kernel.c", "src/peakmem_native/canonical.c"], py_limited_api=True)],
    cmdclass={"build_ext": Library, "bdist_wheel": Wheel},
)
