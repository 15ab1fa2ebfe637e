import os
import subprocess
import sys
from pathlib import Path

from headrace.pipeline.spark.memory import memory_of_tree


def put_process(proc: Path, process: int, *, parent: int, pss_kib: int) -> None:
    folder = proc / str(process)
    folder.mkdir()
    (folder / "stat").write_text(f"{process} (a name) with ) S {parent} 1 1 0\n")
    (folder / "smaps_rollup").write_text(f"00-ff ---p [rollup]\nRss: 999 kB\nPss: {pss_kib} kB\nPss_Anon: 7 kB\n")


def test_descendants_count_and_strangers_do_not(tmp_path: Path) -> None:
    put_process(tmp_path, 10, parent=1, pss_kib=1)
    put_process(tmp_path, 11, parent=10, pss_kib=10)
    put_process(tmp_path, 12, parent=11, pss_kib=100)
    put_process(tmp_path, 13, parent=1, pss_kib=1000)
    assert memory_of_tree(10, proc=tmp_path) == 111 * 1024


def test_where_the_system_tells_nothing_nothing_is_told(tmp_path: Path) -> None:
    assert memory_of_tree(10, proc=tmp_path) is None


def test_a_real_child_is_counted() -> None:
    own = memory_of_tree(os.getpid())
    if own is None:  # not Linux
        return
    code = "held = b'x' * 64_000_000; print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert (memory_of_tree(child.pid) or 0) > 60_000_000
        assert (memory_of_tree(os.getpid()) or 0) > 60_000_000
        child.communicate(b"\n")
