"""Both kernels, for every test that asks for one."""

import pytest

from headrace.records.kernel import Kernel, compiled_kernel, python_kernel


@pytest.fixture(params=["compiled", "python"])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    chosen = compiled_kernel() if request.param == "compiled" else python_kernel()
    if chosen is None:
        pytest.fail("the compiled kernel is not built: install a C compiler, then `make clean test`")
    return chosen
