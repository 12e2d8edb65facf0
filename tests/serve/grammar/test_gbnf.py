"""GBNF in Lark: the same texts fit."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slm.serve.grammar.errors import GrammarError
from slm.serve.grammar.forms import of_grammar
from slm.serve.grammar.gbnf import MAX_BYTES
from tests.helpers.fits import fits

ARITHMETIC = r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        ('root ::= "a"', ["a"], ["", "b", "aa"]),
        ('root ::= "yes" | "no" # a comment\n', ["yes", "no"], ["ye", "yesno"]),
        ('root ::= item+\nitem ::= [a-z]{2,5} ","\n', ["ab,", "abcde,xy,"], ["a,", "abcdef,"]),
        ('root ::= (\n  "a" |\n  "b"\n)*', ["", "abba"], ["c"]),
        ('root ::= "(" root ")" | "x"', ["x", "((x))"], ["((x)", "()"]),
        ('root ::= [^"\\\\\\x01-\\x1F] . "\\u00e9\\U0001F642\\n\\"\\]"', ['x\né🙂\n"]'], ['"yé🙂\n"]']),
        ('root ::= [-a^\\]] [a-] ["]{0,3} "" x?\nx ::= "x" | ', ['--""x', "]a"], ["b-", '--""""']),
        ('\r\n# first\r\nroot ::= a-b\r\na-b ::= "q"{3} "r"{2,}\r\n', ["qqqrr", "qqqrrrr"], ["qqrr"]),
        ('root ::= "/" [/] [\\[]', ["//["], ["//"]),
        # A lexer that takes the longest lexeme would miss these.
        ('root ::= [a-z]* "b"', ["b", "aab", "bbb"], ["a"]),
        ('root ::= ("a" | "ab") x\nx ::= "b" | "(" x ")"', ["ab", "abb", "ab(b)"], ["a"]),
        (ARITHMETIC, ["a=1\n", "(x +2)*y = 3\nb=c \n"], ["a=1", "1+=2\n"]),
        ('root ::= root "x" | "x"', ["x", "xxx"], ["", "y"]),
        ('root ::= ("a"*)*', ["", "aaa"], ["b"]),
    ],
)
def test_the_same_texts_fit(text, good, bad):
    grammar = of_grammar(text).text
    assert [each for each in good if not fits(grammar, each)] == []
    assert [each for each in bad if fits(grammar, each)] == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no rule named root"),
        ("nonsense", "'::=' is missing"),
        ('begin ::= "a"', "no rule named root"),
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
        ('root ::= "a"{9999999}', "more than 50000"),
        ('root ::= "a"**', "repetition of a repetition"),
        ('root ::= "a" root', "never come to an end"),
        ("root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000, "longer than"),
        ("root ::= " + "(" * 1000 + '"a"' + ")" * 1000, "nested more than"),
        ('root ::= "' + "a" * MAX_BYTES + '"', "longer than"),
        ("".join(f'r{i} ::= "x"\n' for i in range(4100)), "more than 4000 rules"),
    ],
)
def test_bad_grammars_are_refused(text, why):
    with pytest.raises(GrammarError, match=re.escape(why)):
        of_grammar(text)


def test_a_long_chain_of_rules_ends_no_process():
    chain = "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(2000)) + 'r2000 ::= "z"'
    assert fits(of_grammar(chain).text, "z")
    assert fits(of_grammar(chain + ' r0 | "z"').text, "zz")


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet='root:=|()[]{}*+?".^-\\nx0123 ,#\n', max_size=60))
def test_any_text_is_translated_or_refused(text):
    try:
        made = of_grammar("root ::= " + text)
    except GrammarError:
        return
    assert made.text
