"""Text files, with failures as errors.IoError."""

import os
import pathlib

from . import errors


def read(file: str | os.PathLike, expected: str) -> str:
    """Returns a file's text. `expected` says in the error what the file should be."""
    try:
        return pathlib.Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise errors.IoError(f"{os.fspath(file)}: {error.strerror}; expected {expected}") from None
    except UnicodeDecodeError:
        raise errors.InvalidArgument(f"{os.fspath(file)} is not text; expected {expected}") from None


def write(file: str | os.PathLike, text: str) -> None:
    """Writes a file. A failure leaves a file that was there as it was."""
    path = pathlib.Path(file).resolve()
    try:
        if path.exists() and not path.is_file():  # such as /dev/stdout
            path.write_text(text, encoding="utf-8")
            return
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            beside.write_text(text, encoding="utf-8")
            beside.replace(path)
        except OSError:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise errors.IoError(f"{os.fspath(file)}: {error.strerror}; name a file that can be written") from None
