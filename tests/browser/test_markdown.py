"""serve/api/web/text/markdown.js: Markdown from a model, in a real browser under the page's content policy."""

import json
import re
import time
from html import unescape

import pytest

IN_PAGE = """import('/web/text/markdown.js').then(({ Markdown }) => {
  const place = document.createElement('div');
  document.body.append(place);
  const markdown = new Markdown(place);
  const texts = TEXTS;
  for (const text of texts) markdown.update(text);
  const copy = place.cloneNode(true);
  for (const button of copy.querySelectorAll('button')) button.remove();
  place.remove();
  return copy.innerHTML;
})"""


def render(page, *texts):
    """The HTML of the last text, after the others were shown before it as a stream would."""
    return page.run(IN_PAGE.replace("TEXTS", json.dumps(texts)))


@pytest.fixture(scope="module")
def tab(browser, server):
    from tests.helpers.browser_page import Page

    page = Page(browser)
    page.open(server.url + "/")
    yield page
    page.close()


def code(text, language=""):
    label = f"Code, {language}" if language else "Code"
    head = f'<div class="code-head"><span>{language}</span></div>'
    return f'<div class="code">{head}<pre tabindex="0" aria-label="{label}"><code>{text}</code></pre></div>'


TABLE = '<div class="table" tabindex="0" role="group" aria-label="Table"><table>'
LINK = 'target="_blank" rel="noopener noreferrer nofollow"'


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("one\ntwo\n\nthree", "<p>one\ntwo</p><p>three</p>"),
        ("# A\n### B ##\n#no", "<h1>A</h1><h3>B</h3><p>#no</p>"),
        (
            "a **b** *c* _d_ ~~e~~ `f*g*`",
            "<p>a <strong>b</strong> <em>c</em> <em>d</em> <s>e</s> <code>f*g*</code></p>",
        ),
        ("***a*** **b *c***", "<p><em><strong>a</strong></em> <strong>b <em>c</em></strong></p>"),
        ("a_b_c 2 * 3 * 4 \\*x\\*", "<p>a_b_c 2 * 3 * 4 *x*</p>"),
        ("``a ` b``", "<p><code>a ` b</code></p>"),
        ("```other\nx = 1\n\n# no\n```\nafter", code("x = 1\n\n# no", "other") + "<p>after</p>"),
        (
            "```py\nx = 1  # <b>\n```",
            code(
                'x = <span class="hljs-number">1</span>  <span class="hljs-comment"># &lt;b&gt;</span>',
                "py",
            ),
        ),
        ("~~~\n```\n~~~", code("```")),
        ("````\n```\n````", code("```")),
        (
            "- a\n- b\n  - c\n- d",
            "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>",
        ),
        ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
        (
            "1. a\n\n   ```\n   x\n     y\n   ```\n2. b",
            f"<ol><li><p>a</p>{code(f'x{chr(10)}  y')}</li><li><p>b</p></li></ol>",
        ),
        ("> a\n> > b\n\nc", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>"),
        ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
        (
            "| a | b |\n|---|--:|\n| **1** | 2\\|3 |\n\nend",
            f'{TABLE}<thead><tr><th>a</th><th class="right">b</th></tr></thead>'
            '<tbody><tr><td><strong>1</strong></td><td class="right">2|3</td></tr></tbody></table></div>'
            "<p>end</p>",
        ),
        ("[a *b*](https://x.org/y_(z))", f'<p><a href="https://x.org/y_(z)" {LINK}>a <em>b</em></a></p>'),
        ("see https://x.org/a, or", f'<p>see <a href="https://x.org/a" {LINK}>https://x.org/a</a>, or</p>'),
        ("[a][1]\n\n[1]: https://x.org/", f'<p><a href="https://x.org/" {LINK}>a</a></p>'),
        ("[![a](https://x.org/p)](https://x.org/)", f'<p><a href="https://x.org/" {LINK}>image: a</a></p>'),
        ("a  \nb", "<p>a<br>b</p>"),
    ],
)
def test_the_elements(tab, text, html):
    assert render(tab, text) == html


@pytest.mark.parametrize(
    "text",
    [
        "<script>window.hacked = 1</script>",
        "<img src=x onerror='window.hacked = 1'>",
        "<svg/onload=window.hacked=1><style>*{display:none}</style><iframe srcdoc='<script>top.hacked=1</script>'>",
        "[x](javascript:window.hacked=1)",
        "[x](JaVaScRiPt:window.hacked=1)",
        "[x](\x01javascript:window.hacked=1)",
        "[x](java\tscript:window.hacked=1)",
        "[x](data:text/html,<script>window.hacked=1</script>)",
        "[x](vbscript:x) [y](blob:x) [z](file:///etc/passwd)",
        "[x](//evil.example) [y](/web/app.js) [z](#top)",
        '[x](https://x.org" onmouseover="window.hacked=1)',
        "[x](https://x.org'onmouseover='window.hacked=1)",
        "![x](javascript:window.hacked=1)",
        "![x](https://evil.example/pixel.png)",
        "<https://x.org/<script>>",
        '```"><script>window.hacked=1</script>\n</code></pre><script>window.hacked=1</script>\n```',
        "`</code><script>window.hacked=1</script>`",
        "| <b>a</b> |\n|---|\n| <img src=x onerror=window.hacked=1> |",
        "# <b>x</b>\n- <b>x</b>\n> <b>x</b>\n\n**<b>x</b>**",
        "&lt;script&gt; &#106;avascript: [x](&#106;avascript:window.hacked=1)",
    ],
)
def test_nothing_but_harmless_elements(tab, text):
    tab.errors.clear()
    tab.requests.clear()
    allowed = "p h1 h2 h3 h4 h5 h6 ul ol li blockquote hr div span pre code em strong s a table thead tbody tr th td"
    found = tab.run(
        """import('/web/text/markdown.js').then(async ({ Markdown }) => {
          const place = document.createElement('div');
          document.body.append(place);
          new Markdown(place).update(TEXT);
          await new Promise((done) => setTimeout(done, 50));
          const all = [...place.querySelectorAll('*')].filter((each) => !each.closest('button'));
          const found = {
            tags: all.map((each) => each.localName),
            attributes: all.flatMap((each) => each.getAttributeNames()),
            links: [...place.querySelectorAll('a')].map((each) => each.href),
            text: place.textContent, hacked: window.hacked ?? null,
          };
          place.remove();
          return found;
        })""".replace("TEXT", json.dumps(text))
    )
    assert set(found["tags"]) <= set(allowed.split())
    assert set(found["attributes"]) <= {
        *("class", "href", "target", "rel", "tabindex", "role", "aria-label", "start", "type"),
    }
    assert all(link.startswith(("https://", "http://", "mailto:")) for link in found["links"]), found["links"]
    assert found["hacked"] is None
    assert tab.errors == []
    assert tab.requests == []
    if "<" in text:
        assert "<" in found["text"], "the text itself is lost"


@pytest.mark.parametrize(
    "text",
    [
        "a" * 300_000,
        "word " * 60_000,
        "*" * 200_000,
        "*a " * 60_000,
        "**a _b " * 30_000,
        "`" * 100_000 + "a",
        "` `` ``` " * 20_000,
        "[" * 200_000,
        "![" * 100_000,
        "[a](" * 50_000,
        "[a](b" + " " * 200_000,
        "http://" * 30_000,
        ">" * 20_000,
        "> " * 20_000 + "a",
        "- " * 50_000,
        "\n".join("  " * n + "- a" for n in range(1500)),
        "#" * 200_000,
        "# " + " #" * 100_000,
        "|" * 100_000 + "\n" + "|-" * 50_000,
        "- - - -" * 30_000 + "x",
        "\n" * 200_000,
        "- a\n\n\n" * 30_000,
        "```\n" * 40_000,
        "\\" * 200_000,
        "- a\n" * 40_000,
        "*a* " * 150_000,
        "| a |\n|---|\n" + "| b |\n" * 40_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_long_texts_take_no_longer_than_their_length(tab, text):
    began = time.monotonic()
    html = render(tab, text)
    took = time.monotonic() - began
    assert html or not text.strip()
    if took > 5:  # a busy machine: then the growth counts, which would be 16 where it is quadratic
        began = time.monotonic()
        render(tab, text[: len(text) // 4])
        assert took < 12 * (time.monotonic() - began)


def test_a_text_that_arrives_in_pieces_ends_like_the_whole(tab):
    """All beginnings are shown one after the other: none fails, and the last one is the whole text's."""
    text = (
        "# Title\n\nSome *em* and **strong [link](https://x.org)** text.\n\n- one\n- two\n  1. `a`\n\n"
        "> quote\n\n```python\nprint('<b>')\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nEnd \U0001f98a.\n\n```\nno end"
    )
    assert render(tab, *[text[:n] for n in range(1, len(text) + 1)]) == render(tab, text)
    assert render(tab, text, text[:40]) == render(tab, text[:40])
    assert "<pre" in render(tab, "```\nno end")
    assert tab.errors == []


def test_blocks_that_have_not_changed_stay(tab):
    """What is selected or has the focus in an earlier block is not replaced while the reply goes on."""
    kept = tab.run(
        """import('/web/text/markdown.js').then(({ Markdown }) => {
          const markdown = new Markdown(document.createElement('div'));
          markdown.update('one\\n\\n```\\nx\\n```\\n\\ntwo');
          const before = [...markdown.place.children];
          markdown.update('one\\n\\n```\\nx\\n```\\n\\ntwo and more\\n\\nthree');
          return [...markdown.place.children].map((each) => before.includes(each));
        })"""
    )
    assert kept == [True, True, False, False]


def test_json_is_shown_as_code(tab):
    html = render(tab, '{"a": "*b*"}')
    assert 'aria-label="Code, json"' in html
    assert "<em>" not in html
    assert re.sub("<[^>]*>", "", html) == 'json{"a": "*b*"}'


@pytest.mark.parametrize(
    ("text", "n_inline", "n_block", "shown"),
    [
        ("Euler: $e^{i\\pi}+1=0$.", 1, 0, "Euler: "),
        ("\\(a\\) and \\[b\\]", 1, 1, " and "),
        ("$$\n\\frac{a}{b}\n$$\n\nafter", 0, 1, "after"),
        ("\\[\nx^2\n\\]", 0, 1, ""),
        ("$$x$$", 0, 1, ""),
        ("- item\n\n  $$\n  x\n  $$", 0, 1, "item"),
        ("It costs $5 and $10, or $ 3 $.", 0, 0, "It costs $5 and $10, or $ 3 $."),
        ("`$a$` and \\$a\\$", 0, 0, "$a$ and $a$"),
        ("```\n$a$\n```", 0, 0, "$a$"),
        ("$$\nnever closed", 0, 0, "$$\nnever closed"),
        ("$\\frac{$", 1, 0, "\\frac{"),
    ],
)
def test_formulas(tab, text, n_inline, n_block, shown):
    tab.errors.clear()
    html = render(tab, text)
    assert html.count('class="formula"') == n_inline
    assert html.count('class="formula block"') == n_block
    assert shown in re.sub("<[^>]*>", "", html)
    assert ("katex-mathml" in html) == (n_inline + n_block > 0 and "<code>" not in html), "screen readers get MathML"
    assert tab.errors == [], "the policy lets it be drawn as KaTeX means it"


@pytest.mark.parametrize(
    "source",
    [
        "\\href{javascript:window.hacked=1}{x}",
        "\\url{javascript:window.hacked=1}",
        "\\includegraphics{https://evil.example/pixel.png}",
        "\\htmlStyle{position:fixed;inset:0}{x}",
        "\\htmlClass{panel}{x}\\htmlId{prompt}{y}\\htmlData{a=b}{z}",
        "\\text{<img src=x onerror=window.hacked=1>}",
        "\\def\\a{\\a\\a}\\a",
        "{" * 3000,
        "\\rule{99999em}{99999em}",
        "\\pmb{x} \\fcolorbox{red}{blue}{y} \\overbrace{abc}^{d} \\cancel{x}",
    ],
    ids=lambda text: text[:14],
)
def test_a_hostile_formula_is_harmless(tab, source):
    tab.errors.clear()
    tab.requests.clear()
    found = tab.run(
        """import('/web/text/markdown.js').then(async ({ Markdown }) => {
          const place = document.createElement('div');
          document.body.append(place);
          new Markdown(place).update(TEXT);
          await new Promise((done) => setTimeout(done, 30));
          const all = [...place.querySelectorAll('*')];
          const found = {
            tags: all.map((each) => each.localName),
            attributes: all.flatMap((each) => each.getAttributeNames()),
            classes: all.flatMap((each) => [...each.classList]),
            positions: all.map((each) => getComputedStyle(each).position),
          };
          place.remove();
          return found;
        })""".replace("TEXT", json.dumps(f"a ${source}$ b"))
    )
    assert not {"a", "img", "script", "iframe", "input"} & set(found["tags"])
    assert not [
        each for each in found["attributes"] if each in ("id", "src", "href") or each.startswith(("on", "data-"))
    ]
    assert "panel" not in found["classes"]
    assert "fixed" not in found["positions"]
    assert tab.run("window.hacked ?? null") is None
    assert tab.errors == []
    assert all("/web/vendor/katex/fonts/" in url for url in tab.requested())


def test_code_has_colours_and_its_own_text(tab):
    code = "def f(x: int) -> str:\n    return f'{x}' + \"</code><script>window.hacked=1</script>\"  # <b>\n"
    sources = {"python": code, "html": "<script>let a = 1;</script>", "js": "const a = `${1}`;", "nothing": code}
    for language, source in sources.items():
        html = render(tab, f"```{language}\n{source}\n```")
        shown = unescape(re.sub("<[^>]*>", "", html.partition("<code>")[2]))
        assert shown == source
        assert ("hljs-" in html) == (language != "nothing")
    assert tab.errors == []
