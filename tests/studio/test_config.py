"""Options that cannot be are one line."""

import pytest

from slm.data.errors import UserError
from slm.studio.config import StudioConfig


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("box", False)]
)
def test_which_hosts_only_this_machine_can_open(host, local):
    assert StudioConfig(host=host, password="x").is_local is local


@pytest.mark.parametrize(("wrong", "why"), [({"port": 70000}, "port"), ({"upload_gb": 0.0}, "upload_gb")])
def test_what_cannot_be(wrong, why):
    with pytest.raises(UserError, match=why):
        StudioConfig(**wrong)
