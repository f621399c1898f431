"""The restricted unpickler: reads what Python 2 and 3 wrote, refuses everything hostile, and runs none of it."""

import os
import pickle
import struct
import time

import numpy as np
import pytest

from stompp.data.unpickle import load_plain, read_batch
from stompp.errors import UsageError

IMAGES = np.arange(4 * 3072, dtype=np.int64).reshape(4, 3072).astype(np.uint8)
LABELS = [3, 0, 9, 1]


def python2_batch(images=IMAGES, labels=LABELS):
    """Writes, opcode by opcode, what Python 2's cPickle made of a batch: protocol 2, all strings byte strings."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    raw = images.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\x00\x85q\x03"
        + text(b"b")
        + b"q\x04\x87q\x05Rq\x06(K\x01"
        + b"M"
        + struct.pack("<H", images.shape[0])
        + b"M"
        + struct.pack("<H", images.shape[1])
        + b"\x86q\x07"
        + b"cnumpy\ndtype\nq\x08"
        + text(b"u1")
        + b"K\x00K\x01\x87Rq\x0a(K\x03"
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<I", len(raw))
        + raw
        + b"tb"
    )
    names = b"](" + b"".join(text(b"leptodactylus_%d.png" % i) for i in range(len(labels))) + b"e"
    return (
        b"\x80\x02}q\x00("
        + text(b"data") + array
        + text(b"labels") + b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
        + text(b"batch_label") + text(b"training batch 1 of 5")
        + text(b"filenames") + names
        + b"u."
    )  # fmt: skip


def write(tmp_path, raw):
    path = tmp_path / "data_batch_1"
    path.write_bytes(raw)
    return path


def test_a_python_2_batch_is_read(tmp_path):
    images, labels = read_batch(write(tmp_path, python2_batch()), "labels")
    assert np.array_equal(images, IMAGES)
    assert labels.tolist() == LABELS
    assert labels.dtype == np.int64


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("keys", [str, str.encode])
@pytest.mark.parametrize("labels", [LABELS, np.array(LABELS), np.array(LABELS, dtype=">i4")], ids=["list", "i8", ">i4"])
def test_a_batch_written_again_by_python_3_is_read(tmp_path, protocol, order, keys, labels):
    batch = {keys("data"): np.asarray(IMAGES, order=order), keys("fine_labels"): labels}
    images, found = read_batch(write(tmp_path, pickle.dumps(batch, protocol)), "fine_labels")
    assert np.array_equal(images, IMAGES)
    assert found.tolist() == LABELS


def test_the_old_place_of_numpys_builders_is_known(tmp_path):
    raw = pickle.dumps({"data": IMAGES, "labels": LABELS}, 2)
    assert b"numpy._core" in raw or b"numpy.core" in raw
    old = raw.replace(b"numpy._core", b"numpy.core")
    new = old.replace(b"numpy.core", b"numpy._core")
    for version in (old, new):
        assert np.array_equal(read_batch(write(tmp_path, version), "labels")[0], IMAGES)


class Runs:
    """Runs a function when it is unpickled, like every classic pickle bomb."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def global_call(module, name, argument=b"U\x01x"):
    return b"\x80\x02c" + module + b"\n" + name + b"\n" + argument + b"\x85R."


NESTED = b"\x80\x02}" + b")" + b"\x85" * 500_000 + b"K\x01s."
DTYPE = b"cnumpy\ndtype\n"
HOSTILE = {
    "os.system": pickle.dumps(Runs(os.system, "touch RAN")),
    "eval": pickle.dumps({"data": Runs(eval, "open('RAN', 'w')")}),
    "exec in a list": pickle.dumps([[Runs(exec, "open('RAN', 'w')")]], 0),
    "open": pickle.dumps(Runs(open, "RAN", "w"), 4),
    "subprocess": global_call(b"subprocess", b"getoutput"),
    "getattr": global_call(b"builtins", b"getattr"),
    "bytearray": global_call(b"builtins", b"bytearray", b"J\xff\xff\xff\x7f"),
    "numpy.load": global_call(b"numpy", b"load"),
    "numpy.zeros": global_call(b"numpy", b"zeros", b"J\xff\xff\xff\x7f"),
    "dotted name": b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.dumps\x93.",
    "name with line breaks": b"\x80\x04\x8c\x05a\nb\nc\x8c\x03d\ne\x93.",
    "endless name": b"\x80\x02c" + b"m" * 100_000 + b"\nx\n.",
    "ndarray called": global_call(b"numpy", b"ndarray", b"J\xff\xff\xff\x7f"),
    "INST": b"(S'touch RAN'\nios\nsystem\n.",
    "OBJ": b"(cos\nsystem\nS'touch RAN'\no.",
    "NEWOBJ": b"\x80\x02cos\nsystem\n)\x81.",
    "persistent id": b"Pmodule\n.",
    "extension": b"\x82\x01.",
    "huge memo": b"\x80\x02]r\xf0\xff\xff\xff.",
    "huge memo, old style": b"]p4000000000\n.",
    "huge length": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"x.",
    "many opcodes": b"\x80\x02" + b"N" * 3_000_000 + b".",
    "nested tuples as a key": NESTED,
    "altered builder": b"\x80\x02" + DTYPE + b"}U\x05buildU\x01xsb.",
    "altered function": b"\x80\x02cnumpy.core.numeric\n_frombuffer\nN}U\x0c__defaults__Ns\x86b.",
    "encode again and again": b"\x80\x02c_codecs\nencode\nq\x00X" + struct.pack("<I", 50_000) + b"a" * 50_000
    + b"q\x01U\x06latin1q\x02000](" + b"h\x00h\x01h\x02\x86R" * 300 + b"e.",
    "odd encoding": b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aU\x03zip\x86R.",
    "stack underflow": b"\x80\x02R.",
    "no stop": b"\x80\x02]",
    "unhashable key": b"\x80\x02}]K\x01s.",
    "cut short": python2_batch()[:-500],
    "empty": b"",
    "a tarball": b"\x1f\x8b\x08\x00" + b"x" * 100,
    "text": b"<html>404</html>",
    "not a dict": pickle.dumps([1, 2]),
    "no data": pickle.dumps({"labels": LABELS}),
    "no labels": pickle.dumps({"data": IMAGES}),
    "data is text": pickle.dumps({"data": "x", "labels": LABELS}),
    "labels are text": pickle.dumps({"data": IMAGES, "labels": ["a"]}),
    "labels are huge": pickle.dumps({"data": IMAGES, "labels": [1 << 80]}),
    "floats": pickle.dumps({"data": IMAGES.astype(np.float32), "labels": LABELS}),
    "objects": pickle.dumps({"data": np.array([[1], None], dtype=object), "labels": LABELS}),
    "wrong shape": python2_batch().replace(b"M" + struct.pack("<H", 3072), b"M" + struct.pack("<H", 3071)),
    "length as raw": b"\x80\x02}(U\x04datacnumpy.core.numeric\n_frombuffer\n(J\xff\xff\xff\x7f" + DTYPE
    + b"U\x02u1\x85RJ\xff\xff\xff\x7fU\x01CtRU\x06labels]u.",
}  # fmt: skip


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_or_damaged_pickle_is_refused_and_not_run(tmp_path, monkeypatch, raw):
    monkeypatch.chdir(tmp_path)
    path, start = write(tmp_path, raw), time.perf_counter()
    with pytest.raises(UsageError) as caught:
        read_batch(path, "labels")
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "nothing in it was run" in message
    assert "\n" not in message
    assert len(message) < 600
    assert not (tmp_path / "RAN").exists()
    assert time.perf_counter() - start < 20


def test_the_bombs_would_go_off_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pickle.loads(HOSTILE["os.system"])
    assert (tmp_path / "RAN").exists()


def test_stand_ins_survive_an_attack_on_them(tmp_path):
    for name in ("altered builder", "altered function"):
        with pytest.raises(pickle.UnpicklingError):
            load_plain(HOSTILE[name])
    assert np.array_equal(read_batch(write(tmp_path, python2_batch()), "labels")[0], IMAGES)


def test_random_damage_never_escapes_as_another_error(tmp_path):
    whole, generator = python2_batch(), np.random.default_rng(0)
    head = len(whole) - IMAGES.nbytes
    for _ in range(400):
        raw = bytearray(whole)
        for _ in range(generator.integers(1, 4)):
            position = generator.integers(0, head)
            raw[position if position < 120 else -(position - 119)] = generator.integers(0, 256)
        try:
            images, labels = read_batch(write(tmp_path, bytes(raw)), "labels")
        except UsageError:
            continue
        assert images.dtype == np.uint8
        assert labels.dtype == np.int64
