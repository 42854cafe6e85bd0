"""Test the wheel in clean environments: with its core requirements, and with all extras.

An environment is filled by links to what is installed here, following the requirements that the wheel itself
declares: nothing is downloaded, and what is not declared is not there.
"""

import os
import re
import runpy
import subprocess
import tarfile
import venv
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, PathDistribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from helpers import run_python

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = "from hatchling.build import build_wheel; import sys; print(build_wheel(sys.argv[1]))"
    run_python("-c", build, folder, cwd=ROOT)
    (result,) = folder.glob("*.whl")
    return result


def required(
    distribution: Distribution, extra: str, seen: dict[str, Distribution]
) -> dict[str, Distribution]:
    """Add all that a distribution needs, and what that needs in turn."""
    for line in distribution.requires or []:
        requirement = Requirement(line)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        extras = requirement.extras or {""}
        if name == "pairnorm":
            for expected in extras:
                required(distribution, expected, seen)
        elif name not in seen:
            try:
                seen[name] = Distribution.from_name(requirement.name)
            except PackageNotFoundError:  # such as CUDA libraries for a CPU build of torch
                continue
            for expected in extras:
                required(seen[name], expected, seen)
    return seen


def install(wheel: Path, extra: str, folder: Path) -> Path:
    """Make an environment and return its Python."""
    venv.create(folder, symlinks=True, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (metadata,) = packages.glob("pairnorm-*.dist-info")
    for distribution in required(PathDistribution(metadata), extra, {}).values():
        tops = {
            file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")
        }
        for top in tops:
            path = packages / top
            if not path.exists():
                path.symlink_to(Path(str(distribution.locate_file(top))))
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, "", tmp_path_factory.mktemp("core"))


@pytest.fixture(scope="session")
def everything(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, "all", tmp_path_factory.mktemp("all"))


def run(python: Path, *words: str, folder: Path, code: int = 0) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [python, *words], cwd=folder, capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_core_provides_layer_patch_measures_and_models(core, tmp_path):
    script = """
import sys, warnings
warnings.simplefilter("error")
import torch
import pairnorm
from pairnorm import Graph, PairNorm, Probe, add_pair_norm, load, pair_norm
from pairnorm.measure import row_diff
from pairnorm.nn import GAT, GCN, SGC
for name in ("pandas", "sklearn", "torch_geometric", "rich", "matplotlib", "pydantic"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} is in the core")
graph = load("cora")
model = GCN(graph.num_features, graph.num_classes, num_layers=4, norm="PN-SI").eval()
with Probe(model) as probe:
    logits = model(graph.features, graph.adjacency)
print(float(row_diff(PairNorm()(torch.randn(5, 3)))) > 0, logits.shape[0], len(probe.records))
"""
    assert run(core, "-c", script, folder=tmp_path).split() == ["True", "2708", "4"]


def test_core_lists_datasets(core, tmp_path):
    shown = run(core, "-m", "pairnorm", "datasets", "--root", str(tmp_path), folder=tmp_path)
    assert "cora          2,708   5,429" in shown
    assert "[" not in shown


def test_core_reproduces_a_table(core, tmp_path):
    words = "reproduce table1 --dataset cora --runs 1 --epochs 2 --depths 1,2 --missing 100 --workers 1"
    shown = run(core, "-m", "pairnorm", *words.split(), folder=tmp_path)
    assert "SGC-PN" in shown
    assert "table1: 12 trials to train" in shown
    assert "0.745" in shown  # the paper's
    assert (tmp_path / "reproduction" / "table1.csv").is_file()


def test_missing_library_names_the_extra(core, tmp_path):
    (tmp_path / "n.csv").write_text("id,x,y\na,1,u\nb,2,v\n")
    (tmp_path / "e.csv").write_text("source,target\na,b\n")
    words = "fit --nodes n.csv --edges e.csv --label y"
    shown = run(core, "-m", "pairnorm", *words.split(), folder=tmp_path, code=1)
    assert "pip install 'pairnorm[all]'" in shown
    assert shown.count("\n") <= 3


@pytest.mark.slow
def test_all_extra_fits_a_graph(everything, tmp_path):
    nodes = "".join(f"n{i},{i % 2 + 0.01 * (i % 7)},{'uv'[i % 2]}\n" for i in range(60))
    (tmp_path / "n.csv").write_text("id,x,y\n" + nodes)
    (tmp_path / "e.csv").write_text("source,target\n" + "".join(f"n{i},n{(i + 2) % 60}\n" for i in range(60)))
    words = "fit --nodes n.csv --edges e.csv --label y --out run"
    run(everything, "-m", "pairnorm", *words.split(), folder=tmp_path)
    assert (tmp_path / "run" / "predictions.csv").read_text().startswith("id,predicted,p_u,p_v")


def test_readme_of_the_wheel_has_no_relative_link(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        metadata = archive.read(name).decode()
    assert "Description-Content-Type: text/markdown" in metadata
    assert "# pairnorm" in metadata
    assert not re.search(r"\]\((?!https?:|#)", metadata)


def test_readme_links_are_made_absolute():
    names = runpy.run_path(str(ROOT / "hatch_build.py"))
    text = "![a](figures/a.png) [b](docs/b.md#c) [d](https://e.org) [f](#g)"
    assert names["absolute"](text, "https://host/us") == (
        "![a](https://host/us/raw/main/figures/a.png) [b](https://host/us/blob/main/docs/b.md#c) "
        "[d](https://e.org) [f](#g)"
    )
    assert names["absolute"](text, None) == " b [d](https://e.org) [f](#g)"


def test_citation_has_the_package_version():
    from pairnorm import __version__

    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_source_distribution_has_complete_metadata(tmp_path):
    build = "from hatchling.build import build_sdist; import sys; print(build_sdist(sys.argv[1]))"
    run_python("-c", build, tmp_path, cwd=ROOT)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
        (metadata,) = [name for name in files.getnames() if name.endswith("/PKG-INFO")]
        member = files.extractfile(metadata)
        assert member is not None
        text = member.read().decode()
    assert {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "pyproject.toml"} <= names
    for field in (
        "Summary",
        "License-Expression",
        "Requires-Python",
        "Keywords",
        "Classifier",
        "Project-URL",
        "Author",
    ):
        assert f"\n{field}: " in text, field
    assert not any(name.startswith(("results/", "benchmarks/results/", "tests/")) for name in names)
