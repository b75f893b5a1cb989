"""The tables of README.md and docs, for scripts/tables.py: one function each, from records to a head and rows."""

from . import copy_engine, experts, gemm, overlap, papers, pytorch, simulator, tuning
from .common import TABLES

__all__ = ["TABLES", "copy_engine", "experts", "gemm", "overlap", "papers", "pytorch", "simulator", "tuning"]
