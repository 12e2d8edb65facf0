from slm.llama.speed import trial
from slm.llama.speed.kept import Shape
from slm.llama.speed.timing import Decoder, file_rate, time_file
from slm.llama.speed.workload import USUAL, Workload

SHAPE = Shape(n_layers=1, d_model=256, n_heads=4, n_kv_heads=2, head_dim=64, ffn_dim=256, vocab_size=64)


def test_a_workload_is_cut_to_the_models_context():
    assert USUAL.within(8_192) == USUAL == Workload(prompt=512, tokens=64)
    assert USUAL.within(128) == Workload(prompt=64, tokens=64)
    assert USUAL.within(100) == Workload(prompt=50, tokens=50)
    assert USUAL.spelled(1) == "one sequence behind a prompt of 512 tokens, 1 thread"


def test_tokens_are_timed_behind_the_prompt(tmp_path):
    path, short = trial.write_model(tmp_path / "m.gguf", SHAPE, "q8_0"), Workload(prompt=40, tokens=6)
    with Decoder(path, short, 1) as decoder:
        decoder.decode()  # without a prompt in the cache it is computed first
        assert decoder.context.seq_pos_max(0) == 45
        assert decoder.decode(2) > 0
        assert decoder.context.seq_pos_max(0) == 41
        state = decoder.context.seq_state(0)
    with Decoder(path, short, 1) as other:
        other.context.set_seq_state(0, state)
        assert other.context.seq_pos_max(0) == 41
    prefill_s, decode_s = time_file(path, short, 1)
    assert 0 < prefill_s < 10
    assert 0 < decode_s < 10
    assert file_rate(path, short, 1) > 10


def test_a_longer_prompt_takes_longer_and_slows_decoding(tmp_path):
    """Attention reads all that is in the cache: so a speed without a depth says nothing."""
    path = trial.write_model(tmp_path / "m.gguf", SHAPE, "q8_0")
    near, far = (time_file(path, Workload(prompt=prompt, tokens=16), 1) for prompt in (8, 512))
    assert far[0] > 4 * near[0]
    assert far[1] > 1.1 * near[1]
