"""Names are shown literally without effects: compared with the parsers of each medium."""

from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown import markdown as render

from pairnorm.base.errors import markdown, markdown_code, spreadsheet, terminal

ATTACKS = (
    *("<img src=x onerror=alert(1)>", "![x](https://example.org/a.png)", "[a](javascript:b)", "a|b", "`x`"),
    *("*a* _b_ __c__", "\\", "\\<b>", "&lt;b&gt;", "$x_$", "https://example.org", "<https://a.b>", "# a #"),
    *('"><script>', "\x1b]0;title\x07", "\u202egnp.exe", "a\nb", "[x]: http://a.b", "~~a~~", "a ``b`` c"),
)
names = st.one_of(
    st.sampled_from(ATTACKS), st.text(st.characters(codec="utf-8")), st.text("\\`*_[]()<>&!|#-")
)


class Parsed(HTMLParser):
    """The tags and the text of HTML."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@given(names)
@example("a&copy;b")
def test_markdown_makes_no_tag(name):
    parsed = Parsed(render(f"Of {markdown(name)}!", extensions=["tables"]))
    assert parsed.tags == ["p"]
    cell = Parsed(render(f"| a | b |\n|---|---|\n| {markdown(name)} | c |", extensions=["tables"]))
    assert cell.tags.count("td") == 2
    assert set(cell.tags) == {"table", "thead", "tbody", "tr", "th", "td"}


@pytest.mark.parametrize("name", ["<img onerror=x>", "a & b &lt;", "*a* _b_", "![x](y)", "\\", "# a #"])
def test_markdown_shows_the_name(name):
    shown = Parsed(render(f"Of {markdown(name)}!")).text
    assert shown.replace("\\#", "#") == f"Of {name}!"


@given(names)
def test_markdown_code_is_one_span(name):
    parsed = Parsed(render(f"Run {markdown_code(name)} now"))
    assert set(parsed.tags) <= {"p", "code"}
    assert parsed.tags.count("code") <= 1


@given(names)
def test_terminal_escapes_control_characters(name):
    assert not any(ord(one) < 32 or 0x7F <= ord(one) < 0xA0 for one in terminal(name))
    assert terminal(terminal(name)) == terminal(name)


@given(names)
@example("=cmd|' /C calc'!A0")
@example("-1.5")
@example(" =1+1")
@example("＝1")
def test_spreadsheet_cell_is_no_formula(name):
    cell = spreadsheet(name)
    assert cell in (name, f"'{name}")
    if cell == name and name.strip(" ").startswith(("=", "+", "-", "@", "\t", "\r")):
        float(name)
    assert spreadsheet(cell) == cell
