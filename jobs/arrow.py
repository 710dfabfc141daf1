"""Arrow without pandas, for commands that make no frame: loading pandas is a tenth of a short command's time."""

import sys

import pyarrow as pa


class _Absent:
    """Finds no pandas."""

    def find_spec(self, name: str, *_: object) -> None:
        """Say that pandas is not installed."""
        if name == "pandas":
            raise ModuleNotFoundError(name)


def do_without_pandas() -> None:
    """Have Arrow not load pandas at its first array, where it looks once whether it is there to know its objects.

    Arrays are the same without. Whoever asks Arrow for a frame, or imports pandas, has it afterwards as ever.
    """
    if "pandas" in sys.modules:
        return
    absent = _Absent()
    sys.meta_path.insert(0, absent)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(absent)
