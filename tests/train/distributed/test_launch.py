"""The launcher's options and torchrun's. Whole runs: tests/train/test_distributed.py."""

import pytest

from slm.data.errors import UserError
from slm.train.distributed import launch


def test_the_launchers_words_are_its_own_and_the_rest_is_trainings():
    config, rest = launch.parse(["nproc=4", "preset=10m", "restarts=0", "name=x"])
    assert (config.nproc, config.restarts, rest) == (4, 0, ["preset=10m", "name=x"])
    assert "--standalone" in launch.torchrun_options(config, "x")
    with pytest.raises(UserError, match="no other machine reaches it"):
        launch.main(["nnodes=2", "main=127.0.0.1", "preset=tiny", "train.grad_accum=2"])
    with pytest.raises(UserError, match="several machines need main=HOST"):
        launch.parse(["nnodes=2"])
    with pytest.raises(UserError, match="whole number"):
        launch.parse(["nproc=two"])


def test_several_machines_meet_at_the_named_one():
    config, _ = launch.parse(["nnodes=2", "main=127.0.0.1:4321"])
    options = launch.torchrun_options(config, "mine")
    assert options[options.index("--rdzv-endpoint") + 1] == "127.0.0.1:4321"
    assert options[options.index("--local-addr") + 1] == "127.0.0.1"
    assert options[options.index("--rdzv-conf") + 1] == "is_host=true,join_timeout=900"  # it is this machine
    assert launch.is_here("127.0.0.1")


@pytest.mark.parametrize("main", ["192.168..1.10", "no-such-host.invalid", "127.0.0.1:294000", "127.0.0.1:x"])
def test_an_address_that_is_none_is_one_line(main):
    config, _ = launch.parse(["nnodes=2", f"main={main}"])
    with pytest.raises(UserError, match=f"main={main.partition(':')[0]}"):
        launch.torchrun_options(config, "mine")
