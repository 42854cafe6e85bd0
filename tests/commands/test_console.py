import io

from rich.console import Console

from pairnorm.commands.console import progress_bar
from pairnorm.train import Progress


def test_quiet_where_there_is_no_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    with progress_bar(console) as tell:
        tell("table1", Progress(1, 2, 3, "label"))
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]


def test_a_bar_for_each_stage_with_something_to_do() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with progress_bar(console) as tell:
        tell("nothing", Progress(0, 0, 0, ""))
        tell("table1", Progress(0, 200, 12, ""))
        tell("table1", Progress(100, 200, 12, ""))
        tell("a stage with a name that is rather too long", Progress(1, 4, 3, ""))
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "table1" in printed
    assert "50%" in printed
    assert "12 trials" in printed
    assert "nothing" not in printed
    assert "a stage with a name that is…" in printed
