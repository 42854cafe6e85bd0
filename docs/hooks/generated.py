"""Fill pages from the source: the command line, the error codes and the examples."""

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pairnorm.cli import EXIT_CODES, build_parser

ROOT = Path(__file__).parents[2]


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace the marks ``<!-- name -->`` of a page."""
    for name, describe in GENERATED.items():
        if f"<!-- {name} -->" in markdown:
            markdown = markdown.replace(f"<!-- {name} -->", describe())
    return markdown


def describe_commands() -> str:
    """Return every command and its options as Markdown."""
    return "\n\n".join(_command(name, parser) for name, parser in build_parser()[1].items())


def _command(name: str, parser: Any) -> str:
    example = "\n".join(line.strip() for line in (parser.epilog or "").splitlines()[1:])
    parts = [f"## {name}", parser.description, f"```sh\n{example}\n```"]
    for group in parser._action_groups:
        rows = [_row(action) for action in group._group_actions if action.help != argparse.SUPPRESS]
        if rows:
            parts.append(f"**{group.title}**\n\n| Option | Meaning |\n|---|---|\n" + "\n".join(rows))
    return "\n\n".join(parts)


def _row(action: argparse.Action) -> str:
    name = action.option_strings[-1] if action.option_strings else action.metavar
    value = f" {action.metavar}" if action.option_strings and action.metavar else ""
    text = str(action.help).replace("|", "\\|")
    return f"| `{name}{value}` | {text} |"


def describe_exit_codes() -> str:
    """Return the exit codes as a table."""
    return "| Code | Meaning |\n|---|---|\n" + "\n".join(
        f"| {code} | {text} |" for code, text in EXIT_CODES.items()
    )


def error_codes() -> dict[str, str]:
    """Return a message of each code of ``PairNormError`` in the source, with ``…`` for values."""
    codes: dict[str, str] = {}
    for path in sorted((ROOT / "src/pairnorm").rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                for code, message in _raised(function):
                    codes[code] = max(codes.get(code, ""), message, key=_letters)
    return dict(sorted(codes.items()))


def _letters(message: str) -> int:
    """Return how much a message says without its values; very long ones say less."""
    return min(len(re.sub(r"\W", "", message)), 60)


def _raised(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    assigned = [
        (node.lineno, *pair)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        for pair in _pairs(node.targets[0], node.value)
    ]
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        for keyword in call.keywords:
            if keyword.arg == "code" and isinstance(keyword.value, ast.Constant):
                problem = call.args[0] if call.args else None
                if isinstance(problem, ast.Name):  # the last assignment before the error
                    values = [
                        value
                        for line, name, value in sorted(assigned, key=lambda one: one[0])
                        if name == problem.id and line <= call.lineno
                    ]
                    problem = values[-1] if values else None
                yield str(keyword.value.value), _text(problem)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, other in zip(target.elts, value.elts, strict=False):
            yield from _pairs(one, other)
    elif isinstance(target, ast.Name):
        yield target.id, value


def _text(node: ast.expr | None) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) if isinstance(part, ast.Constant) else "…" for part in parts)
        case ast.BinOp(left=left, right=right):
            return _text(left) + _text(right)
    return ""


def describe_error_codes() -> str:
    """Return the error codes as a table, with a message of each."""
    rows = [f"| `{code}` | {text.replace('|', chr(92) + '|')} |" for code, text in error_codes().items()]
    return "| Code | A message with it |\n|---|---|\n" + "\n".join(rows)


def describe_examples() -> str:
    """Return every file of examples/ with its first sentence and its code."""
    parts = []
    for path in sorted((ROOT / "examples").glob("*.py")):
        source = path.read_text(encoding="utf-8")
        docstring = ast.get_docstring(ast.parse(source)) or ""
        code = re.sub(r'^r?""".*?"""\n*', "", source, count=1, flags=re.DOTALL)
        title = path.stem.replace("_", " ").replace("pyg", "PyG").replace("csv", "CSV").capitalize()
        parts.append(f'## {title}\n\n{docstring}\n\n```python title="examples/{path.name}"\n{code}```')
    return "\n\n".join(parts)


GENERATED = {
    "commands": describe_commands,
    "exit codes": describe_exit_codes,
    "error codes": describe_error_codes,
    "examples": describe_examples,
}
