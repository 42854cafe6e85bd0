import io
import sys
from contextlib import redirect_stdout

import pytest

from pairnorm.commands import console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COLUMNS": "100", "TERM": "xterm", "NO_COLOR": ""}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    "name",
    [
        "[bold]",
        "[/]",
        "\\[bold]",
        "\\",
        "[x][",
        ":smile:",
        "[link=https://x]y[/link]",
        "a\u200cb",
        "日本",
        "%s {}",
    ],
)
def test_markup_in_names_is_printed_literally(capsys, name):
    console.show(f"[bold]Wrote[/] {console.safe(name)}[dim]![/]")
    assert capsys.readouterr().out == f"Wrote {name}!\n"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("two\nlines\r", r"two\nlines\r"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("caf\udce9", r"caf\udce9"),
        ("\x00[red]", r"\x00[red]"),
    ],
)
def test_control_characters_are_escaped(capsys, name, shown):
    console.show(console.safe(name))
    console.table(["Name"], [[name]])
    console.facts([(name, name)])
    console.complain(name.replace("\n", ""))
    printed = capsys.readouterr()
    assert printed.out.count(shown) == 4
    for text in (printed.out.replace("\n", ""), printed.err.replace("\n", "")):
        assert text.isprintable()


def test_markup_sets_the_style(monkeypatch):
    with redirect_stdout(Terminal()) as screen:
        console.show("[bold]Next:[/] go")
        monkeypatch.setenv("NO_COLOR", "1")
        console.show("[bold]Next:[/] go")
    assert screen.getvalue() == "\x1b[1mNext:\x1b[0m go\nNext: go\n"


def test_table_aligns_numbers_right(capsys):
    console.table(["Name", "Nodes", "Files"], [["cora", "2,708", "found"], ["日本", "5", "-"]], left=(0, 2))
    assert capsys.readouterr().out.splitlines() == [
        "",
        "Name  Nodes  Files",
        "──────────────────",
        "cora  2,708  found",
        "日本      5  -",
        "",
    ]


def test_long_facts_are_wrapped_and_indented(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    console.facts([("nodes", "400"), ("features", "age, income, job, abroad, zip, phone")])
    assert capsys.readouterr().out.splitlines() == [
        "nodes     400",
        "features  age, income, job,",
        "          abroad, zip, phone",
    ]


def test_text_is_printed_during_progress():
    with redirect_stdout(Terminal()) as screen, console.stage("Training", 4) as advance:
        advance("cora")
        console.show("[bold]Training[/] stops")
    assert "stops" in screen.getvalue()


def test_terminal_redraws_one_progress_line(monkeypatch):
    clock = iter([0.0, 1.0, 2.0, 2.05, 3.0])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(clock))
    with redirect_stdout(Terminal()) as screen, console.progress() as on_progress:
        for done in (0, 50, 100, 101):
            on_progress(console.Progress("table1", done, 200, "\x1b[31mred" * 9, "layer-epochs"))
        on_progress(console.Progress("writing", 0, None))
    lines = screen.getvalue().split("\r\x1b[K")
    assert lines[2].startswith(r"table1: 50%, 50 layer-epochs/s, 2 s left; \x1b[31mred")
    assert len(lines[2]) == 99  # cut to the terminal's width
    assert lines[3:] == ["", "writing …", ""]


def test_progress_lines_exclude_start_of_workers_from_rate(capsys, monkeypatch):
    clock = iter([0.0, 20.0, 40.0, 41.0, 42.0, 62.0, 80.0])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(clock))
    with console.progress() as on_progress:
        on_progress(console.Progress("table1", 0, 1000, "50 trials to train", "layer-epochs"))
        for done in (10, 410):
            on_progress(console.Progress("table1", done, 1000, "cora GCN depth=2", "layer-epochs"))
        on_progress(console.Progress("Choosing", 0, None))
        for done in (1, 2):
            on_progress(console.Progress("Choosing", done, 4, "SGC, depth 2"))
        on_progress(console.Progress("Choosing", 3, 4, seconds_left=-30.0))
    assert capsys.readouterr().out.splitlines() == [
        "table1: 50 trials to train",
        "table1: 41%, 20 layer-epochs/s, 30 s left; cora GCN depth=2",
        "Choosing …",
        "Choosing: 50%, 40 s left; SGC, depth 2",
        "Choosing: 75%, 0 s left",
    ]


def test_closed_stdout_is_ignored(monkeypatch):
    """Python sets a stream to None where a shell has closed it, as ``pairnorm demo >&-`` does."""
    monkeypatch.setattr(sys, "stdout", None)
    with console.stage("Training", 2) as advance:
        advance("cora")
        console.show("text")


def test_closed_pipe_raises_output_closed(monkeypatch):
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(console.OutputClosed):
        console.show("text")


def test_uneven_steps_show_no_time_left(capsys, monkeypatch):
    clock = iter([0.0, 20.0, 40.0])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(clock))
    with console.stage("Comparing", 4, is_even=False) as advance:
        advance("GCN")
        advance("SGC")
    assert capsys.readouterr().out.splitlines() == ["Comparing …", "Comparing: 50%; SGC"]
