import pytest

from slm.llama.context import Batch
from slm.llama.errors import LlamaError
from slm.llama.sampler import Sampler


def _generate(model, context, sampler, n=12):
    context.clear()
    ids = model.tokenize("once upon a time", add_special=False, parse_special=False)
    batch = Batch(64)
    i = batch.extend(ids, 0, 0, True)
    out = []
    for step in range(n):
        context.decode(batch)
        out.append(sampler.sample(context, i))
        batch.clear()
        i = batch.add(out[-1], len(ids) + step, 0, True)
    sampler.close()
    return out


def test_greedy_is_argmax_and_seeds_repeat(model, context):
    greedy = _generate(model, context, Sampler(model).greedy())
    top1 = _generate(model, context, Sampler(model).top_k(1).dist(3))
    assert greedy == top1

    def warm(seed):
        return _generate(model, context, Sampler(model).top_k(50).temperature(1.5).dist(seed))

    assert warm(1) == warm(1)
    assert warm(1) != warm(2)


def test_logit_bias_forces_and_bans(model, context):
    greedy = _generate(model, context, Sampler(model).greedy(), 1)[0]
    assert _generate(model, context, Sampler(model).logit_bias({65: 1e6}).greedy(), 4) == [65] * 4
    banned = _generate(model, context, Sampler(model).logit_bias({greedy: -float("inf")}).greedy(), 1)
    assert banned != [greedy]


def test_penalties_stop_a_repetition(model, context):
    chain = Sampler(model).logit_bias({65: 20.0, 66: 18.0})
    chain.penalties(last_n=64, repeat=1.0, frequency=0.0, presence=50.0).greedy()
    assert _generate(model, context, chain, 2) == [65, 66]


def test_grammar_constrains_and_bad_ones_are_refused(model, context):
    chain = Sampler(model).grammar('root ::= "yes" | "no"').greedy()
    out = _generate(model, context, chain, 1)
    assert model.token_to_piece(out[0])[:1] in (b"y", b"n")
    for bad in ("root ::= (", "nonsense", "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000, ""):
        chain = Sampler(model)
        with pytest.raises(LlamaError):
            chain.grammar(bad)
        chain.close()


def test_a_grammar_applies_first_whatever_the_order_and_ends_the_text(model, context):
    for chain in (Sampler(model).grammar('root ::= "xy" "z"?'), Sampler(model)):
        chain.logit_bias({65: 50.0}).top_k(3).temperature(1.0)
        if chain._grammar is None:
            chain.grammar('root ::= "xy" "z"?')
        out = _generate(model, context, chain.dist(1), 3)
        text = b"".join(model.token_to_piece(token) for token in out)
        assert text in (b"xyz", b"xy")
        assert model.is_eog(out[2]) or text == b"xyz"


@pytest.mark.parametrize("value", [float("nan"), -1.0, 2.0, float("inf")])
def test_sampler_numbers_are_checked(model, value):
    chain = Sampler(model)
    for link in (chain.top_p, chain.min_p, chain.typical):
        with pytest.raises(LlamaError):
            link(value)
    with pytest.raises(LlamaError):
        chain.temperature(float("nan"))
    with pytest.raises(LlamaError):
        chain.logit_bias({model.n_vocab: 1.0})
    chain.close()
