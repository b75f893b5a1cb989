#!/usr/bin/env python3
"""Prints where Python packages keep CUDA's libraries, for machines that have NCCL and cuBLAS nowhere else:

    export LD_LIBRARY_PATH=$(scripts/cuda_libraries.py)
"""

import pathlib
import sys

folders = {str(lib.parent) for path in sys.path for lib in pathlib.Path(path).glob("nvidia/**/lib/lib*.so*")}
print(":".join(sorted(folders)))
