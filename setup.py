"""Build the compiled record decoder, if there is a compiler.

Everything else lives in pyproject.toml. The extension is optional: without a compiler the install
succeeds and the pure Python twin serves (`headrace version` says which one is in use).
"""

from pathlib import Path

from setuptools import Extension, setup

SOURCE = "src/headrace/records/_columns.pyx"


def extensions() -> list[Extension]:
    if not Path(SOURCE).exists():
        return []
    from Cython.Build import cythonize

    extension = Extension("headrace.records._columns", [SOURCE], optional=True, extra_compile_args=["-O3"])
    return cythonize([extension], compiler_directives={"language_level": "3"})  # type: ignore[no-any-return]


setup(ext_modules=extensions())
