"""Modules that are made here, in sys.modules."""

import importlib.machinery
import sys
import types


def module(name, **contents):
    """Makes a module, and packages above it that are missing. Classes and functions then say that they are of it."""
    above, _, last = name.rpartition(".")
    if above and above not in sys.modules:
        module(above)
    made = types.ModuleType(name)
    made.__spec__, made.__path__ = importlib.machinery.ModuleSpec(name, None), []
    made.__dict__.update(contents)
    for content in contents.values():
        if getattr(content, "__module__", "").startswith(__package__):
            content.__module__ = name
    sys.modules[name] = made
    if above:
        setattr(sys.modules[above], last, made)
    return made
