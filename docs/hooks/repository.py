"""Links to files outside docs/, which a code host follows: the site names the files, and copies images."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(((?:\.\./)+[^)#\s]+)[^)]*\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Replace ``[text](../path)`` by text that names the path, and ``![text](../path)`` by a copy."""
    docs = Path(config["docs_dir"])
    folder = posixpath.dirname(page.file.src_uri)

    def replace(link: re.Match[str]) -> str:
        image, text, target = link.groups()
        path = posixpath.normpath(posixpath.join(docs.name, folder, target))
        if path.startswith(f"{docs.name}/"):
            return link[0]
        if not (docs.parent / path).exists():
            raise PluginError(f"{page.file.src_uri} links to {target}, which does not exist")
        if not image:
            return f"`{path}`" if path.endswith(text.strip("`")) else f"{text} (`{path}`)"
        copy = f"assets/{path}"
        if files.get_file_from_path(copy) is None:
            files.append(File.generated(config, copy, abs_src_path=str(docs.parent / path)))
        return f"![{text}]({posixpath.relpath(copy, folder)})"

    return _LINK.sub(replace, markdown)
