"""Reads the pickled CIFAR batches without trusting them.

`pickle.load` runs whatever a file asks for. Here two gates stand before it. First every opcode is looked at without
running any: only those that build plain values pass, in numbers that a batch can need (one opcode can ask for gigabytes
of memo, a million nested tuples overflow the stack). Then the unpickler may name only numpy's array builders, and even
these are not called: sealed stand-ins record what the array should be, and we build it after checking.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from stompp.errors import UsageError

# CIFAR-100's training batch: 155 MB, some 300,000 opcodes, a dozen tuples
_MOST_BYTES, _MOST_OPCODES, _MOST_TUPLES = 256 << 20, 2_000_000, 1000

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
            raw = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(
            f"{path} is missing though its folder is there; delete the folder {path.parent} and load again"
        ) from None
    try:
        batch = load_plain(raw)
        if not isinstance(batch, dict):
            raise pickle.UnpicklingError(f"it holds a {type(batch).__name__}, not a dict")
        batch = {_text(key): value for key, value in batch.items()}
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
        reason = " ".join(str(error).split())[:200]  # names in the file can be long, with line breaks
        raise UsageError(
            f"{path} is refused as a CIFAR batch: {reason}; nothing in it was run. "
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
    _scan(raw)
    try:
        return _Unpickler(raw).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a hostile or damaged stream can raise nearly anything
        raise pickle.UnpicklingError(f"it is damaged ({type(error).__name__})") from None


def _scan(raw: bytes) -> None:
    count = tuples = 0
    try:
        if len(raw) > _MOST_BYTES:
            raise pickle.UnpicklingError(f"it is larger than {_MOST_BYTES} bytes")
        for opcode, argument, _ in pickletools.genops(raw):
            count += 1
            tuples += "TUPLE" in opcode.name
            if opcode.name not in _ALLOWED:
                raise pickle.UnpicklingError(f"it uses the opcode {opcode.name}, which no batch needs")
            if "PUT" in opcode.name and not (isinstance(argument, int) and 0 <= argument <= count):
                raise pickle.UnpicklingError("it asks for a memo beyond its own length")
            if count > _MOST_OPCODES or tuples > _MOST_TUPLES:
                raise pickle.UnpicklingError("it has more parts than any batch")
    except pickle.UnpicklingError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise pickle.UnpicklingError(f"it is cut short or not a pickle ({reason})") from None


class _Dtype:
    """Stands in for a numpy.dtype; only bytes and whole numbers are known."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code, self.order = _text(code), "|"

    def __setstate__(self, state: Any) -> None:
        self.order = _text(state[1])

    def build(self) -> np.dtype[Any]:
        if self.code not in ("u1", "i4", "i8") or self.order not in ("|", "=", "<", ">"):
            raise pickle.UnpicklingError("it holds an array that is neither of bytes nor of whole numbers")
        kind: np.dtype[Any] = np.dtype(self.code).newbyteorder(self.order)
        return kind


class _Array:
    """Stands in for an array: what it was told, unchecked, until `build`."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def build(self) -> np.ndarray:
        try:
            _, shape, dtype, fortran, raw = self.state
            if not isinstance(raw, (bytes, bytearray)):  # a number would become that many zeros
                raise TypeError
            flat = np.frombuffer(raw, dtype=dtype.build())
            return np.array(flat.reshape(shape, order="F" if fortran else "C"))
        except pickle.UnpicklingError:
            raise
        except Exception:
            raise pickle.UnpicklingError("it holds a damaged array") from None


class _Stand:
    """Wraps what the stream may call, so that the stream can call it and nothing else (BUILD could alter it)."""

    __slots__ = ("_run",)

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run

    def __call__(self, *arguments: Any) -> Any:
        return self._run(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it tries to alter a builder")


class _Unpickler(pickle.Unpickler):
    def __init__(self, raw: bytes) -> None:
        # bytes: the official files come from Python 2, whose str is our bytes
        super().__init__(io.BytesIO(raw), encoding="bytes")
        self._encodable = len(raw)

    def find_class(self, module: str, name: str) -> _Stand:
        # numpy 2 moved its builders from numpy.core to numpy._core; old files keep the old name, new ones have the new
        match module.replace("numpy._core", "numpy.core"), name:
            case "numpy", "dtype":
                return _Stand(_Dtype)
            case "numpy.core.multiarray", "_reconstruct":
                return _Stand(_Array)
            case "numpy.core.numeric", "_frombuffer":
                return _Stand(_from_buffer)
            case "numpy", "ndarray":
                return _Stand(_refuse)  # only ever named, as an argument of _reconstruct
            case "_codecs", "encode":
                return _Stand(self._encode)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch needs")

    def _encode(self, text: Any, encoding: Any) -> bytes:
        # how Python 3 writes bytes into a protocol 2 pickle; each text once, so never more than the stream is long
        self._encodable -= len(text)
        if not isinstance(text, str) or _text(encoding) != "latin1" or self._encodable < 0:
            raise pickle.UnpicklingError("it encodes text in a way no batch needs")
        return text.encode("latin1")


def _from_buffer(raw: Any, dtype: Any, shape: Any, order: Any = "C") -> _Array:
    array = _Array()
    array.state = (1, shape, dtype, _text(order) == "F", raw)
    return array


def _refuse(*_: Any) -> None:
    raise pickle.UnpicklingError("it builds an array directly, which no batch needs")


def _text(value: Any) -> Any:
    return value.decode("latin1") if isinstance(value, bytes) else value
