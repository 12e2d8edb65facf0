import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slm.llama.model import Model
from slm.llama.sampler import Sampler
from slm.serve.grammar.gbnf import check
from slm.serve.grammar.tree import MAX_BYTES, GrammarError, quote


@pytest.fixture(scope="module")
def model(tiny_path):
    with Model(tiny_path) as model:
        yield model


GOOD = [
    'root ::= "a"',
    'root ::= "yes" | "no" # a comment\n',
    'root ::= item+\nitem ::= [a-z]{2,5} ","\n',
    'root ::= (\n  "a" |\n  "b"\n)*',
    'root ::= "(" root ")" | "x"',
    'root ::= [^"\\\\\\x01-\\x1F] . "\\u00e9\\U0001F642\\n\\"\\]"',
    'root ::= [-a^\\]] [a-] ["]{0,3} "" x?\nx ::= "x" | ',
    '\r\n# first\r\nroot ::= a-b\r\na-b ::= "q"{3} "r"{2,}\r\n',
]


@pytest.mark.parametrize("text", GOOD)
def test_good_grammars_are_kept_and_llama_cpp_takes_them(text, model):
    canonical = check(text)
    assert check(canonical) == canonical
    Sampler(model).grammar(canonical).greedy().close()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no rule named root"),
        ("nonsense", "'::=' is missing"),
        ('start ::= "a"', "no rule named root"),
        ("root ::= (", "is missing"),
        ('root ::= "a', "closing quote"),
        ("root ::= [a", "closing bracket"),
        ("root ::= []", "empty set"),
        ("root ::= [z-a]", "backwards"),
        ("root ::= other", "not defined"),
        ('root ::= "a"\nroot ::= "b"', "twice"),
        ('root ::= "a" )', "end of its line"),
        ('root ::= "\\q"', "unknown escape"),
        ('root ::= "\\x0"', "hexadecimal"),
        ('root ::= "\\x00"', "NUL"),
        ('root ::= "\\ud800"', "half characters"),
        ("root ::= <|im_end|>", "tokens are not supported"),
        ('root ::= "a"{5,2}', "at least 5 and at most 2"),
        ('root ::= "a"{9999999}', "more than 1000"),
        ('root ::= "a"**', "repetition of a repetition"),
        ('root ::= root "x" | "x"', "on the left"),
        ('root ::= a root "x" | "y"\na ::= b\nb ::= ""', "on the left"),  # llama.cpp fills the memory
        ('root ::= ("a"*)*', "may be empty"),
        ('root ::= "a" root', "never come to an end"),
        ("root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000, "longer than"),
        ("root ::= " + "(" * 1000 + '"a"' + ")" * 1000, "nested more than"),
        ('root ::= "' + "a" * MAX_BYTES + '"', "longer than"),
        ('root ::= "' + "abcdefgh" * 20 + '"{1000}', "elements"),
        # Two stacks at the first level, 2^30 at the last: llama.cpp never comes back.
        (
            "root ::= r0\n" + "".join(f'r{i} ::= r{i + 1} "x" | r{i + 1} "y"\n' for i in range(30)) + 'r30 ::= "z"',
            "ways",
        ),
    ],
)
def test_bad_grammars_are_refused_quickly(text, why):
    began = time.perf_counter()
    with pytest.raises(GrammarError, match=re.escape(why)):
        check(text)
    assert time.perf_counter() - began < 1


def test_a_long_chain_of_rules(model):
    text = "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(2000)) + 'r2000 ::= "z"'
    Sampler(model).grammar(check(text)).close()
    with pytest.raises(GrammarError, match="more than 4000 rules"):
        check("".join(f'r{i} ::= "x"\n' for i in range(4100)))


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet='root:=|()[]{}*+?".^-\\nx0123 ,#\n', max_size=60))
def test_any_text_is_checked_or_refused(text):
    try:
        canonical = check("root ::= " + text)
    except GrammarError:
        return
    assert check(canonical) == canonical


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20))
def test_any_text_can_be_quoted(text):
    check(f"root ::= {quote(text)}")


def test_parentheses_in_texts_are_no_nesting(model):
    Sampler(model).grammar(check('root ::= "' + "(" * 500 + '" [(] [^(]')).close()
