"""The compiled kernel is used where it is, the twin where it is not, and one can see which."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.records.columns import IMPLEMENTATION
from headrace.records.kernel import Fault, compiled_kernel, explain

ROOT = Path(__file__).parents[3]


def test_the_name_tells_which_kernel_is_in_use() -> None:
    forced = os.environ.get("HEADRACE_PURE_PYTHON") == "1"
    expected = "python" if forced or compiled_kernel() is None else "compiled"
    assert expected == IMPLEMENTATION


def test_the_environment_forces_the_twin() -> None:
    run = subprocess.run(
        [sys.executable, "-c", "from headrace.records.columns import IMPLEMENTATION as i; print(i)"],
        env={**os.environ, "HEADRACE_PURE_PYTHON": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "python"


def test_core_does_not_load_pyarrow() -> None:
    modules = "batch, codecs, columns, encoder, record, stamping"
    script = f"import sys; from headrace.records import {modules}; sys.exit('pyarrow' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault not in (Fault.OK, Fault.NO_ROOM)])
def test_every_fault_has_words(fault: Fault) -> None:
    assert str(explain(fault, 3, "the batch")).startswith("record 3 of the batch: ")


@pytest.mark.parametrize("compiler", ["false", None], ids=["no compiler", "compiler"])
def test_build_succeeds_with_and_without_a_compiler(compiler: str | None, tmp_path: Path) -> None:
    package = tmp_path / "src" / "headrace" / "records"
    package.mkdir(parents=True)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "src/headrace/records/_columns.pyx", package)
    environment = {key: value for key, value in os.environ.items() if key != "CC"}
    # Without optimisation: whether it builds is the question here.
    environment |= {"CFLAGS": "-O0"} if compiler is None else {"CC": compiler}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", "built", "--build-temp", "scratch"]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert bool(list((tmp_path / "built").rglob("*.so"))) == (compiler is None)
