import base64
import gzip
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from pairnorm.report.charts import Line, lines
from pairnorm.report.document import (
    Choices,
    Details,
    Document,
    Markdown,
    Section,
    Table,
    Text,
    Threshold,
    render_html,
)

HOSTILE = (
    "<script>alert(1)</script>",
    "=cmd|'/c calc'!A1",
    "**bold** [x](javascript:alert(1))",
    "\"'><img src=x onerror=alert(1)>",
)
CHART = lines("A curve", [Line("a", [1, 2, 3], [3, 1, 2], "--blue")], "depth", "right")


def page(*blocks: Any, **options: Any) -> str:
    return render_html(
        Document("Title", [("Question?", "Answer", "Meaning")], [Section("Part", blocks)], **options)
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_shown_as_text(name):
    blocks = [
        Text(name),
        Table([name], [[name]], name),
        Details(name, []),
        Choices(name, {name: [Text(name)]}),
    ]
    text = render_html(Document(name, [(name,) * 3], [Section(name, blocks)], {name: name}))
    assert text.count("<script") == page().count("<script")
    assert "<img" not in text
    assert len(re.findall(re.escape(name), unescape(text.split('id="data"')[0]))) > 10


def test_control_characters_and_surrogates_are_escaped():
    text = page(Text("a\u202eb\ud800c"))
    assert r"<p>a\u202eb\ud800c</p>" in text


def test_markdown_is_formatted_and_html_escaped():
    text = page(Markdown("**yes** <script>no</script> [go](#part) [stay](javascript:alert(1))"))
    assert "<strong>yes</strong> &lt;script&gt;no&lt;/script&gt;" in text
    assert '<a href="#part">go</a>' in text
    assert 'href="javascript' not in text


def test_page_needs_no_network_and_no_foreign_script():
    text = page(CHART)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe-inline" not in policy[1].split("script-src")[1]
    assert not re.search(r'(?:src|href)="(?!#|data:)', text)
    assert len(text) < 3_000_000


def test_rendering_is_deterministic():
    assert page(CHART) == page(CHART)


def test_page_data_are_compressed():
    packed = re.search(r'id="data">([^<]*)<', page(CHART, Threshold("t", ["s"] * 101)))
    assert packed is not None
    assert json.loads(gzip.decompress(base64.b64decode(packed[1]))) == [CHART.data, ["s"] * 101]


def test_anchor_equals_that_of_github():
    assert Section("Which protocol: adjacency, order", []).anchor == "which-protocol-adjacency-order"


def test_missing_library_raises_with_its_name(monkeypatch, raises):
    monkeypatch.setattr("pairnorm.report.document.find_spec", lambda name: None if name == "plotly" else True)
    with raises("library-missing", value=["plotly"]):
        page()


def write(folder: Path, *blocks: Any) -> Path:
    path = folder / "page.html"
    path.write_text(page(*blocks), encoding="utf-8")
    return path


def column(view: Any, number: int) -> list[str]:
    result: list[str] = view.eval_on_selector_all(
        f"tbody tr:not([hidden]) > :nth-child({number})", "cells => cells.map(cell => cell.textContent)"
    )
    return result


def test_table_sorts_and_filters(open_page, tmp_path):
    rows = [["b", "10%"], ["a", "9.5%"], ["c", "–"], ["a2", "1,000%"], ["d", "-3%"]]
    view = open_page(write(tmp_path, Table(["name", "share"], rows, search=True)))
    view.click("th button >> text=share")
    assert column(view, 2) == ["1,000%", "10%", "9.5%", "-3%", "–"]
    view.keyboard.press("Enter")
    assert column(view, 2) == ["-3%", "9.5%", "10%", "1,000%", "–"]
    assert view.get_attribute("th:nth-child(2)", "aria-sort") == "ascending"
    view.click("th button >> text=name")
    assert column(view, 1) == ["a", "a2", "b", "c", "d"]
    view.fill("input[type=search]", "A")
    assert column(view, 1) == ["a", "a2"]


def test_choices_and_slider_update_the_page(open_page, tmp_path):
    choices = Choices("Rate", {"1%": [Text("few")], "5%": [Text("many"), CHART]})
    slider = Threshold("At least", [f"{percent} it is" for percent in range(101)], 90)
    view = open_page(write(tmp_path, choices, slider))
    assert view.is_visible("text=few")
    view.select_option("select", "1")
    assert view.is_hidden("text=few")
    assert view.is_visible("text=many")
    view.wait_for_selector(".main-svg")
    wide, chart = (
        view.locator(".control").first.bounding_box(),
        view.locator(".main-svg").first.bounding_box(),
    )
    assert 0.8 * wide["width"] < chart["width"] <= wide["width"]
    view.focus("input[type=range]")
    view.keyboard.press("ArrowLeft")
    assert view.text_content("output") == "89%"
    assert view.text_content(".answer") == "89 it is"


@pytest.mark.parametrize("system", ["light", "dark"])
def test_theme_follows_system_and_button(open_page, tmp_path, system):
    view = open_page(write(tmp_path, CHART), color_scheme=system)

    def colors() -> list[str]:
        paper = "getComputedStyle(document.body).backgroundColor"
        ink = "getComputedStyle(document.querySelector('.xtitle')).fill"
        return [view.evaluate(paper), view.evaluate(ink)]

    view.wait_for_selector(".xtitle")
    first = colors()
    assert first[0] == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 31)"}[system]
    view.click("#theme")
    second = colors()
    assert all(one != other for one, other in zip(first, second, strict=True))
    view.click("#theme")
    assert colors() == first


def test_print_is_light_without_buttons(open_page, tmp_path):
    view = open_page(write(tmp_path, CHART), color_scheme="dark")
    view.emulate_media(media="print")
    assert view.is_hidden("#theme")
    view.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert view.get_attribute("html", "data-theme") == "light"
    assert view.locator(".xtitle").count() == 1, "what was not in view yet is drawn too"
    view.evaluate("dispatchEvent(new Event('afterprint'))")
    assert view.get_attribute("html", "data-theme") == "dark"


def test_page_fits_a_phone(open_page, tmp_path):
    table = Table(["x" * 20] * 9, [["word " * 9] * 9])
    view = open_page(write(tmp_path, table, CHART, Markdown("|a|b|\n|-|-|\n|" + "c" * 90 + "|d|")), width=360)
    assert view.evaluate("document.documentElement.scrollWidth") == 360
