"""Fills the recipes for a release: fill.py ARCHIVE URL FOLDER writes them into FOLDER.

ARCHIVE is the sdist that `make release` has built, URL the address from which others download it. The recipes in
this folder have @NAME@ in place of what depends on the release.
"""

import hashlib
import re
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
RECIPES = "conan", "conda", "meson", "vcpkg"


def values(archive, url):
    """{name: text} of a release."""
    data = Path(archive).read_bytes()
    with tarfile.open(archive) as tar:
        folder = tar.getnames()[0].split("/")[0]
        information = tar.extractfile(f"{folder}/PKG-INFO").read().decode()
    return {
        "VERSION": re.search(r"^Version: (.*)$", information, re.MULTILINE)[1],
        "HOME": re.search(r"^Project-URL: Source, (.*)$", information, re.MULTILINE)[1],
        "FILE": url.rpartition("/")[2],
        "FOLDER": folder,
        "URL": url,
        "SHA256": hashlib.sha256(data).hexdigest(),
        "SHA512": hashlib.sha512(data).hexdigest(),
    }


def fill(archive, url, target):
    known = values(archive, url)
    for path in sorted(path for name in RECIPES for path in (HERE / name).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            written = Path(target) / path.relative_to(HERE)
            written.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text("utf-8")
            written.write_text(re.sub(r"@([A-Z]\w*)@", lambda match: known[match[1]], text), "utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    fill(*sys.argv[1:])
