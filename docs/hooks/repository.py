"""Links to files outside docs/: to the repository where the metadata name one, else to copies in the site."""

import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(((?:\.\./)+[^)#\s]+)([^)]*)\)")


def on_config(config: Any) -> Any:
    """Take the address of the repository from the metadata of the package."""
    metadata = tomllib.loads(Path(config["docs_dir"]).with_name("pyproject.toml").read_text(encoding="utf-8"))
    config["repo_url"] = metadata["project"].get("urls", {}).get("Repository")
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Let ``[text](../path)`` and ``![text](../path)`` lead to the file, wherever the site is."""
    docs = Path(config["docs_dir"])
    folder = posixpath.dirname(page.file.src_uri)

    def replace(link: re.Match[str]) -> str:
        image, text, target, anchor = link.groups()
        path = posixpath.normpath(posixpath.join(docs.name, folder, target))
        if path.startswith(f"{docs.name}/"):
            return link[0]
        if not (docs.parent / path).exists():
            raise PluginError(f"{page.file.src_uri} links to {target}, which does not exist")
        if config["repo_url"] and not image:
            return f"[{text}]({config['repo_url']}/blob/main/{path}{anchor})"
        # Markdown would become a page of the site, whose own links lead nowhere.
        copy = f"assets/{path}.txt" if path.endswith(".md") else f"assets/{path}"
        if files.get_file_from_path(copy) is None:
            files.append(File.generated(config, copy, abs_src_path=str(docs.parent / path)))
        return f"{image}[{text}]({posixpath.relpath(copy, folder)})"

    return _LINK.sub(replace, markdown)
