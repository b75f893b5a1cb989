"""Finds the package in the checkout, and libshingle.so in a build, unless they are installed or named."""

import importlib.util
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python"))
if importlib.util.find_spec("shingle") is None:
    sys.path.insert(0, str(ROOT / "python"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")]))
    built = sorted(ROOT.glob("build/*/src/shared/libshingle.so"), key=lambda path: path.stat().st_mtime)
    if built and "SHINGLE_LIBRARY" not in os.environ:
        os.environ["SHINGLE_LIBRARY"] = str(built[-1])
