"""The doctor's record of a machine as rows of tables: what was found, and what the stages will use of it.

Tested in tests/slm/test_doctor.py.
"""

from typing import Any

from slm.kernels import roofline
from slm.llama.speed.kept import STANDARD_TYPES
from slm.llama.speed.workload import USUAL


def machine_rows(record: dict[str, Any]) -> list[list[str]]:
    """What was found, for people."""
    cores = f"{record['cores']} cores, {record['cpus']} logical CPUs"
    if record["hybrid"]:
        cores += f", {record['fast_cores']} of them performance cores"
    if record["numa_nodes"] > 1:
        cores += f", {record['numa_nodes']} NUMA nodes"
    if record["cpu_quota"]:
        cores += f"; a quota of {record['cpu_quota']:.1f} CPUs"
    rows = [
        ["processor", record["cpu"]],
        ["usable", cores],
        ["instruction sets", " ".join(record["isa"]) or "unknown"],
        ["memory", f"{record['memory_gib']} GiB, {record['memory_available_gib']} GiB available"],
        ["memory bandwidth", _bandwidth(record)],
    ]
    limits = record.get("roofline") or {}
    rows += roofline.peak_rows(limits.get("register_peak_gflops", {}))
    for dtype, rates in record["gemm_gflops"].items():
        rows.append([f"matrix products, {dtype}", roofline.listed(rates)])
    if step := record.get("training_step"):
        rows.append(["training step", _step(step, record["precision"])])
    disk = (
        "not writable" if record["disk_mb_per_s"] is None else f"{record['disk_mb_per_s']:,} MB/s written and flushed"
    )
    versions = record["versions"]
    rows += [
        ["allocator", f"{record['allocator']}, huge pages: {record['huge_pages'] or 'none'}"],
        [f"disk of {record['runs_dir']}", f"{disk}, {record['disk_free_gib']:,} GiB free"],
        ["C++ compiler", record["compiler"] or "none"],
        ["torch.compile", _inductor(record)],
        ["llama.cpp built with", " ".join(record["llama_cpp"]) if record["llama_cpp"] else "cannot be loaded"],
        ["llama.cpp self-check", _llama_check(record["llama_cpp_check"])],
        ["decoding by type", _decoding(record.get("decode_tok_s"))],
        ["Python, system", f"{record['python']}, {record['system']}"],
        ["packages", ", ".join(f"{name} {version}" for name, version in versions.items() if version)],
    ]
    return rows


def _bandwidth(record: dict[str, Any]) -> str:
    copied = f"{record['memory_gb_per_s']} GB/s copied (read and written)"
    limits = record.get("roofline")
    return f"{limits['memory_read_gb_per_s']:.1f} GB/s read, {copied}" if limits else copied


def _step(step: dict[str, Any], precision: str) -> str:
    of = f"{step['gemm_peak_fraction']:.2f} of the {precision} matrix product"
    if step["register_peak_fraction"]:
        of += f", {step['register_peak_fraction']:.2f} of the register peak"
    return f"{step['gflops']:,.0f} GFLOP/s forward and backward, a small model: {of}"


def _decoding(rates: dict[str, float] | None) -> str:
    if not rates:
        return "not measured"
    fastest_first = sorted(rates, key=lambda kind: -rates[kind])
    listed = ", ".join(f"{kind} {rates[kind]:,.0f}" for kind in fastest_first)
    return f"{listed} (tokens/s of 50M weights, one sequence behind {USUAL.prompt} tokens)"


def _llama_check(check: dict[str, Any]) -> str:
    if check["unknown"]:
        return f"unknown: {check['unknown']}"
    return check["fault"] or f"computes right in {', '.join(check['works'])}"


def _inductor(record: dict[str, Any]) -> str:
    trial = record["inductor"]
    if trial is None:
        return "not tried"
    if trial["works"]:
        return f"works ({trial['seconds']:.1f} s for one line of code, nothing cached)"
    return f"{'unknown' if trial['works'] is None else 'fails'}: {trial['reason']}"


def choice_rows(record: dict[str, Any]) -> list[list[str]]:
    """What the stages will do here by default (train/environment.py decides the same way)."""
    threads = record["threads"]
    own = f"own kernels for {record['kernel_variant']}"
    how = own if uses_kernels(record) else "torch.compile" if compiles(record) else "uncompiled"
    cache = record["kernel_cache"] if uses_kernels(record) else record["compile_cache"]
    rows = [["train", f"{threads['train']} threads, {record['precision']}, {how}"]]
    if how != "uncompiled":
        rows.append(["", f"compiled code is kept in {cache}"])
    if record["kernels"]:
        rows.append(["", f"slm's kernels are not used: {record['kernels']}"])
    elif record.get("kernel_faults"):
        rows.append(["", f"faster kernels are left out: {record['kernel_faults']}"])
    return [
        *rows,
        ["export", f"{threads['export']} threads" + _fastest_type(record.get("decode_tok_s"))],
        ["serve", f"{threads['serve']} threads"],
    ]


def _fastest_type(rates: dict[str, float] | None) -> str:
    """What this machine likes; speeds within 5 % are about equal, and then the type of more bits is the better one."""
    if not rates:
        return ""
    equal = [kind for kind in rates if rates[kind] >= 0.95 * max(rates.values())]
    best = max(equal, key=STANDARD_TYPES.index)
    return f"; {best} decodes fastest here (quant=auto chooses by this machine's speeds)"


def uses_kernels(record: dict[str, Any]) -> bool:
    """Whether training will use the kernels of slm/kernels here."""
    return record["kernels"] is None


def compiles(record: dict[str, Any]) -> bool:
    """Whether training will be compiled here, as far as is known."""
    trial = record["inductor"]
    return record["compiler"] is not None and (trial is None or trial["works"] is not False)
