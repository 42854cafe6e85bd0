import csv
from pathlib import Path

import pytest

from pairnorm.errors import PairNormError
from pairnorm.train.exchange import read_csv, write_csv
from pairnorm.train.origin import Origin
from pairnorm.train.record import Row, row
from pairnorm.train.spec import Spec
from pairnorm.train.trial import Trial


def a_row(**more: object) -> Row:
    metrics = dict.fromkeys(("train_loss", "validation_loss", "test_loss"), 1 / 3)
    metrics |= dict.fromkeys(("train_accuracy", "validation_accuracy", "test_accuracy"), 1e-300)
    trial = Trial(seed=5, best_epoch=7, **metrics, **more)  # type: ignore[arg-type]
    return row(Spec('a "graph", mine', "GCN", 2), trial, Origin.here(seconds=1.0, shared_by=1, device="cpu"))


def test_csv_is_exact_also_for_long_curves_and_odd_names(tmp_path: Path) -> None:
    rows = [
        a_row(measures={"row_diff": 0.1}, curves={"test_loss": [1 / epoch for epoch in range(1, 20_000)]}),
        a_row(measures={"col_diff": float("inf")}),
    ]
    write_csv(rows, tmp_path / "rows.csv")
    assert read_csv(tmp_path / "rows.csv") == rows


def test_a_csv_from_before_a_field_was_there_has_its_default(tmp_path: Path) -> None:
    path, given = tmp_path / "rows.csv", a_row()
    write_csv([given], path)
    with path.open(newline="") as file:
        [values] = csv.DictReader(file)
    assert values.pop("scaling") == "rows"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, values)
        writer.writeheader()
        writer.writerow(values)
    assert read_csv(path) == [given]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("depth", "layers", "has no column 'depth'; expected a CSV export of a store"),
        (",GCN,2,", ",GCN,4,", "line 2: the spec has the hash .*, not .*; was it edited"),
        (",GCN,2,", ",GCN,two,", "line 2: depth is 'two'; expected a value as the store writes it"),
        (",False,", ",no,", "line 2: diverged is 'no'; expected a value as the store writes it"),
        (",GCN,", ",GXN,", "model is 'GXN'; expected one of"),
        (",GCN,", ",GCN,GCN,", "line 2 has more or fewer values than there are columns"),
        (",GCN,2,", "\n", "line 2 has more or fewer values than there are columns"),
        ("cores", 'cores"', "cannot be read as CSV"),
    ],
)
def test_a_csv_that_is_no_export_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "rows.csv"
    write_csv([a_row()], path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(PairNormError, match=message):
        read_csv(path)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PairNormError, match="cannot be read as CSV"):
        read_csv(tmp_path / "rows.csv")
