import csv
from pathlib import Path

import pytest

from pairnorm import cli

TINY = ["reproduce", "missing", "--protocol", "ssnc-mv", "--dataset", "cora", "--runs", "1", "--epochs", "1"]
TINY += ["--model", "SGC,label propagation", "--missing", "0", "--workers", "1", "--device", "cpu"]


def test_it_prints_the_comparison_and_goes_on_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*TINY, "--out", str(tmp_path)]
    assert cli.main([*words, "--minutes", "0"]) == 0
    assert "Time is up: 13 runs are left. Go on with: pairnorm reproduce missing" in capsys.readouterr().out
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert "SGC, zero" in printed
    assert f"Wrote {tmp_path / 'missing.md'}" in printed
    with (tmp_path / "missing.csv").open() as file:
        assert [row["model"] for row in csv.DictReader(file)] == ["SGC", "label propagation"]
    assert (tmp_path / "missing.md").read_text().startswith("# Missing features")
    assert cli.main(words) == 0
    assert "lacking" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["reproduce", "missing", "table1"], "an experiment of its own"),
        (["reproduce", "missing", "--depths", "2"], "Leave out other experiments, --depths"),
        (["reproduce", "missing", "--missing", "many"], "missing is 'many'"),
        (["reproduce", "missing", "--protocol", "fp"], "protocol is 'fp'"),
        (["reproduce", "missing", "--workers", "0"], "workers is 0"),
    ],
)
def test_what_cannot_be_is_said(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 1
    assert says in capsys.readouterr().err
