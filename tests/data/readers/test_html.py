import json

import pytest

from slm.data.bad_records import BadRecordError
from slm.data.readers import html, notebook

PAGE = """<!doctype html><html><head><title>t</title><script>bad()</script></head><body>
<nav><ul><li><a href="/">Home</a><ul><li>Deep menu</li></ul></li></ul></nav>
<div class="sphinxsidebar"><p>Sidebar</p></div>
<main><h1>Ownership<a class="headerlink" href="#x">¶</a></h1>
<p>A value has one <b>owner</b>; see<sup>1</sup> the <a href="http://example.com/">book</a>.&nbsp;It is
dropped then. <img src="http://example.com/x.png" alt="An image"></p>
<table><tr><th>kind</th><th>size</th></tr><tr><td>u8</td><td>1</td></tr></table>
<ol><li>first</li><li>second<ul><li>inside</li></ul></li></ol>
<pre><code class="language-py">def f(x):
    if x:

        return 1 &lt; 2
</code></pre></main><footer>Imprint</footer></body></html>"""


def test_main_text_without_menus_scripts_and_addresses():
    found = html.text(PAGE.encode())
    for gone in ("Home", "Deep menu", "Sidebar", "Imprint", "bad()", "¶", "example.com", "An image"):
        assert gone not in found
    assert found.startswith("Ownership\n\nA value has one owner; see1 the book. It is dropped then.")
    assert "def f(x):\n    if x:\n\n        return 1 < 2" in found  # code keeps its lines
    rows = [line.split() for line in found.splitlines() if "\t" in line]
    assert rows == [["kind", "size"], ["u8", "1"]]
    items = [line.strip() for line in found.splitlines()]
    assert [items.index(each) for each in ("1. first", "2. second", "• inside")] == sorted(
        items.index(each) for each in ("1. first", "2. second", "• inside")
    )


def test_a_page_that_marks_no_main_text():
    paragraphs = "".join(f"<p>Sentence number {i} of the article is long enough to be text.</p>" for i in range(20))
    page = (
        f"<body><div id='menu'><a href='/'>Start</a></div><div class='nav'><a>x</a></div><div>{paragraphs}</div></body>"
    )
    found = html.text(page.encode())
    assert "Sentence number 19" in found
    assert html.text(b"<ul><li><a href=a>One</a></li><li><a href=b>Two</a></li></ul>").split() == [
        "•",
        "One",
        "•",
        "Two",
    ]


@pytest.mark.parametrize(
    ("text", "encoding", "meta"),
    [
        ("naïve — “quotes” at the café", "cp1252", '<meta charset="windows-1252">'),
        (
            "Привет, мир: так выглядит текст",
            "koi8-r",
            '<meta http-equiv="Content-Type" content="text/html; charset=koi8-r">',
        ),
        ("日本語の文章です。", "shift_jis", "<meta charset=shift_jis>"),
        ("Grüße aus Köln, schöne Straße", "utf-8", ""),
        ("Grüße aus Köln, schöne Straße", "utf-16", ""),
        ("Grüße aus Köln, schöne Straße und viele Wörter", "utf-16-le", ""),
        ("Größe, Maß und schöne Wörter überall", "latin-1", ""),
    ],
)
def test_encodings(text, encoding, meta):
    page = f"<html><head>{meta}</head><body><main><p>{text}</p></main></body></html>"
    assert html.text(page.encode(encoding)) == text


def test_broken_markup_is_read_as_browsers_do():
    assert html.text(b"<p>one<p>two <b>bold</p></div></div><p>three").split() == ["one", "two", "bold", "three"]
    assert html.text(b"") == ""


def test_nothing_is_fetched_or_expanded(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("SECRET")
    page = f"""<!DOCTYPE html [<!ENTITY x SYSTEM "file://{secret}">]><body><main>a &x; b
    <iframe src="file://{secret}"></iframe><object data="file://{secret}"></object></main></body>"""
    assert "SECRET" not in html.text(page.encode())


def test_notebook():
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "Text"]},
        {"cell_type": "code", "source": "print(1)", "outputs": [{"text": "1"}]},
        {"cell_type": "code", "source": []},
    ]
    book = {"cells": cells, "metadata": {"kernelspec": {"language": "python"}}, "nbformat": 4}
    assert notebook.text(json.dumps(book).encode()) == "# Title\nText\n\n```python\nprint(1)\n```"
    for bad in (b"{", b'{"worksheets": []}', b"[]"):
        with pytest.raises(BadRecordError, match="notebook"):
            notebook.text(bad)
