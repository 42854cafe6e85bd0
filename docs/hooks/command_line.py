"""Fill the page of the command line from the parsers, so that it cannot differ from ``--help``."""

import argparse
from typing import Any

from pairnorm.cli import EXIT_CODES, build_parser


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace the marks of ``command-line.md``."""
    if page.file.src_uri != "command-line.md":
        return markdown
    codes = "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())
    table = f"| Code | Meaning |\n|---|---|\n{codes}"
    return markdown.replace("<!-- commands -->", describe()).replace("<!-- exit codes -->", table)


def describe() -> str:
    """Return every command and its options as Markdown."""
    commands = build_parser()[1]
    return "\n\n".join(_command(name, parser) for name, parser in commands.items())


def _command(name: str, parser: Any) -> str:
    example = (parser.epilog or "").partition("\n")[2]
    parts = [f"## {name}", parser.description, f"```sh\n{_dedent(example)}\n```"]
    for group in parser._action_groups:
        rows = [_row(action) for action in group._group_actions if action.help != argparse.SUPPRESS]
        if rows:
            parts.append(f"**{group.title}**\n\n| Option | Meaning |\n|---|---|\n" + "\n".join(rows))
    return "\n\n".join(parts)


def _dedent(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines())


def _row(action: argparse.Action) -> str:
    name = action.option_strings[-1] if action.option_strings else action.metavar
    value = f" {action.metavar}" if action.option_strings and action.metavar else ""
    text = str(action.help).replace("|", "\\|")
    return f"| `{name}{value}` | {text} |"
