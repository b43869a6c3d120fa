"""Free memory: the minimum of what the kernel, control groups and process limits leave."""

from pathlib import Path

import pytest

from attnshape.runtime.free_memory import UNLIMITED, free_on_host

GIB = 2**30


def host(root: Path, **files: str) -> Path:
    """Write the files of a machine with 8 GiB available; `__` in a name is a `/`."""
    content = {"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {8 * GIB // 1024} kB\nBuffers: 1 kB\n"}
    content |= {name.replace("__", "/"): text for name, text in files.items()}
    for name, text in content.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_kernel_value_without_limits(tmp_path):
    assert free_on_host(host(tmp_path)) == 8 * GIB


def test_memory_is_unlimited_without_information(tmp_path):
    assert free_on_host(tmp_path) == UNLIMITED


@pytest.mark.parametrize("group", ["0::/\n", "0::/docker/one\n", "1:cpu:/x\n0::/docker/one/deeper\n"])
def test_control_group_version_2_limit(tmp_path, group):
    folder = "sys/fs/cgroup" + ("/docker/one" if "docker" in group else "")
    files = {f"{folder}/memory.max": f"{4 * GIB}\n", f"{folder}/memory.current": f"{3 * GIB}\n"}
    assert free_on_host(host(tmp_path, **files, proc__self__cgroup=group)) == GIB


def test_parent_control_groups_limit(tmp_path):
    files = {
        "sys/fs/cgroup/a/memory.max": f"{2 * GIB}",
        "sys/fs/cgroup/a/memory.current": f"{GIB}",
        "sys/fs/cgroup/a/b/memory.max": "max",
        "sys/fs/cgroup/a/b/memory.current": "5",
    }
    assert free_on_host(host(tmp_path, **files, proc__self__cgroup="0::/a/b\n")) == GIB


def test_cached_files_are_free(tmp_path):
    files = {
        "sys/fs/cgroup/memory.max": f"{4 * GIB}",
        "sys/fs/cgroup/memory.current": f"{4 * GIB}",
        "sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file 7\n",
    }
    assert free_on_host(host(tmp_path, **files, proc__self__cgroup="0::/\n")) == GIB


@pytest.mark.parametrize("path", ["/", "/process/0123"])
def test_control_group_version_1_limit(tmp_path, path):
    """In a container the path may be the host's, and the mount the container's own."""
    files = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{3 * GIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
    }
    groups = f"5:cpu,cpuacct:/\n4:memory:{path}\n0::/\n"
    assert free_on_host(host(tmp_path, **files, proc__self__cgroup=groups)) == 2 * GIB


def test_largest_number_means_no_limit(tmp_path):
    files = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "5",
    }
    assert free_on_host(host(tmp_path, **files, proc__self__cgroup="4:memory:/\n")) == 8 * GIB


def test_usage_beyond_the_limit_leaves_no_memory(tmp_path):
    files = {"sys/fs/cgroup/memory.max": "10", "sys/fs/cgroup/memory.current": "20"}
    assert free_on_host(host(tmp_path, **files, proc__self__cgroup="0::/\n")) == 0


def test_address_space_limit(tmp_path):
    limits = f"Limit   Soft Limit   Hard Limit   Units\nMax address space         {GIB}   unlimited   bytes\n"
    files = {"proc/self/limits": limits, "proc/self/statm": "1024 5 5 5 0 5 0"}
    assert free_on_host(host(tmp_path, **files)) == GIB - 1024 * 4096
    unlimited = limits.replace(str(GIB), "unlimited")
    assert free_on_host(host(tmp_path, proc__self__limits=unlimited)) == 8 * GIB
