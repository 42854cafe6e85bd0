"""Pages are correct: their Python runs, the site builds, and the reference is complete."""

import contextlib
import csv
import importlib
import io
import pkgutil
import re
import shutil
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from helpers import run_python
from pairnorm.cli import build_parser
from pairnorm.commands.options import OLD_NAMES

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs/hooks"))
import notebooks  # noqa: E402

PAGES = sorted((ROOT / "docs").glob("*.md"))
WRITTEN = sorted(
    [*ROOT.glob("*.md"), *PAGES, *(ROOT / "results").glob("*.md"), ROOT / "benchmarks/README.md"]
)
PACKAGES = [
    "pairnorm",
    *(f"pairnorm.{name}" for name in ("data", "nn", "nn.norms", "impute", "measure", "train", "classify")),
]
ENTRY_POINTS = {"pairnorm.methods", "pairnorm.candidates"}
OTHER_OPTIONS = {
    *("--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint", "--max-restarts"),  # torchrun
    *("--head", "--address"),  # ray
    "--fix",  # ruff
    "--age",  # a value, in the changelog
}
# A Python block, and the text block that may follow it: what the block prints.
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


def blocks(page):
    """Yield the line, the code and the expected output (None for any) of each Python block of a page."""
    text = page.read_text(encoding="utf-8")
    for result in BLOCK.finditer(text):
        yield text.count("\n", 0, result.start()) + 1, result[1], result[2]


def public_names():
    """Yield the paths by which each public object may be documented: its packages, and its module."""
    paths = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            if (home := getattr(getattr(module, name), "__module__", "typing")) != "typing":
                paths.setdefault(f"{home}.{name}", {f"{home}.{name}"}).add(f"{package}.{name}")
    yield from paths.values()


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_python_blocks_print_the_stated_output(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": page.stem}
    for line, code, expected in blocks(page):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + code, page, "exec"), names)
        assert expected in (None, printed.getvalue()), f"{page.name}, line {line}"


@pytest.fixture(scope="module")
def tutorials(tmp_path_factory):
    """A folder with the tables of the tutorials; the second tutorial reads what the first writes."""
    folder = tmp_path_factory.mktemp("tutorials")
    for table in notebooks.FOLDER.glob("*.csv"):
        shutil.copy(table, folder)
    return folder


@pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")
@pytest.mark.parametrize(
    "group", [notebooks.ORDER[:2], *((name,) for name in notebooks.ORDER[2:])], ids=" ".join
)
def test_tutorials_print_the_stored_output(group, tutorials, monkeypatch):
    monkeypatch.chdir(tutorials)
    for name in group:
        path = notebooks.FOLDER / f"{name}.ipynb"
        for stored, cell in zip(notebooks.read(path)["cells"], notebooks.run(path)["cells"], strict=True):
            if cell["cell_type"] == "code":
                assert notebooks.text_outputs(cell) == notebooks.text_outputs(stored), cell["source"]


def test_notebooks_are_listed_on_the_site():
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert {path.stem for path in notebooks.FOLDER.glob("*.ipynb")} == set(notebooks.ORDER)
    assert [name for name in notebooks.ORDER if f"tutorials/{name}.md" not in site] == []


def test_architecture_page_lists_all_packages():
    page, source = (ROOT / "docs/architecture.md").read_text(encoding="utf-8"), ROOT / "src/pairnorm"
    table = "".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    named = {name.strip("/") for name in re.findall(r"`([\w/]+)`", table)}
    packages = {path.name for path in source.iterdir() if (path / "__init__.py").exists()}
    modules = {path.stem for path in source.glob("[a-z]*.py")} - {"version"}
    assert {name for name in named if "/" not in name} == packages | modules
    for name in re.findall(rf"`((?:{'|'.join(sorted(packages))})/[\w/.]+)`", page):
        assert (source / name).exists() or (source / f"{name}.py").exists(), name


def test_readme_is_short():
    text = re.sub(r"^```.*?^```$", "", (ROOT / "README.md").read_text("utf-8"), flags=re.M | re.S)
    assert len(text.split()) <= 550


def reported(section):
    """Return [(accuracy, layers, the paper's accuracy)] by graph and method, of a section of our report."""
    report = (ROOT / "results/report.md").read_text(encoding="utf-8")
    [table] = re.findall(rf"^## {section}.*?(?=^## )", report, re.MULTILINE | re.DOTALL)
    result, graph, key = {}, "", ("", "")
    for cells in re.findall(r"^\| (.*) \|$", table, re.MULTILINE):
        first, method, *entries = cells.split(" | ")
        graph = first.strip() or graph
        numbers = [re.match(r"\**([\d.]+)(?: ± .*?)? @ (\d+)", cell) for cell in entries]
        if method == "paper" and all(numbers):  # below the row of ours
            ours = result[key]
            result[key] = [(*one[:2], number[1]) for one, number in zip(ours, numbers, strict=True)]
        elif all(numbers):
            key = graph, method
            result.setdefault(key, [(*number.groups(), None) for number in numbers])
    return result


@pytest.mark.parametrize("method", ["SGC", "SGC-PN"])
def test_missing_vectors_page_agrees_with_the_report(method):
    cells = reported("Table 1")["Cora", method]
    accuracies, layers, _ = (" | ".join(row) for row in zip(*cells, strict=True))
    page = (ROOT / "docs/missing-vectors.md").read_text(encoding="utf-8")
    assert f"| {method} | {accuracies} |\n| at layers | {layers} |\n" in page


@pytest.mark.parametrize(
    ("name", "section", "method"),
    [
        ("SGC", "Table 1", "SGC"),
        ("SGC with PairNorm", "Table 1", "SGC-PN"),
        ("GCN", "Table 2", "GCN"),
        ("GCN with PairNorm-SI", "Table 2", "GCN-PN"),
        ("GAT", "Table 3", "GAT"),
        ("GAT with PairNorm-SI", "Table 3", "GAT-PN"),
        ("SGC, its optimizer tuned", "How much of the gain", "SGC-tuned"),
        ("SGC with PairNorm, its optimizer tuned", "How much of the gain", "SGC-PN-tuned"),
    ],
)
def test_reproduction_page_agrees_with_the_report(name, section, method):
    graphs, table = ("Cora", "Citeseer", "Pubmed", "Coauthor CS"), reported(section)
    last = [table[graph, method][-1] for graph in graphs]  # 100% missing
    row = " | ".join(f"{ours} ({paper})" if paper else ours for ours, _, paper in last)
    page = (ROOT / "docs/reproduction.md").read_text(encoding="utf-8")
    assert f"| {name} | {row} |\n" in page.replace("**", "")


def rows(page):
    """Return the cells of every row of a page's tables; bold is not looked at."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("**", "")
    return [[*map(str.strip, line[1:-1].split("|"))] for line in text.splitlines() if line.startswith("| ")]


@pytest.mark.parametrize(
    ("page", "protocol", "missing", "graphs"),
    [
        ("README.md", "ssnc-mv", "100%", ("Cora", "Citeseer", "Pubmed", "Coauthor CS")),
        ("docs/which-method.md", "ssnc-mv", "100%", ("Cora", "Citeseer", "Pubmed", "Coauthor CS")),
        ("docs/which-method.md", "fp-vectors", "99.5%", ("Cora", "Citeseer", "Pubmed")),
    ],
)
def test_pages_state_results_of_fit(page, protocol, missing, graphs):
    stands = {tuple(row[:3]): row[3:] for row in rows("results/missing.md")}
    ours, _, other = zip(*(stands[protocol, graph, missing][:3] for graph in graphs), strict=True)
    shown = [tuple(row[1 : len(graphs) + 1]) for row in rows(page) if len(row) > len(graphs)]
    assert ours in shown
    assert protocol == "fp-vectors" or other in shown  # there, the best other is of one graph and another


@pytest.mark.parametrize("model", ["GCN", "GAT"])
@pytest.mark.parametrize("features", ["all features", "training nodes' features alone"])
def test_methods_page_agrees_with_depth_comparison(features, model):
    graphs, shown = ("Cora", "Citeseer", "Pubmed", "Coauthor CS"), rows("docs/methods.md")
    stands = {tuple(row[:3]): row[3:] for row in rows("results/depth.md")}
    cells = [stands[f"{graph}, {model}", features, "any"] for graph in graphs]
    for column in (1, 3, 4):  # what validation chose, no hint, PairNorm
        accuracies = [entry[column].split()[0] for entry in cells]
        assert accuracies in [[cell.split()[0] for cell in row[1:]] for row in shown if all(row)], accuracies


def test_methods_page_states_ranks_of_depth_comparison():
    """Bug: counts and ranks were those of a store that had three methods less."""
    page = (ROOT / "docs/methods.md").read_text(encoding="utf-8").replace("\n", " ")
    with (ROOT / "results/depth.csv").open(newline="") as file:
        table = [row for row in csv.DictReader(file) if row["model"] == "GCN"]
    cells, counts = {"GCNII": [], "APPNP": []}, []
    for graph in ("cora", "citeseer", "pubmed", "coauthor-cs"):
        own = [row for row in table if row["dataset"] == graph]
        assert f"GCN with {len({row['remedy'] for row in own}) - 1} methods on four graphs" in page
        for depth in ("8", "16", "32"):
            rows_of_depth = [row for row in own if (row["depth"], row["missing_percent"]) == (depth, "100")]
            order = [row["remedy"] for row in sorted(rows_of_depth, key=lambda row: -float(row["accuracy"]))]
            counts.append(len(order))
            for method, method_ranks in cells.items():
                method_ranks.append(order.index(method) + 1)
    (first, last), (best, worst) = ((min(of), max(of)) for of in cells.values())
    text = f"GCNII ranks {first}th to {last}th of {max(counts)} and APPNP {best}th to {worst}th"
    assert text in page


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_existing_files_and_headings(page):
    def anchors(path):
        headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        # Our notes are a part of the report, whose headings they mean.
        here = page.with_name("report.md") if page.name == "notes.md" else page
        target = page.parent / path if path else here
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_in_commands_exist(page):
    commands = build_parser()[1]
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for name, rest in re.findall(rf"\bpairnorm ({'|'.join(commands)})\b([^\n`]*)", text):
        known = {option for action in commands[name]._actions for option in action.option_strings}
        known |= set(OLD_NAMES) if page.name == "CHANGELOG.md" else set()
        assert set(re.findall(r"--[a-z][\w-]*", rest)) <= known, f"pairnorm {name}{rest}"


def resolves(name):
    """Return whether a dotted name is a module, or an attribute of one."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return name in ENTRY_POINTS
    return True


@pytest.mark.parametrize(
    "page",
    [*WRITTEN, *sorted(notebooks.FOLDER.glob("*.ipynb"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_modules_names_and_options_in_pages_exist(page):
    """Bug: pages named modules that had been merged into others."""
    source, text = ROOT / "src/pairnorm", page.read_text(encoding="utf-8")
    if page.name == "CHANGELOG.md":  # the first column of its table has old names, and so has all before 1.0
        text = re.sub(r"^\| .*? \| ", "| ", text.partition("\n## 0.2.0")[0], flags=re.MULTILINE)
    packages = "|".join(path.name for path in source.iterdir() if path.is_dir())
    paths = re.findall(
        rf"(?<![\w/.-])((?:src/pairnorm|docs|examples|tests)/[\w./-]*\w|(?:{packages})/[\w./]*\w)", text
    )
    there = [any(map(Path.exists, (ROOT / path, source / path, source / f"{path}.py"))) for path in paths]
    assert [path for path, exists in zip(paths, there, strict=True) if not exists] == []
    assert [name for name in re.findall(r"(?<![\w.-])pairnorm(?:\.\w+)+", text) if not resolves(name)] == []
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)) <= known_options(), page.name


def test_new_names_in_changelog_exist():
    code = set(re.findall(r"\w+", "".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))))
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n## 0.2.0")[0]
    column = "".join(row.split(" | ", 1)[1] for row in text.splitlines() if row.startswith("| "))
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`(?!--)([^`]*)`", column))))
    assert named - code - {"examples", "repulsion", "py", "5m"} == set()


@cache
def known_options():
    """Return the options of the commands and scripts of this repository, and of programs that pages name."""
    parsers = build_parser()
    known = {
        option for parser in (parsers[0], *parsers[1].values()) for option in parser._option_string_actions
    }
    for script in (
        *(ROOT / "benchmarks").rglob("*.py"),
        ROOT / "tests/faults/fuzz.py",
        *(ROOT / "examples").glob("*.py"),
    ):
        known |= set(re.findall(r'add_argument\(\s*"(--[\w-]+)"', script.read_text(encoding="utf-8")))
    return known | OTHER_OPTIONS


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is not installed")
def test_site_builds_and_documents_public_names(tmp_path):
    # Not --quiet: it hides warnings from --strict too.
    run_python("-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path, cwd=ROOT)

    site = {page.parent: page.read_text(encoding="utf-8") for page in tmp_path.rglob("index.html")}
    reference = "".join(html for page, html in site.items() if page.is_relative_to(tmp_path / "api"))
    assert [paths for paths in public_names() if not any(f'id="{path}"' in reference for path in paths)] == []
    assert not re.search(r":(math|func|class|meth|attr|mod):|\.\. math::", reference)
    assert "&gt;&gt;&gt;" not in re.sub(r"<pre.*?</pre>", "", reference, flags=re.DOTALL)
    for html in site.values():  # the site is of use without a network
        assert not re.search(r'<(script|link|img)[^>]*(src|href)="(https?:)?//', html)
