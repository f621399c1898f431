"""A float net in ONNX Runtime, FP32 and INT8 (static, QDQ, u8 activations, s8 weights per channel), for comparison."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from stompp.deploy.race import Call, Contender


def onnx_contenders(model: nn.Module, example: torch.Tensor, threads: int) -> list[Contender]:
    """Return the net in ONNX Runtime; the ranges of INT8 come from the example."""
    shape = tuple(example.shape[1:])
    batch = torch.export.Dim("batch", min=1)
    with tempfile.TemporaryDirectory(prefix="stompp-onnx-") as folder:  # a session holds all it has read in memory
        plain, quantized = Path(folder, "fp32.onnx"), Path(folder, "int8.onnx")
        with _quiet():
            torch.onnx.export(
                model,
                (example[:2].contiguous(),),
                plain,
                dynamo=True,
                external_data=False,
                dynamic_shapes=({0: batch},),
            )
            _quantize(plain, quantized, example.numpy())
        return [
            Contender("ONNX Runtime FP32", _caller(plain, threads), shape, plain.stat().st_size),
            Contender("ONNX Runtime INT8", _caller(quantized, threads), shape, quantized.stat().st_size),
        ]


def _quantize(plain: Path, quantized: Path, images: np.ndarray) -> None:
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.images: Iterator[np.ndarray] = iter(np.split(images[:32], len(images[:32])))

        def get_next(self) -> dict[str, np.ndarray] | None:
            image = next(self.images, None)
            return None if image is None else {name: image}

    import onnxruntime

    name = onnxruntime.InferenceSession(plain, providers=["CPUExecutionProvider"]).get_inputs()[0].name
    prepared = plain.with_suffix(".prepared.onnx")
    quant_pre_process(plain, prepared, skip_symbolic_shape=True)
    quantization.quantize_static(
        prepared,
        quantized,
        Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        per_channel=True,
    )


def _caller(file: Path, threads: int) -> Callable[[np.ndarray], Call]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: lambda: session.run(None, {name: images})


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporters' chatter off the screen."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
