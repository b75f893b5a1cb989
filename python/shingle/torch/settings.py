"""Settings of contexts that are made later, and which calls are overlapped."""

import dataclasses
import os

from ..errors import InvalidArgument
from . import native


NUMBERS = {  # types and least values
    "max_m": (int, 1), "min_m": (int, 0), "min_bucket_bytes": (int, 0), "workers": (int, 0),
    "timeout_us": ((int, float), 0),
}  # fmt: skip


def from_environment(field, default):
    name, least = f"SHINGLE_{field.upper()}", NUMBERS[field][1]
    text = os.environ.get(name, str(default))
    if not text.isdecimal() or int(text) < least:
        raise InvalidArgument(f"{name} = {text!r} is no whole number from {least} on")
    return int(text)


@dataclasses.dataclass
class Settings:
    """What `configure` sets. All ranks must set the same values.

    max_m: largest m that operators are declared with. Calls with more rows run as mm + c10d. It sets the size of the
    staging memory. min_m: least m that is overlapped where the table has no figure for the shape. min_bucket_bytes:
    least bytes of a bucket of data parallelism that engines move, likewise, and of x that they gather in backward.
    mechanism: of all operators; None: the fastest predicted one. workers: SMs that waiting kernels may hold; 0: all.
    timeout_us: deadline of waits, in microseconds; 0: 30 s, and for buckets the timeout of the process group. native:
    libshingle_torch.so serves calls like an earlier one. serve_experts: the plugins for vLLM and SGLang also serve
    mixture-of-experts layers, which takes memory for max_m rows of each expert.
    """

    max_m: int = from_environment("max_m", 8192)
    min_m: int = from_environment("min_m", 512)
    min_bucket_bytes: int = from_environment("min_bucket_bytes", 4 << 20)
    mechanism: str | None = None
    workers: int = 0
    timeout_us: float = 0
    native: bool = os.environ.get("SHINGLE_NATIVE", "1") != "0"
    overlap_packed: bool = False
    serve_experts: bool = os.environ.get("SHINGLE_EXPERTS", "0") == "1"


settings = Settings()


def configure(**changes):
    """Changes fields of Settings: max_m, min_m, … Call it on all ranks alike."""
    for name, value in changes.items():
        if name not in settings.__dataclass_fields__:
            raise TypeError(f"configure() has no setting {name!r}; it has {', '.join(settings.__dataclass_fields__)}")
        if name in NUMBERS:
            kinds, least = NUMBERS[name]
            if isinstance(value, bool) or not isinstance(value, kinds) or not value >= least:
                raise InvalidArgument(f"{name} = {value!r} is no {'whole ' * (kinds is int)}number from {least} on")
    for name, value in changes.items():
        setattr(settings, name, value)
    native.forget()
