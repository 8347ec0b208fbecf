"""Fault 45 and its kind: an import that is killed, raced, out of room, or whose source changes meanwhile."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.store.sources import GGUFS
from tests.store.test_round_trip import contents
from turbospark.catalog import resolve
from turbospark.errors import TurbosparkError
from turbospark.formats import open_checkpoint
from turbospark.store import content, repack, writer
from turbospark.store import home as homes
from turbospark.store.repack import import_model
from turbospark.store.verify import verify

ROOT = Path(__file__).parents[2]
# every step of an import that touches the disk, in this process or in one that kills itself at the n-th
KILLER = """
import os, signal, sys
from pathlib import Path
from turbospark.store import content, repack, writer

content.PIECE = 16384
steps, fatal = 0, int(sys.argv[3])

def counted(function):
    def step(*args, **kwargs):
        global steps
        steps += 1
        if steps == fatal:
            if function is write and len(args[1]) > 1:  # half of it arrives
                function(args[0], args[1][: len(args[1]) // 2])
                args[0].flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return step

write = writer.write
writer.write = counted(write)
writer._settle = counted(writer._settle)
writer._settle_folder = counted(writer._settle_folder)
Path.rename = counted(Path.rename)
Path.mkdir = counted(Path.mkdir)
repack.import_model(Path(sys.argv[1]), sys.argv[2])
print(steps)
"""


def run_import(source, home, alias, fatal):
    """An import in a process of its own that kills itself at step `fatal`; 0: never."""
    command = [sys.executable, "-c", textwrap.dedent(KILLER), str(source), alias, str(fatal)]
    environment = {**os.environ, "TURBOSPARK_HOME": str(home), "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def visible(home):
    """What a user sees of the folder."""
    return sorted(path.name for path in home.iterdir() if not path.name.startswith("."))


@pytest.fixture
def source(tmp_path):
    return GGUFS["mixture"](tmp_path)


@pytest.fixture
def whole(source):
    """What an import that nothing disturbs writes."""
    return contents(import_model(source, "whole").path)


def test_a_kill_at_any_step_leaves_nothing_that_opens_and_the_next_import_ends_it(source, whole, home):
    steps = int(run_import(source, home, "counted", 0).stdout)
    assert steps > 40
    fatal = sorted({1 + i * (steps - 1) // 23 for i in range(24)})
    assert len(fatal) >= 20
    for step in fatal:
        alias = f"killed{step}"
        killed = run_import(source, home, alias, step)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        place, partial = homes.place(alias), homes.partial(alias)
        if place.exists():  # killed after the rename, which made it whole
            assert contents(place) == whole
            continue
        assert homes.installed(alias) is None
        if partial.exists():
            with pytest.raises(TurbosparkError) as caught:
                open_checkpoint(partial)
            assert caught.value.code == "install_incomplete"
        assert contents(import_model(source, alias).path) == whole
    assert [name for name in visible(home) if not name.endswith(".gturbo")] == []
    assert [path.name for path in home.iterdir() if path.name.endswith((".partial", ".removed"))] == []


def test_an_import_that_goes_on_reads_nothing_again_that_was_ended(source, whole, home, monkeypatch):
    with stopped_after(monkeypatch, "layer_02.bin"), pytest.raises(KeyboardInterrupt):
        import_model(source, "copy")
    kept = contents(homes.partial("copy"))
    assert set(kept) >= {"source.gguf", "packed_experts/layer_00.bin", "packed_experts/layer_01.bin"}
    filled, fill = [], writer._fill  # what is written, and what is compared with its source
    monkeypatch.setattr(writer, "_fill", lambda handle, *rest: filled.append(handle.name) or fill(handle, *rest))
    assert contents(import_model(source, "copy").path) == whole
    names = {Path(str(name)).name for name in filled}
    assert "layer_03.bin" in names
    assert not names & {"layer_00.bin", "layer_01.bin", "source.gguf"}


@contextlib.contextmanager
def stopped_after(monkeypatch, name):
    """Ctrl-C when the file of that name has half its bytes."""
    write = writer.write

    def stop(handle, data):
        if str(handle.name).endswith(name):
            write(handle, data[: len(data) // 2])
            handle.flush()
            raise KeyboardInterrupt
        write(handle, data)

    with monkeypatch.context() as patch:
        patch.setattr(writer, "write", stop)
        yield


def test_bytes_that_were_spoiled_in_an_unfinished_file_are_written_anew(source, whole, monkeypatch):
    with stopped_after(monkeypatch, "layer_02.bin"), pytest.raises(KeyboardInterrupt):
        import_model(source, "copy")
    unfinished = homes.partial("copy") / "packed_experts" / "layer_02.bin"
    data = bytearray(unfinished.read_bytes())
    data[len(data) // 3] ^= 1
    unfinished.write_bytes(data)
    assert contents(import_model(source, "copy").path) == whole


def test_remains_of_another_source_are_thrown_away(source, whole, tmp_path, monkeypatch):
    other = GGUFS["deepseek2"](tmp_path)
    with stopped_after(monkeypatch, "layer_01.bin"), pytest.raises(KeyboardInterrupt):
        import_model(other, "copy")
    assert contents(import_model(source, "copy").path) == whole


def test_a_journal_that_is_cut_or_no_journal_costs_time_and_nothing_else(source, whole, monkeypatch):
    for spoil in (lambda data: data[:-9], lambda data: b"[1]\n", lambda data: b"\xff\n" + data, lambda data: b""):
        alias = f"copy{len(spoil(b'0123456789'))}"
        with stopped_after(monkeypatch, "layer_02.bin"), pytest.raises(KeyboardInterrupt):
            import_model(source, alias)
        journal = homes.partial(alias).with_suffix(".journal")
        journal.write_bytes(spoil(journal.read_bytes()))
        assert contents(import_model(source, alias).path) == whole
        homes.remove(alias)


def test_of_two_imports_of_one_alias_the_second_is_refused_by_name(source, home):
    with homes.locked("mine"):
        with pytest.raises(TurbosparkError) as caught:
            import_model(source, "mine")
        assert (caught.value.code, "'mine'" in caught.value.message) == ("import_running", True)
        beside = run_import(source, home, "mine", 0)
        assert "import_running" in beside.stderr
        assert import_model(source, "other").path.exists()
    assert import_model(source, "mine").path.exists()


def test_two_processes_that_import_one_alias_at_once_leave_one_whole_install(source, whole, home):
    command = [sys.executable, "-m", "turbospark", "import", str(source), "--alias", "mine", "--quiet"]
    environment = {**os.environ, "TURBOSPARK_HOME": str(home), "PYTHONPATH": str(ROOT / "src")}
    both = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate()[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 2]
    assert any(code in "".join(told) for code in ("import_running", "alias_taken"))
    assert contents(homes.place("mine")) == whole


def test_an_alias_that_is_there_is_not_written_over(source):
    import_model(source, "mine")
    with pytest.raises(TurbosparkError) as caught:
        import_model(source, "mine")
    assert (caught.value.code, "turbospark rm mine" in caught.value.hint) == ("alias_taken", True)


def test_too_little_room_is_said_before_a_byte_is_written(source, home, monkeypatch):
    monkeypatch.setattr(repack.shutil, "disk_usage", lambda path: os.statvfs(path) and Usage(free=300_000))
    with pytest.raises(TurbosparkError) as caught:
        import_model(source, "mine")
    assert caught.value.code == "disk_full"
    assert "needs" in caught.value.message
    assert "300 kB are free" in caught.value.message
    assert not homes.partial("mine").exists()


class Usage:
    def __init__(self, free):
        self.free = free


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_meanwhile_is_one_clean_error_and_no_loss(source, whole, monkeypatch, number):
    write, calls = writer.write, []

    def full(handle, data):
        calls.append(data)
        if len(calls) > 12:
            raise OSError(number, os.strerror(number))
        write(handle, data)

    with monkeypatch.context() as patch:
        patch.setattr(writer, "write", full)
        with pytest.raises(TurbosparkError) as caught:
            import_model(source, "mine")
    assert caught.value.code == "disk_full"
    assert os.strerror(number) in caught.value.message
    assert homes.installed("mine") is None
    assert contents(import_model(source, "mine").path) == whole


def test_a_file_system_that_takes_no_more_is_one_clean_error(source, home):
    """A limit on the size of files, which the system itself enforces, stands for the full disk."""
    code = f"""
        import resource, signal, sys
        from pathlib import Path
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
        from turbospark.cli.main import main
        sys.exit(main(["import", {str(source)!r}, "--alias", "mine"]))
    """
    environment = {**os.environ, "TURBOSPARK_HOME": str(home), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "[disk_full]" in done.stderr
    assert "Traceback" not in done.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


@pytest.mark.parametrize("change", ["cut", "grown", "rewritten"])
def test_a_source_that_changes_meanwhile_is_refused_by_name(source, monkeypatch, change):
    monkeypatch.setattr(content, "PIECE", 4096)
    write, calls = writer.write, []

    def meddle(handle, data):
        write(handle, data)
        calls.append(1)
        if len(calls) == 30:
            if change == "cut":
                os.truncate(source, source.stat().st_size // 2)
            elif change == "grown":
                with source.open("ab") as file:
                    file.write(b"more")
            else:
                os.utime(source, ns=(1, 1))

    monkeypatch.setattr(writer, "write", meddle)
    with pytest.raises(TurbosparkError) as caught:
        import_model(source, "mine")
    assert (caught.value.code, str(source) in caught.value.message) == ("file_changed", True)
    assert homes.installed("mine") is None


def test_a_half_removed_install_never_opens(source, monkeypatch):
    import_model(source, "mine")

    def fails(path, ignore_errors=False):
        if not ignore_errors:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(homes.shutil, "rmtree", fails)
        with pytest.raises(KeyboardInterrupt):
            homes.remove("mine")
    with pytest.raises(TurbosparkError):
        resolve("mine")
    assert homes.remove("mine") > 0
    assert verify(import_model(source, "mine").path) == []


def test_removing_what_is_not_there_lists_what_is(source):
    import_model(source, "mine")
    with pytest.raises(TurbosparkError) as caught:
        homes.remove("other")
    assert (caught.value.code, caught.value.hint) == ("not_installed", "installed: mine")


@pytest.mark.parametrize("alias", ["", "..", ".hidden", "a/b", "a\0b", "x" * 81, "a b", "x.gturbo", "-x"])
def test_an_alias_that_could_be_no_folder_is_refused(source, alias):
    with pytest.raises(TurbosparkError) as caught:
        import_model(source, alias)
    assert caught.value.code == "bad_alias"


def test_a_home_that_cannot_be_written_is_named(source, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("TURBOSPARK_HOME", str(blocked / "home"))
    with pytest.raises(TurbosparkError) as caught:
        import_model(source, "mine")
    assert (caught.value.code, str(blocked) in caught.value.message) == ("home_unwritable", True)


def test_the_journal_and_the_lock_are_no_part_of_an_install(source, home):
    path = import_model(source, "mine").path
    listed = set(json.loads((path / "manifest.json").read_text())["files"]) | {"manifest.json"}
    assert set(contents(path)) == listed
    assert sorted(p.name for p in home.iterdir()) == [".mine.gturbo.lock", "mine.gturbo"]
