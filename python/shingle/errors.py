"""Exceptions of Shingle. Each carries the line of text that names the wrong value, what is accepted and the remedy."""


class Error(RuntimeError):
    """Base of all exceptions that Shingle raises."""


class InvalidArgument(Error, ValueError):
    """A value from the caller is wrong."""


class Unsupported(Error):
    """This build or this machine cannot serve the request."""


class Timeout(Error, TimeoutError):
    """A wait passed its deadline, or another rank failed. The world is then broken."""


class IoError(Error, OSError):
    """A file cannot be read or written."""


class CudaError(Error):
    """A call of the CUDA runtime failed."""


class NcclError(Error):
    """A call of NCCL failed."""


class MpiError(Error):
    """A call of MPI failed."""


class OutOfMemory(Error, MemoryError):
    """Host memory is exhausted."""


class InternalError(Error):
    """A defect of Shingle: please report the text."""
