"""What a model writes becomes text and a few harmless elements, whatever it is."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.browser.conftest import ToldEngine
from tests.browser.page import Page

pytestmark = pytest.mark.slow

HARMLESS = {
    "a", "blockquote", "br", "button", "code", "div", "em", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre",
    "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
RENDER = (
    "(() => { const render = (...texts) => { const box = document.createElement('div');"
    "  const view = new MarkdownView(box); texts.forEach((text) => view.update(text)); return box; };"
    " return given[0].map((text) => { const box = render(text);"
    "  const all = [...box.querySelectorAll('*')];"
    "  const grown = render(...[...text].map((_, end) => [...text].slice(0, end + 1).join('')));"
    "  return { html: box.innerHTML, text: box.textContent, grown: grown.innerHTML,"
    "   tags: all.map((one) => one.localName), links: all.filter((one) => one.href !== undefined)"
    "   .map((one) => [one.getAttribute('href'), one.rel, one.target]) }; }); })()"
)
HOSTILE = """\
<script>document.title = 'hacked'</script> <img src=x onerror="document.title='hacked'">
[click](javascript:document.title='hacked') [data](data:text/html,<script>1</script>) [vb](vbscript:x)
[![x](javascript:1)](https://example.org/) <a href="javascript:1">x</a> **<b onclick=x>bold</b>**
`<svg onload=x>` | <td> |

```html <script>
<script>document.title = 'hacked'</script>
```
"""
PIECES = [
    "**", "*", "_", "`", "```", "~~~", "\n", "\n\n", "# ", "- ", "1. ", "  ", "    ", "> ", "| ", "|", "---",
    "[", "](", ")", "https://a.example/", "javascript:x", "\\", "<b>", "text", "ö🙂", ":-:",
]  # fmt: skip

REPEATED = ["*", "**a", "`", "`a", "[", "[a](", "_a ", "> ", "- - ", "|-", "#", "~~~\n", "\\", "  "]
UNDERSTOOD = {
    "one\ntwo\n\nthree": "<p>one\ntwo</p><p>three</p>",
    "# A\n## B #\n#hash": "<h4>A</h4><h5>B</h5><p>#hash</p>",
    "**b** *i* ***both*** _u_ a_b_c 2 * 3 * 4": "<p><strong>b</strong> <em>i</em> "
    "<strong><em>both</em></strong> <em>u</em> a_b_c 2 * 3 * 4</p>",
    "**a *b* c** `**x**` ``a`` \\*no\\*": "<p><strong>a <em>b</em> c</strong> <code>**x**</code> "
    "<code>a</code> *no*</p>",
    "- a\n- b\n  - c\n\n  d\n- e\n\nf": "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul>"
    "<p>d</p></li><li><p>e</p></li></ul><p>f</p>",
    "3. a\n4. b": '<ol start="3"><li><p>a</p></li><li><p>b</p></li></ol>',
    "> a\n> > b\n\n---": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><hr>",
    "[l](https://a.example/x)": '<p><a href="https://a.example/x" title="https://a.example/x" '
    'target="_blank" rel="noopener noreferrer nofollow">l</a></p>',
    "[l](javascript:x) [l](/x)": "<p>[l](javascript:x) [l](/x)</p>",
}


def rendered(page: Page, *texts: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page.call("markdown.js", RENDER, texts)
    return found


def test_what_is_understood(modules: Page) -> None:
    for (text, html), found in zip(UNDERSTOOD.items(), rendered(modules, *UNDERSTOOD), strict=True):
        assert found["html"] == html, text


def test_code_and_tables(modules: Page) -> None:
    code, table, open_code = rendered(
        modules, "a\n```py\nx = '<b>'\n\n# no\n```\nb", "| a | b |\n|---|:-:|\n| 1 | `2` |\n", "```\nstill"
    )
    assert "<code>x = '&lt;b&gt;'\n\n# no</code>" in code["html"]
    assert code["html"].startswith("<p>a</p>")
    assert code["html"].endswith("<p>b</p>")
    assert "<td>1</td><td><code>2</code></td>" in table["html"]
    assert "<code>still</code>" in open_code["html"]


def test_hostile_text_stays_text(page: Page, engine: ToldEngine) -> None:
    engine.reply = HOSTILE
    engine.tokens_per_output = 7
    page.ask_and_wait("Go on")
    assert page.run("return document.title") == "triolet"
    assert page.all("#log :is(script, img, svg, b, [onclick], [onerror], [onload], [style])") == []
    links = [link.get_attribute("href") for link in page.all("#log a")]
    assert [link for link in links if not str(link).startswith("https://")] == []
    assert "<script>document.title = 'hacked'</script>" in page.find(".assistant > .text").text


def test_whatever_is_written_is_harmless_and_grows_into_the_same(modules: Page) -> None:
    texts: list[str] = []

    @settings(max_examples=150)
    @example(HOSTILE[:120])
    @given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
    def collect(text: str) -> None:
        texts.append(text)

    collect()
    for text, found in zip(texts, rendered(modules, *texts), strict=True):
        assert set(found["tags"]) <= HARMLESS, text
        assert found["grown"] == found["html"], text
        for href, rel, target in found["links"]:
            assert href.startswith("https://a.example/"), text
            assert (rel, target) == ("noopener noreferrer nofollow", "_blank"), text


def test_time_is_linear_in_the_text(modules: Page) -> None:
    for piece in REPEATED:
        text = piece * (100_000 // len(piece))
        assert any(seconds_to_show(modules, text) < 5 for _ in range(3)), piece  # others may be at work, once


def seconds_to_show(modules: Page, text: str) -> float:
    begun = time.monotonic()
    modules.call("markdown.js", "void new MarkdownView(document.createElement('div')).update(given[0])", text)
    return time.monotonic() - begun
