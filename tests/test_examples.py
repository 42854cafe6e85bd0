import re
import runpy
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch

from helpers import run_python
from pairnorm.classify.candidates.boosted_trees import FACTORIES
from pairnorm.train import METHODS

EXAMPLES = Path(__file__).parents[1] / "examples"


Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run an example here, where all that it imports has been imported before, and return what it prints.

    What it registers is forgotten.
    """

    def here(name: str, *words: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *words])
        with warnings.catch_warnings(), torch.random.fork_rng(), mock.patch.dict(METHODS):
            warnings.simplefilter("ignore")
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return here


def run_alone(name: str, *words: str) -> str:
    """Run in a process of its own an example that has workers."""
    return run_python("-W", "ignore", EXAMPLES / name, *words).stdout


def accuracies(text: str) -> list[float]:
    return [float(share) for share in re.findall(r"([\d.]+)% of the test papers right", text)]


def test_deep_model_learns_only_with_pair_norm(run):
    without, with_pair_norm = accuracies(run("plain_pytorch.py", "40"))
    assert with_pair_norm > without + 10


def test_pyg_model_learns_only_with_pair_norm(run):
    text = run("pyg_model.py", "25")
    without, with_pair_norm = accuracies(text)
    assert with_pair_norm > without + 10
    assert len(re.findall(r"^ +\d+ +[\d.]+ +[\d.]+$", text, re.MULTILINE)) == 2 * 15


def test_csv_files_are_labeled(run, tmp_path):
    text = run("own_csv.py", str(tmp_path))
    assert "labeled    150 (50%)" in text
    share = re.search(r"Right on (\d+)% of held-out customers", text)
    assert share is not None
    assert int(share[1]) > 70
    assert len(re.findall(r"^c\d+: (?:low|high) \(\d+%\)$", text, re.MULTILINE)) == 3
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["model.json", "model.safetensors"]


def test_ranks_resume_from_checkpoint_of_one_process(run, tmp_path, monkeypatch):
    """The checkpoint of one process has only shared state, so that any number of ranks can resume."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    checkpoint = str(tmp_path / "checkpoint.pt")
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "device_count", lambda: 0)
        for name, value in (alone | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}).items():
            patch.setenv(name, value)
        whole = run("ranks.py", "6")
        run("ranks.py", "3", checkpoint)
    env = {"CUDA_VISIBLE_DEVICES": ""}
    rest = run_python(*launcher, EXAMPLES / "ranks.py", 6, checkpoint, env=env).stdout
    assert torch.load(checkpoint, weights_only=True)["epoch"] == 6
    assert whole.startswith("1 ranks, 6 epochs")
    assert rest.startswith("2 ranks, 3 epochs")
    losses = [float(re.search(r"loss ([\d.]+)", text)[1]) for text in (whole, rest)]
    assert abs(losses[0] - losses[1]) < 1e-4 * losses[0]


def test_later_nodes_without_features_are_labeled(run):
    text = run("new_nodes.py")
    share = re.search(r"and on (\d+)% of the 100 who came later", text)
    assert share is not None
    assert int(share[1]) > 60


def test_custom_method_is_trained_by_workers():
    text = run_alone("own_method.py", "30")
    none, pair_norm, whiten = accuracies(text)
    assert min(pair_norm, whiten) > none + 10
    assert "method=Whiten@1 strength=1.0" in text


def test_calibrated_batches_equal_the_whole_graph(run):
    text = run("batches.py", "3")
    assert accuracies(text)[0] > 40
    difference = re.search(r"from the whole graph: (\S+)", text)
    assert difference is not None
    assert float(difference[1]) < 1e-5


def test_custom_model_learns(run):
    assert min(accuracies(run("own_model.py", "30"))) > 50


def test_registered_classifier_is_evaluated_in_fit(run):
    with mock.patch.dict(FACTORIES):
        text = run("own_candidate.py")
    share = re.search(r"Test accuracy: ([\d.]+)", text)
    assert share is not None
    assert float(share[1]) > 0.7
