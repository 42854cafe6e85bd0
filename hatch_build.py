"""The README as a package index shows it: its links and pictures lead to the repository, or are left out."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")


def absolute(text: str, repository: str | None) -> str:
    """Make links of a README absolute; without a repository, pictures go and links become their text."""

    def replace(link: re.Match[str]) -> str:
        image, words, path = link.groups()
        if repository is None:
            return "" if image else words
        return f"{image}[{words}]({repository}/{'raw' if image else 'blob'}/main/{path})"

    return _LINK.sub(replace, text)


class Readme(MetadataHookInterface):
    """Fills in the field ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Read README.md, whose relative links only work in a checkout."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Repository")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, repository)}
