"""The network interface of a rank. Whole runs: tests/train/test_distributed.py."""

import socket

from slm.train.distributed.join import interface_towards


def test_the_interface_of_an_address_is_found():
    assert interface_towards("127.0.0.1") in {name for _, name in socket.if_nameindex()}
    assert interface_towards("no such host.invalid") is None
