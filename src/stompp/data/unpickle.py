"""Reads the pickled CIFAR batches without trusting them.

`pickle.load` runs whatever a file asks for. Here two gates stand before it. First every opcode is looked at without
running any: only those that build plain values pass, and a memo index may not exceed the number of opcodes (a single
opcode could otherwise ask for gigabytes). Then the unpickler may name only numpy's array builders, and even these are
not called: harmless stand-ins record what the array should be, and we build it after checking.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from stompp.errors import UsageError

_LARGEST = 256 << 20  # CIFAR-100's training batch has 155 MB

_VALUES = """PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 STRING
BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8 EMPTY_DICT
DICT SETITEM SETITEMS EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 MEMOIZE PUT BINPUT
LONG_BINPUT GET BINGET LONG_BINGET"""
_BUILDERS = "GLOBAL STACK_GLOBAL REDUCE BUILD"
_ALLOWED = frozenset(f"{_VALUES} {_BUILDERS}".split())


def read_batch(path: Path, label_key: str) -> tuple[np.ndarray, np.ndarray]:
    """Reads (images, labels) from one pickled batch: a dict with a uint8 array `data` and a list of labels."""
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST + 1)
    except FileNotFoundError:
        raise UsageError(
            f"{path} is missing though its folder is there; delete the folder {path.parent} and load again"
        ) from None
    try:
        batch = load_plain(raw)
        if not isinstance(batch, dict):
            raise pickle.UnpicklingError(f"it holds a {type(batch).__name__}, not a dict")
        batch = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
        for key in ("data", label_key):
            if key not in batch:
                raise pickle.UnpicklingError(f"it has no entry {key!r}")
        images = batch["data"].build() if isinstance(batch["data"], _Array) else None
        if images is None or images.dtype != np.uint8:
            raise pickle.UnpicklingError("its entry 'data' is not an array of bytes")
        labels = batch[label_key]
        labels = labels.build().tolist() if isinstance(labels, _Array) else labels
        if not isinstance(labels, list) or not all(type(label) is int and abs(label) < 1 << 31 for label in labels):
            raise pickle.UnpicklingError(f"its entry {label_key!r} is not a list of whole numbers")
    except pickle.UnpicklingError as error:
        raise UsageError(
            f"{path} is refused as a CIFAR batch: {error}; nothing in it was run. "
            f"Delete the folder {path.parent} and load again"
        ) from None
    return images, np.asarray(labels, dtype=np.int64)


def load_plain(raw: bytes) -> Any:
    """Unpickles plain values; arrays come as stand-ins, anything else raises `pickle.UnpicklingError`.

    >>> load_plain(pickle.dumps({"labels": [1, 2]}))
    {'labels': [1, 2]}
    >>> load_plain(pickle.dumps(print))
    Traceback (most recent call last):
    _pickle.UnpicklingError: it asks for builtins.print, which no batch needs
    """
    if len(raw) > _LARGEST:
        raise pickle.UnpicklingError(f"it is larger than {_LARGEST} bytes")
    _scan(raw)
    try:
        # bytes: the official files come from Python 2, whose str is our bytes
        return _Unpickler(io.BytesIO(raw), encoding="bytes").load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a hostile or damaged stream can raise nearly anything
        raise pickle.UnpicklingError(f"it is damaged ({type(error).__name__})") from None


def _scan(raw: bytes) -> None:
    count = 0
    try:
        for opcode, argument, _ in pickletools.genops(raw):
            count += 1
            if opcode.name not in _ALLOWED:
                raise pickle.UnpicklingError(f"it uses the opcode {opcode.name}, which no batch needs")
            if "PUT" in opcode.name and not (isinstance(argument, int) and 0 <= argument <= count):
                raise pickle.UnpicklingError("it asks for a memo beyond its own length")
    except pickle.UnpicklingError:
        raise
    except Exception as error:
        raise pickle.UnpicklingError(f"it is cut short or not a pickle ({error})".replace("\n", " ")) from None


class _Dtype:
    """Stands in for numpy.dtype; only one-byte and whole-number kinds are known."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        self.code = ("" if order in ("|", "=") else order) + self.code

    def build(self) -> np.dtype:
        if not isinstance(self.code, str) or self.code.lstrip("<>|=") not in ("u1", "i4", "i8", "B"):
            raise pickle.UnpicklingError(f"it holds an array of type {self.code!r}, which no batch needs")
        return np.dtype(self.code)


class _Array:
    """Stands in for an array: what it was told, unchecked, until `build`."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def build(self) -> np.ndarray:
        try:
            _, shape, dtype, fortran, raw = self.state
            flat: np.ndarray = np.frombuffer(bytes(raw), dtype=dtype.build())
            return flat.reshape(shape, order="F" if fortran else "C").copy()
        except pickle.UnpicklingError:
            raise
        except Exception:
            raise pickle.UnpicklingError("it holds a damaged array") from None


def _from_buffer(raw: Any, dtype: Any, shape: Any, order: Any = "C") -> _Array:
    array = _Array()
    array.state = (1, shape, dtype, order in ("F", b"F"), raw)
    return array


def _encode(text: Any, encoding: Any) -> bytes:
    # how Python 3 writes bytes into a protocol 2 pickle
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("it encodes text in a way no batch needs")
    return text.encode("latin1")


class _NdarrayName:
    """Stands in for the class numpy.ndarray where it is only named, as the first argument of a builder."""

    def __new__(cls, *_: Any) -> _NdarrayName:
        raise pickle.UnpicklingError("it builds an array directly, which no batch needs")


# numpy 2 moved its builders from numpy.core to numpy._core
_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _NdarrayName,
    ("_codecs", "encode"): _encode,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Array for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch needs") from None
