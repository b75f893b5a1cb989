#!/usr/bin/env python3
"""Prints the folders of CUDA libraries in Python packages, for machines with no other NCCL and cuBLAS:

    export LD_LIBRARY_PATH=$(scripts/cuda_libraries.py)
"""

import pathlib
import sys

folders = {str(lib.parent) for path in sys.path for lib in pathlib.Path(path).glob("nvidia/**/lib/lib*.so*")}
print(":".join(sorted(folders)))
