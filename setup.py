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

    extension = Extension("headrace.records._columns", [SOURCE], extra_compile_args=["-O3"])
    built: list[Extension] = cythonize([extension], compiler_directives={"language_level": "3"})
    for one in built:
        # Said here and not above, because cythonize makes new extensions and forgets it.
        one.optional = True
    return built


setup(ext_modules=extensions())
