from pathlib import Path

import pytest

from pairnorm.data.checksums import SHA256, verified_bytes
from pairnorm.data.named import BUNDLED, datasets
from pairnorm.errors import PairNormError


def test_every_raw_file_is_pinned() -> None:
    assert {file for dataset in datasets() for file in dataset.files} <= set(SHA256)
    assert all(len(digest) == 64 for digest in SHA256.values())


def test_the_bundled_file_is_the_pinned_one() -> None:
    assert len(verified_bytes(BUNDLED, "cora.npz")) == (BUNDLED / "cora.npz").stat().st_size


def test_another_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "cora.npz").write_bytes(b"another")
    with pytest.raises(
        PairNormError, match=r"cora\.npz: the file is damaged or another one.*It was not read"
    ):
        verified_bytes(tmp_path, "cora.npz")


def test_the_real_files_are_the_pinned_ones(data_root: Path) -> None:
    for name in SHA256:
        if name != "cora.npz":
            verified_bytes(data_root, name)
