"""Limits of both versions of control groups count, at every level; pages of files that can be dropped do not."""

from pathlib import Path

import psutil
import pytest

from slm.machine.memory import available_bytes, total_bytes

MIB = 2**20


@pytest.fixture
def own(tmp_path):
    """``/proc/self/cgroup`` of a process in the root group, as a container with its own groups sees it."""
    path = tmp_path / "own"
    path.write_text("0::/\n")
    return path


def write(folder: Path, **figures: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in figures.items():
        (folder / name.replace("__", ".")).write_text(f"{value}\n")


def version_2(folder: Path, limit: object, used: int, inactive: int = 0) -> None:
    stat = f"anon 100\ninactive_file {inactive}\nactive_file 5"
    write(folder, memory__max=limit, memory__current=used, memory__stat=stat)


def version_1(folder: Path, limit: int, used: int, inactive: int = 0) -> None:
    stat = f"cache 7\ninactive_file 1\ntotal_inactive_file {inactive}"
    write(folder, memory__limit_in_bytes=limit, memory__usage_in_bytes=used, memory__stat=stat)


def test_version_2(tmp_path, own):
    version_2(tmp_path, 8 * MIB, 5 * MIB, inactive=1 * MIB)
    assert total_bytes(tmp_path, own) == 8 * MIB
    assert available_bytes(tmp_path, own) == 4 * MIB


def test_version_1(tmp_path, own):
    version_1(tmp_path / "memory", 8 * MIB, 5 * MIB, inactive=1 * MIB)
    assert total_bytes(tmp_path, own) == 8 * MIB
    assert available_bytes(tmp_path, own) == 4 * MIB


def test_a_group_without_statistics_counts_what_is_used(tmp_path, own):
    write(tmp_path, memory__max=8 * MIB, memory__current=5 * MIB)
    assert available_bytes(tmp_path, own) == 3 * MIB


@pytest.mark.parametrize("kind", ["none", "version 2", "version 1"])
def test_without_a_limit_the_machine_counts(tmp_path, own, kind, monkeypatch):
    if kind == "version 2":
        version_2(tmp_path, "max", 5 * MIB)
    elif kind == "version 1":
        version_1(tmp_path / "memory", 9223372036854771712, 5 * MIB)
    machine = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    assert total_bytes(tmp_path, own) == machine.total
    assert available_bytes(tmp_path, own) == machine.available


def test_the_tightest_group_above_the_process_counts(tmp_path, own):
    own.write_text("0::/user.slice/job.service\n")
    version_2(tmp_path / "user.slice", 6 * MIB, 5 * MIB)
    version_2(tmp_path / "user.slice/job.service", "max", 2 * MIB)
    assert (total_bytes(tmp_path, own), available_bytes(tmp_path, own)) == (6 * MIB, 1 * MIB)
    version_2(tmp_path / "user.slice/job.service", 4 * MIB, 2 * MIB)
    assert (total_bytes(tmp_path, own), available_bytes(tmp_path, own)) == (4 * MIB, 1 * MIB)


def test_both_versions_at_once(tmp_path, own):
    own.write_text("4:cpuset,memory:/docker/abc\n0::/\n")
    version_1(tmp_path / "memory/docker/abc", 8 * MIB, 5 * MIB)
    assert available_bytes(tmp_path, own) == 3 * MIB


def test_a_path_of_the_host_is_not_looked_for_in_the_container(tmp_path, own):
    own.write_text("4:memory:/docker/abc\n0::/../../other\n")
    version_1(tmp_path / "memory", 8 * MIB, 5 * MIB)
    assert available_bytes(tmp_path, own) == 3 * MIB


def test_a_group_over_its_limit_has_nothing_left(tmp_path, own):
    version_2(tmp_path, 4 * MIB, 5 * MIB)
    assert available_bytes(tmp_path, own) == 0


def test_this_machine():
    machine = psutil.virtual_memory().total
    assert 0 < available_bytes() <= total_bytes() <= machine
