from slm.serve.engine.config import EngineConfig
from slm.serve.engine.model_runner import ModelRunner
from slm.serve.engine.spec_decode.step_cost import measure_step_cost


def test_the_cost_is_measured(tiny_path):
    runner = ModelRunner(EngineConfig(model_path=tiny_path, threads=1, kv_type="f32", flash_attn=False))
    cost = measure_step_cost(runner.context, runner.batch)
    assert 0 < cost(1) < cost(32)
    assert cost(64) > cost(32)
    runner.close()
