"""Keep the vocabulary of the field: words that once made the code hard to read must not come back."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# A word, and the term to use instead. Names are split at underscores and capitals.
NAMES = {
    "alike": "similar, variants or near_duplicates",
    "beside": "next_to, or compared_with",
    "chances": "probabilities",
    "dear": "expensive",
    "fills": "imputations",
    "found": "what was found: results, entries, match",
    "heard": "on_progress",
    "holed": "incomplete",
    "judged": "evaluated",
    "lacking": "pending, or missing",
    "lesson": "pseudo_labels",
    "remedies": "methods, or hint",
    "remedy": "method, or hint",
    "rival": "baseline",
    "rivals": "baselines",
    "sparing": "search_limits",
    "spoil": "damage",
    "strange": "unknown",
    "taught": "self_trained",
    "tell": "on_progress, or notify",
    "told": "options",
    "truths": "booleans",
    "wanted": "requested",
}
# Names of variables that say nothing, and what to write instead.
VARIABLES = {
    "began": "start",
    "every": "what it holds: train, columns, all_runs",
    "some": "what it holds: rows, batch, group",
}
# A test is named by subject, condition and expected result, not by a sentence.
TEST_NAME = re.compile(r"test_(?:an?|the|it|what|where|who|whoever|there|how|of|nobody)_")
TEXT = {
    r"\banew\b": "again",
    r"\bbut for\b": "except",
    r"\bchances\b": "probabilities",
    r"\bearns its keep\b": "beats the baselines",
    r"\blest\b": "so that … not",
    r"\bremed(?:y|ies)\b": "method, or hint",
    r"\brivals?\b": "baseline",
    r"\bso many\b": "a number, or N",
    r"\bstand-ins?\b": "imputed value",
    r"\btold apart\b": "significantly different",
    r"\b(?:neighbour|colour|behaviour|labelled|centred|normalis)": "American spelling",
}
# Packages and pages that are clean. Add one when it is; never remove one.
CLEAN_CODE = [
    "src/pairnorm/__main__.py",
    "src/pairnorm/base",
    "src/pairnorm/classify",
    "src/pairnorm/cli.py",
    "src/pairnorm/commands",
    "src/pairnorm/compare",
    "src/pairnorm/data",
    "src/pairnorm/impute",
    "src/pairnorm/measure",
    "src/pairnorm/nn",
    "src/pairnorm/paper",
    "src/pairnorm/report",
    "src/pairnorm/sweep",
    "src/pairnorm/train",
    "src/pairnorm/__init__.py",
    "benchmarks",
    "examples",
    *(f"tests/{name}" for name in ("base", "classify", "commands", "compare", "faults", "paper")),
    *("tests/report", "tests/sweep"),
    *sorted(f"tests/{path.name}" for path in ROOT.glob("tests/*.py") if path != Path(__file__)),
]
CLEAN_PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.md")),
]


def words_of(name: str) -> list[str]:
    """Split an identifier at underscores and capitals.

    >>> words_of("_FoundRows_told")
    ['found', 'rows', 'told']
    """
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def defined_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every name that a module defines, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno


def texts(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every string of a module that is a sentence, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value, node.lineno


def complaints_about(text: str) -> list[str]:
    """Name each word in a text that has a better one."""
    return [f"{match[0]!r}: write {use}" for word, use in TEXT.items() for match in re.finditer(word, text)]


@pytest.mark.parametrize("target", CLEAN_CODE)
def test_code_vocabulary(target):
    complaints = []
    path = ROOT / target
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        tree, where = ast.parse(file.read_text(encoding="utf-8")), file.relative_to(ROOT)
        complaints += [
            f"{where}:{line}: {name!r} has {word!r}: write {NAMES[word]}"
            for name, line in [*defined_names(tree), (file.stem, 1)]
            for word in words_of(name)
            if word in NAMES
        ]
        complaints += [
            f"{where}:{line}: {name!r} is a sentence: name subject, condition and expected result"
            for name, line in defined_names(tree)
            if TEST_NAME.match(name)
        ]
        complaints += [
            f"{where}:{line}: write {VARIABLES[name]} instead of {name!r}"
            for name, line in defined_names(tree)
            if name in VARIABLES
        ]
        complaints += [
            f"{where}:{line}: {complaint}"
            for text, line in texts(tree)
            for complaint in complaints_about(text)
        ]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("path", CLEAN_PAGES)
def test_page_vocabulary(path):
    assert not complaints_about((ROOT / path).read_text(encoding="utf-8"))


def test_check_finds_words_in_names_and_sentences():
    tree = ast.parse('def f(told_rows):\n    """Do it lest it fail."""\n    os.walk("remedy")\n')
    assert [name for name, _ in defined_names(tree) if "told" in words_of(name)] == ["told_rows"]
    assert [complaint for text, _ in texts(tree) for complaint in complaints_about(text)] == [
        "'lest': write so that … not"
    ]
