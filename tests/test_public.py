import ast
import importlib
import sys
from pathlib import Path

import pytest

import pairnorm
from helpers import run_python

SOURCE = Path(pairnorm.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
PLAIN = [path for path in MODULES if path.parent in (SOURCE / "nn", SOURCE / "measure")]


def names(path):
    return str(path.relative_to(SOURCE))


def imported(tree):
    """Yield the modules that the import statements below a node of the syntax tree name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module


def imported_at_once(path):
    """Yield what a module imports when it is imported: outside functions and ``if TYPE_CHECKING``."""
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        typing = isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.dump(statement.test)
        if not typing and not isinstance(statement, ast.FunctionDef | ast.ClassDef):
            yield from imported(statement)


def run(script, *words):
    """Return what a fresh interpreter prints, warnings being errors."""
    return run_python("-W", "error", "-c", script, *words).stdout


@pytest.mark.parametrize(
    "module", ["pairnorm", *(f"pairnorm.{room}" for room in ("nn", "measure", "impute", "data"))]
)
def test_public_names_exist_and_are_unique(module):
    module = importlib.import_module(module)
    assert all(hasattr(module, name) for name in module.__all__)
    assert len(set(module.__all__)) == len(module.__all__)


def test_top_level_names():
    handful = {"PairNorm", "pair_norm", "add_pair_norm", "remove_pair_norm", "Probe", "Graph", "load"}
    assert set(pairnorm.__all__) == handful | {"NodeClassifier", "PairNormError", "__version__"}


def test_public_functions_are_documented():
    for name in set(pairnorm.__all__) - {"__version__"}:
        assert (getattr(pairnorm, name).__doc__ or "").strip(), name


def test_errors_are_value_errors():
    assert issubclass(pairnorm.PairNormError, ValueError)


def test_importing_loads_nothing_heavy():
    script = """
import sys
import torch
before = set(sys.modules)
import pairnorm.train, pairnorm.paper.runner, pairnorm.report.paper_report
print(*set(sys.modules) - before)
"""
    modules = run(script).split()
    loaded = {name.split(".")[0] for name in modules}
    assert "pairnorm" in loaded
    assert "torch._dynamo" not in modules
    assert not loaded & {"pandas", "torch_geometric", "matplotlib", "numba", "triton", "scipy", "networkx"}
    assert not loaded & {"pyarrow", "tensorboard", "rich", "typer", "safetensors"}


def test_layers_and_stores_need_torch_only(tmp_path):
    script = """
import sys
for name in ("pandas", "torch_geometric", "matplotlib", "numba", "llvmlite", "triton", "networkx", "pyarrow",
             "scipy", "rich", "typer"):
    sys.modules[name] = None
import torch
from pairnorm import PairNorm
from pairnorm.measure import row_diff
from pairnorm.nn import GAT, GCN, SGC
x, edges = torch.randn(6, 4), torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
for model in (GCN, GAT, SGC):
    model(4, 3, num_layers=3, norm="PN-SI", dropout=0.5)(x, edges).sum().backward()
row_diff(PairNorm()(x))
from pairnorm.train import Spec, Store
with Store(sys.argv[1]) as store:
    store.add(Spec("cora", "SGC", 2), [], seconds=0.0)
    store.merge(store.export(sys.argv[1] + ".csv"))
"""
    run(script, tmp_path / "store")


def test_missing_extra_raises_with_library_name():
    script = """
import sys
for name in ("pandas", "sklearn"):
    sys.modules[name] = None
import pairnorm, torch
model = pairnorm.nn.GCN(4, 3, num_layers=2)
with pairnorm.Probe(model) as probe:
    model(torch.randn(3, 4), torch.tensor([[0, 1], [1, 2]]))
read = lambda: pairnorm.Graph.from_files("n.csv", "e.csv")
for use in (probe.frame, lambda: pairnorm.NodeClassifier, read):
    try:
        use()
    except pairnorm.PairNormError as error:
        print(error.code, error.value)
"""
    assert run(script).split() == [
        "library-missing",
        "pandas",
        "library-missing",
        "sklearn",
        "library-missing",
        "pandas",
    ]


@pytest.mark.parametrize("path", PLAIN, ids=names)
def test_nn_and_measure_import_torch_only(path):
    others = {name.split(".")[0] for name in imported_at_once(path)} - sys.stdlib_module_names
    assert others <= {"torch", "pairnorm"}
