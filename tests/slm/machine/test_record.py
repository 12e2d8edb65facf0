"""The record of the machine that goes with every measurement."""

import json
from importlib import metadata

import psutil

from slm.machine.hardware import n_threads
from slm.machine.record import cpu_name, machine_record


def test_it_names_the_processor_the_cores_the_memory_and_the_versions():
    record = json.loads(json.dumps(machine_record()))
    assert set(record) == {"cpu", "cores", "memory_gib", "system", "python", "versions"}
    assert record["cpu"] == cpu_name()
    assert record["cpu"]
    assert record["cores"] == n_threads()
    assert record["memory_gib"] == round(psutil.virtual_memory().total / 2**30, 1)
    assert record["versions"]["torch"] == metadata.version("torch")
