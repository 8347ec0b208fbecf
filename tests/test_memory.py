"""Memory of the machine and the limits above a process, read from a /proc and a /sys written here."""

import subprocess
import sys

import pytest

from turbospark.memory import RESERVE, Memory, read_memory

GB = 1 << 30


@pytest.fixture
def root(tmp_path):
    """A machine of 16 GB, 12 of them available, and no groups."""
    write(
        tmp_path, "proc/meminfo", f"MemTotal: {16 * GB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {12 * GB // 1024} kB\n"
    )
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    return tmp_path


def write(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(text))


def group2(root, path, limit, used=0, inactive=0, high="max"):
    folder = "sys/fs/cgroup/" + path
    write(root, f"{folder}/memory.max", f"{limit}\n")
    write(root, f"{folder}/memory.high", f"{high}\n")
    write(root, f"{folder}/memory.current", used)
    write(root, f"{folder}/memory.stat", f"anon 1\ninactive_file {inactive}\nactive_file 7\n")


def group1(root, path, limit, used=0, inactive=0):
    folder = "sys/fs/cgroup/memory/" + path
    write(root, f"{folder}/memory.limit_in_bytes", f"{limit}\n")
    write(root, f"{folder}/memory.usage_in_bytes", used)
    write(root, f"{folder}/memory.stat", f"inactive_file 5\ntotal_inactive_file {inactive}\n")


def test_without_limits_it_is_the_machines(root):
    assert read_memory(root) == Memory(16 * GB, 12 * GB)


def test_a_version_2_group_limits_it(root):
    write(root, "proc/self/cgroup", "0::/app\n")
    group2(root, "app", 4 * GB, used=3 * GB, inactive=GB)
    assert read_memory(root) == Memory(4 * GB, 2 * GB)


def test_a_group_above_may_be_the_tighter_one(root):
    write(root, "proc/self/cgroup", "0::/shop/app\n")
    group2(root, "shop/app", 8 * GB, used=GB)
    group2(root, "shop", 6 * GB, used=5 * GB)
    assert read_memory(root) == Memory(6 * GB, GB)


def test_the_mark_where_throttling_begins_counts(root):
    write(root, "proc/self/cgroup", "0::/app\n")
    group2(root, "app", "max", high=3 * GB, used=GB)
    assert read_memory(root) == Memory(3 * GB, 2 * GB)


def test_a_group_without_limits_changes_nothing(root):
    write(root, "proc/self/cgroup", "0::/app\n")
    group2(root, "app", "max", used=15 * GB)
    assert read_memory(root) == Memory(16 * GB, 12 * GB)


def test_a_version_1_group_limits_it(root):
    write(root, "proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/app\n0::/\n")
    group1(root, "app", 5 * GB, used=4 * GB, inactive=GB)
    assert read_memory(root) == Memory(5 * GB, 2 * GB)


def test_inside_a_container_the_mounts_own_root_is_the_group(root):
    write(root, "proc/self/cgroup", "4:memory:/docker/0123\n")
    group1(root, "", 2 * GB, used=GB)
    assert read_memory(root) == Memory(2 * GB, GB)


def test_no_limit_in_version_1_is_a_huge_number(root):
    write(root, "proc/self/cgroup", "4:memory:/\n")
    group1(root, "", 9223372036854771712, used=GB)
    assert read_memory(root) == Memory(16 * GB, 12 * GB)


def test_more_in_use_than_the_limit_leaves_nothing(root):
    write(root, "proc/self/cgroup", "0::/app\n")
    group2(root, "app", GB, used=2 * GB)
    assert read_memory(root).available == 0


def test_this_machine_has_some():
    memory = read_memory()
    assert 0 < memory.available <= memory.total


def test_an_automatic_choice_leaves_something_to_the_machine():
    assert Memory(64 * GB, 60 * GB).budget == 60 * GB - RESERVE
    assert Memory(2 * GB, 2 * GB).budget == GB
    assert Memory(2 * GB, GB // 2).budget == 0


def test_the_peak_grows_with_what_is_touched():
    code = "from turbospark.memory import peak_bytes as p; before = p(); b'x' * 50_000_000; print(p() - before)"
    grown = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert 30_000_000 < grown < 70_000_000
