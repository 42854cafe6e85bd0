"""Run the notebooks of docs/tutorials, and show them as pages of the site.

``python docs/hooks/notebooks.py`` runs all of them and stores their outputs.
"""

import ast
import base64
import contextlib
import io
import json
import os
import re
import shlex
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "tutorials"
ORDER = ("first-labels", "reading-the-report", "pyg-model", "oversmoothing")
"""Names of the notebooks. The second reads files that the first writes."""
VARYING = re.compile(r"[Bb]aseline|difference")
PROGRESS = re.compile(r"^(Selecting|Comparing|Predicting) .*\n", re.MULTILINE)


def read(path: Path) -> dict[str, Any]:
    """Read a notebook, with the source of each cell as one text."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"])
    return notebook


def execute(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell as Jupyter does, and return its outputs.

    A line ``!pairnorm …`` runs the command line; the value of a last expression is displayed.
    """
    code = re.sub(r"^!pairnorm ((?:.*\\\n)*.*)$", r'_pairnorm(r"""\1""")', source, flags=re.MULTILINE)
    names["_pairnorm"] = _pairnorm
    tree = ast.parse(code)
    last = tree.body.pop().value if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        value = eval(compile(ast.Expression(last), "<cell>", "eval"), names) if last else None
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    if value is not None and not source.rstrip().endswith(";"):
        result = {"output_type": "execute_result", "execution_count": None, "metadata": {}}
        outputs.append(result | {"data": _represent(value)})
    return outputs


def _pairnorm(words: str) -> None:
    from pairnorm.cli import main

    if main(shlex.split(words.replace("\\\n", " "))):
        raise RuntimeError(f"pairnorm {words} failed")


def _represent(value: Any) -> dict[str, Any]:
    if hasattr(value, "savefig"):
        file = io.BytesIO()
        value.savefig(file, format="png", dpi=80, metadata={"Software": None})
        return {"image/png": base64.b64encode(file.getvalue()).decode()}
    shown = {"text/plain": [repr(value)]}
    if hasattr(value, "_repr_html_"):
        shown["text/html"] = value._repr_html_().splitlines(keepends=True)
    return shown


def run(path: Path) -> dict[str, Any]:
    """Run all cells of a notebook in order, in the working directory; return it with its new outputs."""
    notebook, names = read(path), {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"], 1):
        if cell["cell_type"] == "code":
            try:
                cell["outputs"] = execute(cell["source"], names)
            except Exception as error:
                error.add_note(f"{path.name}, cell {number}")
                raise
    return notebook


def text_outputs(cell: dict[str, Any]) -> str:
    """Return what a cell printed, with digits masked: other processors round differently.

    Of a cell tagged ``varies``, because a slow processor selects other models, sentences that compare models
    are left out, and so are lines of progress; names of models in brackets are masked.
    """
    texts = (
        "".join(output.get("text", output.get("data", {}).get("text/plain", "")))
        for output in cell["outputs"]
    )
    text = "".join(texts)
    if "varies" in cell["metadata"].get("tags", ()):
        sentences = re.split(r"(?<=[.;]) |\n", re.sub(r"\([^()]*\)", "()", PROGRESS.sub("", text)))
        text = "\n".join(sentence for sentence in sentences if not VARYING.search(sentence))
    return re.sub(r"\s+", " ", re.sub(r"[-+\d.]+", "#", text))


def to_markdown(notebook: dict[str, Any], name: str) -> str:
    """Return a notebook as Markdown, with a link to the notebook itself."""
    parts = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            parts.append(cell["source"])
            continue
        shell = cell["source"].startswith("!")
        source = re.sub(r"^!", "", cell["source"], flags=re.MULTILINE) if shell else cell["source"]
        parts.append(f"```{'sh' if shell else 'python'}\n{source}\n```")
        parts += [_output(output) for output in cell["outputs"]]
    title, _, rest = "\n\n".join(parts).partition("\n")
    return f"{title}\n\n*[Download this page as a notebook]({name}.ipynb){{download}}.*\n{rest}\n"


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="figure" src="data:image/png;base64,{data["image/png"]}">'
    if "text/html" in data:
        html = re.sub(r"<style.*?</style>\n?", "", "".join(data["text/html"]), flags=re.DOTALL)
        return re.sub(r' (border|class|style)="[^"]*"', "", html)
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{text.rstrip()}\n```"


def on_files(files: Any, *, config: Any) -> Any:
    """Add a page for every notebook; the notebook stays, to be downloaded."""
    from mkdocs.structure.files import File

    for name in ORDER:
        page = to_markdown(read(FOLDER / f"{name}.ipynb"), name)
        files.append(File.generated(config, f"tutorials/{name}.md", content=page))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links to a notebook lead to its page; links to download it stay."""
    return re.sub(r"(\]\([^)]*)\.ipynb\)(?!\{download\})", r"\1.md)", markdown).replace("{download}", "")


def main() -> None:
    """Run all notebooks in one temporary folder, and store their outputs."""
    names = sys.argv[1:] or ORDER
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for table in FOLDER.glob("*.csv"):
            Path(table.name).write_bytes(table.read_bytes())
        for name in names:
            path = FOLDER / f"{name}.ipynb"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                notebook = run(path)
            for cell in notebook["cells"]:
                cell["source"] = cell["source"].splitlines(keepends=True)
            path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
