"""Cores, SMT siblings, slow cores and NUMA nodes, read from made-up machines."""

from pathlib import Path

import pytest

from slm.machine import hardware, topology


def machine(root: Path, cores: list[dict]) -> Path:
    """A ``/sys`` of ``cores``: each with its ``cpus``, and where given ``node``, ``package``, ``capacity``, ``khz``."""
    nodes: dict[int, list[int]] = {}
    for core in cores:
        for cpu in core["cpus"]:
            folder = root / f"devices/system/cpu/cpu{cpu}"
            (folder / "topology").mkdir(parents=True)
            (folder / "topology/core_cpus_list").write_text(",".join(map(str, core["cpus"])) + "\n")
            (folder / "topology/physical_package_id").write_text(f"{core.get('package', 0)}\n")
            if "capacity" in core:
                (folder / "cpu_capacity").write_text(f"{core['capacity']}\n")
            if "khz" in core:
                (folder / "cpufreq").mkdir()
                (folder / "cpufreq/cpuinfo_max_freq").write_text(f"{core['khz']}\n")
            nodes.setdefault(core.get("node", 0), []).append(cpu)
    for node, cpus in nodes.items():
        folder = root / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(",".join(map(str, cpus)) + "\n")
    return root


def cpus(cores) -> list[tuple[int, ...]]:
    return [core.cpus for core in cores]


def test_smt_siblings_are_one_core(tmp_path):
    sys = machine(tmp_path, [{"cpus": (0, 4)}, {"cpus": (1, 5)}, {"cpus": (2, 6)}, {"cpus": (3, 7)}])
    found = topology.read(sys, range(8))
    assert cpus(found.cores) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert (found.cpus, len(found.fast_cores), found.smt, found.hybrid) == (8, 4, True, False)


def test_only_cpus_of_the_mask_count(tmp_path):
    sys = machine(tmp_path, [{"cpus": (0, 4)}, {"cpus": (1, 5)}, {"cpus": (2, 6)}, {"cpus": (3, 7)}])
    found = topology.read(sys, {0, 1, 5})
    assert cpus(found.cores) == [(0,), (1, 5)]
    assert not topology.read(sys, {0, 1}).smt


@pytest.mark.parametrize(
    ("fast", "slow"),
    [({"capacity": 1024}, {"capacity": 446}), ({"khz": 5_100_000}, {"khz": 3_900_000})],
)
def test_efficiency_cores_are_slow(fast, slow, tmp_path):
    cores = [{"cpus": (0, 1), **fast}, {"cpus": (2, 3), **fast}, {"cpus": (4,), **slow}, {"cpus": (5,), **slow}]
    found = topology.read(machine(tmp_path, cores), range(6))
    assert cpus(found.fast_cores) == [(0, 1), (2, 3)]
    assert found.hybrid


def test_intels_own_list_of_efficiency_cores_is_believed(tmp_path):
    """Their clocks are near the others' on some models."""
    cores = [{"cpus": (0,), "khz": 4_500_000}, {"cpus": (1,), "khz": 4_400_000}]
    sys = machine(tmp_path, cores)
    (sys / "devices/cpu_atom").mkdir()
    (sys / "devices/cpu_atom/cpus").write_text("1\n")
    assert cpus(topology.read(sys, range(2)).fast_cores) == [(0,)]
    # Kept to efficiency cores by its mask, a process uses them.
    assert cpus(topology.read(sys, {1}).fast_cores) == [(1,)]


def test_favoured_cores_make_no_hybrid(tmp_path):
    cores = [{"cpus": (0,), "khz": 5_700_000}, {"cpus": (1,), "khz": 5_300_000}]
    assert not topology.read(machine(tmp_path, cores), range(2)).hybrid


def test_parts_keep_to_a_numa_node(tmp_path):
    """Two sockets whose CPUs are numbered in turn."""
    cores = [{"cpus": (n,), "package": n % 2, "node": n % 2} for n in range(8)]
    found = topology.read(machine(tmp_path, cores), range(8))
    assert found.nodes == (0, 1)
    parts = topology.divide(found.cores, 2)
    assert [{core.node for core in part} for part in parts] == [{0}, {1}]


@pytest.mark.parametrize(("count", "parts", "sizes"), [(8, 3, [2, 3, 3]), (2, 2, [1, 1]), (5, 1, [5])])
def test_parts_do_not_overlap_and_leave_nothing(count, parts, sizes, tmp_path):
    cores = topology.read(tmp_path, range(count)).cores
    divided = topology.divide(cores, parts)
    assert [len(part) for part in divided] == sizes
    assert sorted(core.cpus for part in divided for core in part) == [(n,) for n in range(count)]


def test_more_parts_than_cores_share(tmp_path):
    divided = topology.divide(topology.read(tmp_path, range(2)).cores, 3)
    assert [cpus(part) for part in divided] == [[(0,)], [(1,)], [(0,)]]


def test_without_a_tree_every_cpu_is_a_core(tmp_path):
    found = topology.read(tmp_path / "nothing", {0, 3})
    assert cpus(found.fast_cores) == [(0,), (3,)]
    assert (found.smt, found.hybrid, found.nodes) == (False, False, (0,))


def test_this_machine_has_cores():
    found = topology.read()
    assert found.cpus == len(topology.usable_cpus())
    assert 1 <= hardware.compute_threads() <= hardware.n_threads()


@pytest.mark.parametrize(("text", "numbers"), [("0-3,8\n", [0, 1, 2, 3, 8]), ("5", [5]), ("\n", [])])
def test_kernel_lists(text, numbers):
    assert topology.parse_list(text) == numbers
