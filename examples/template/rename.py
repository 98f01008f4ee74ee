"""Gives this copy of the template the names of a project: `rename.py rainfall Rainfall`, the module and the type."""

import keyword
import re
import sys
from pathlib import Path


def main(module, type_name):
    if not re.fullmatch(r"[a-z][a-z0-9_]*", module) or not re.fullmatch(r"[A-Z]\w*", type_name, re.ASCII):
        sys.exit(f"a module is written in small letters, a type begins with a capital: not {module}, {type_name}")
    if keyword.iskeyword(module) or keyword.iskeyword(type_name):
        sys.exit(f"a name is a word of Python: {module}, {type_name}")
    for path in sorted(Path(__file__).parent.rglob("*")):
        if not path.is_file() or path.suffix not in {".c", ".md", ".py", ".toml", ".yml"} or path.name == "rename.py":
            continue
        if any(part.startswith(".venv") or part in ("build", "dist") for part in path.parts):
            continue
        text = path.read_text("utf-8")
        path.write_text(text.replace("myarray", module).replace("MyArray", type_name), "utf-8")
        path.rename(path.with_name(path.name.replace("myarray", module)))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
