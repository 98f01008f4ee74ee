"""Prints where the headers of dlpack_py are, for build tools; copies headers into a project, and updates them."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from dlpack_py import __version__, get_include
from dlpack_py import _vendor as vendoring

EXAMPLES = """\
examples:
  cc -c $(python -m dlpack_py --includes) image.c
  cmake -S . -B build -Ddlpack_py_DIR=$(python -m dlpack_py --cmakedir)
  PKG_CONFIG_PATH=$(python -m dlpack_py --pkgconfigdir) meson setup build
  python -m dlpack_py vendor third_party/            copies dlpack_tensor.h, dlpack_py.h and dlpack.h
  python -m dlpack_py vendor third_party/ --check    says whether they are those of this package
"""
VENDOR_EXAMPLES = """\
names: a header, as exchange or dlpack_exchange.h, with what it includes; hpp, the header for C++; pxd, the declarations
for Cython of the chosen headers. Without names: py, which brings tensor. With --update: names to add.

exit status of --check: 0 if all files are as in this package; 1 if a file was changed by hand, is missing, or exists no
more in this package; 3 if files are only of another version. 2: the request makes no sense, here as everywhere.

examples:
  python -m dlpack_py vendor third_party/ exchange buffer pxd
  python -m dlpack_py vendor third_party/ --update
"""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; --help says more\n")


def main_parser() -> Parser:
    usage = "python -m dlpack_py [-h] [--includes] [--cmakedir] [--pkgconfigdir] [--version]\n"
    usage += "       python -m dlpack_py vendor [-h] [--check | --update] [--force] [--no-dlpack-h] FOLDER [NAME ...]"
    made = Parser("python -m dlpack_py", usage=usage, description=__doc__, epilog=EXAMPLES)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--includes", action="store_true", help="print the compiler flag that finds the headers, -I...")
    made.add_argument("--cmakedir", action="store_true", help="print the folder for CMake's dlpack_py_DIR")
    made.add_argument("--pkgconfigdir", action="store_true", help="print the folder for PKG_CONFIG_PATH")
    made.add_argument("--version", action="store_true", help="print the version of the headers")
    return made


def vendor_parser() -> Parser:
    about = "Copies headers into a project, with dlpack.h and the licences."
    made = Parser("python -m dlpack_py vendor", description=about, epilog=VENDOR_EXAMPLES)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("folder", type=Path, metavar="FOLDER")
    made.add_argument("names", nargs="*", default=[], metavar="NAME", help="which headers; without names: py")
    what = made.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="compare: see the exit status below")
    what.add_argument("--update", action="store_true", help="update the files that are there")
    made.add_argument("--force", action="store_true", help="overwrite files with changes, and newer ones")
    made.add_argument("--no-dlpack-h", action="store_true", help="leave out dlpack.h")
    return made


def vendor(arguments: list[str]) -> int:
    options = vendor_parser().parse_intermixed_args(arguments)
    try:
        if options.check:
            if options.names:
                raise vendoring.Refused("--check looks at all files that are there, and takes no names")
            return vendoring.check(options.folder)
        write = vendoring.update if options.update else vendoring.copy
        write(options.folder, options.names, not options.no_dlpack_h, options.force)
    except (vendoring.Refused, OSError) as error:
        text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
        print(f"python -m dlpack_py vendor: {text}", file=sys.stderr)
        return 2
    return 0


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["vendor"]:
        return vendor(arguments[1:])
    options = main_parser().parse_args(arguments)
    share = Path(get_include()).parent / "share"
    flag = f"-I{get_include()}"
    answers = {
        "includes": subprocess.list2cmdline([flag]) if os.name == "nt" else shlex.quote(flag),
        "cmakedir": share / "cmake" / "dlpack_py",
        "pkgconfigdir": share / "pkgconfig",
        "version": __version__,
    }
    asked = [answer for option, answer in answers.items() if getattr(options, option)]
    if not asked:
        main_parser().print_help()
    for answer in asked:
        print(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
