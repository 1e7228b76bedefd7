"""Weights in 8 or 4 bits: quantise, dequantise, and a linear layer that holds them.

A quantised weight is an integer or a float of 8 bits per number, or an integer of 4 bits, with
scales. Only the matrices of linear layers run quantised. The embedding, norms and biases keep the
model's dtype, and so do a head that shares the embedding and the experts of a mixture of experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavefront.core.errors import CheckpointError, OptionError, did_you_mean, quote
from wavefront.kernels import cpu_product, fp8_product, small_batch_ops
from wavefront.kernels.fp8_product import E4M3, E4M3_LARGEST
from wavefront.kernels.small_batch_ops import GROUP, PAIRED
from wavefront.storage.checkpoint import (
    MINIMUM,
    SCALE,
    TensorEntry,
    check_finite,
    read_tensor,
    stream_tensors,
)
from wavefront.storage.hub import CONFIG

# int8 and fp8 have one scale per row; int4 has a scale and a minimum per group of 64 columns.
KINDS = ("int8", "fp8", "int4")
KEY = "quantization"  # the key of a config.json that describes quantised weights
STORED = {"I8": "int8", "F8_E4M3": "fp8", "U8": "int4"}  # the dtype of a file names the kind
# Numbers that are dequantised at once: few enough for a CPU's cache, and for a small GPU.
CPU_BLOCK, CUDA_BLOCK = 1 << 20, 1 << 25
QUANTIZE_BLOCK = 1 << 20  # numbers that are quantised at once, in float32


class QuantizedWeight(NamedTuple):
    """A matrix (N, K) in 8 or 4 bits. Slices share its memory, like slices of a tensor."""

    kind: str
    shape: tuple[int, int]
    # int8 (N, K); uint8 (N, K), the bits of float8_e4m3fn; or uint8 (N, K / 2) for int4, where a
    # byte holds a column and, in its high bits, the column 64 further on
    codes: Tensor
    scale: Tensor  # float32 (N,), or float16 (N, groups) for int4
    minimum: Tensor | None = None  # float16 (N, groups) for int4

    @classmethod
    def empty(
        cls, kind: str, shape: tuple[int, int], device: torch.device | str
    ) -> QuantizedWeight:
        """Return a weight whose numbers are not set."""
        rows, columns = shape
        if kind != "int4":
            dtype = torch.int8 if kind == "int8" else torch.uint8
            codes = torch.empty(shape, dtype=dtype, device=device)
            return cls(kind, shape, codes, torch.empty(rows, dtype=torch.float32, device=device))
        padded = padded_columns(columns)
        codes = torch.empty((rows, padded // 2), dtype=torch.uint8, device=device)
        # Transposed in memory: a kernel reads one group of many rows at a time.
        scale, minimum = (
            torch.empty((padded // GROUP, rows), dtype=torch.float16, device=device).t()
            for _ in range(2)
        )
        return cls(kind, shape, codes, scale, minimum)

    @classmethod
    def of(cls, matrix: Tensor, kind: str) -> QuantizedWeight:
        """Return the quantised matrix, on the same device."""
        rows, columns = matrix.shape
        weight = cls.empty(kind, (rows, columns), matrix.device)
        weight.copy_(matrix)
        return weight

    @property
    def bytes(self) -> int:
        """The memory of the codes and scales."""
        return sum(part.numel() * part.element_size() for part in self.tensors("").values())

    def rows(self, start: int, stop: int) -> QuantizedWeight:
        """Return some rows."""
        count = min(stop, self.shape[0]) - start
        minimum = None if self.minimum is None else self.minimum[start:stop]
        return QuantizedWeight(
            self.kind,
            (count, self.shape[1]),
            self.codes[start:stop],
            self.scale[start:stop],
            minimum,
        )

    def split(self, sizes: Sequence[int]) -> list[QuantizedWeight]:
        """Return consecutive slices with these numbers of rows."""
        ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
        return [self.rows(end - size, end) for size, end in zip(sizes, ends, strict=True)]

    def chunk(self, count: int) -> list[QuantizedWeight]:
        """Return `count` slices with the same number of rows."""
        return self.split([self.shape[0] // count] * count)

    def blocks(self, numbers: int) -> Iterator[tuple[int, QuantizedWeight]]:
        """Yield slices of at most `numbers` numbers, each with its first row."""
        step = max(numbers // max(self.shape[1], 1), 1)
        for start in range(0, self.shape[0], step):
            yield start, self.rows(start, start + step)

    def copy_(self, source: Tensor | QuantizedWeight) -> None:
        """Set the numbers: quantise a matrix, or copy a weight of the same kind as it is.

        The rows are quantised in small blocks on this weight's device, so that no second copy of
        the matrix exists.
        """
        if isinstance(source, QuantizedWeight) and source.kind == self.kind:
            for mine, other in zip(self.tensors("").values(), source.tensors("").values(),
                                   strict=True):  # fmt: skip
                mine.copy_(other)
            return
        for start, block in self.blocks(QUANTIZE_BLOCK):
            stop = start + block.shape[0]
            if isinstance(source, QuantizedWeight):
                part = source.rows(start, stop).dequantize(torch.float32)
            else:
                part = source[start:stop]
            # Move, then convert: in one call, torch would convert on the CPU and copy more bytes.
            _quantize(part.to(self.codes.device).float(), block)

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """Return the matrix (N, K), computed in float32 and then rounded to `dtype`."""
        return _DEQUANTIZE[self.kind](self).to(dtype)

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return the tensors that a file stores for the weight `name`, as views."""
        codes = self.codes.view(E4M3) if self.kind == "fp8" else self.codes
        parts = {name: codes, name + SCALE: self.scale}
        return parts if self.minimum is None else parts | {name + MINIMUM: self.minimum}


Weight = Tensor | QuantizedWeight


def padded_columns(columns: int) -> int:
    """Return the columns of an int4 weight in memory: the next multiple of 128."""
    return -(-columns // PAIRED) * PAIRED


def _divide(numbers: Tensor, by: float) -> Tensor:
    """Divide by a tensor. torch multiplies by the reciprocal of a number on CUDA, but not on a CPU.

    With this, every device computes the same scales.
    """
    return numbers / numbers.new_full((), by)


def _quantize(matrix: Tensor, into: QuantizedWeight) -> None:
    """Quantise a float32 matrix into a weight of the same shape and device."""
    if into.minimum is not None:
        padding = (0, padded_columns(matrix.shape[1]) - matrix.shape[1])
        groups = F.pad(matrix, padding).unflatten(1, (-1, GROUP))
        into.minimum.copy_(groups.amin(2))
        low = into.minimum.float()
        # The codes are computed from the rounded numbers, as they are read.
        into.scale.copy_(_divide(groups.amax(2) - low, 15))
        step = into.scale.float().clamp_min(torch.finfo(torch.float16).tiny)
        codes = ((groups - low[..., None]) / step[..., None]).round().clamp_(0, 15)
        first, second = codes.to(torch.uint8).unflatten(1, (-1, 2)).unbind(2)
        into.codes.copy_((first | (second << 4)).flatten(1))
        return
    largest = 127 if into.kind == "int8" else E4M3_LARGEST
    into.scale.copy_(_divide(matrix.abs().amax(1).clamp_min(1e-12), largest))
    scaled = (matrix / into.scale[:, None]).clamp_(-largest, largest)
    if into.kind == "int8":
        into.codes.copy_(scaled.round_())
    else:
        into.codes.copy_(scaled.to(E4M3).view(torch.uint8))


def _dequantize_int8(weight: QuantizedWeight) -> Tensor:
    return weight.codes.float().mul_(weight.scale[:, None])


def _dequantize_fp8(weight: QuantizedWeight) -> Tensor:
    """Shift the bits to those of a float16, which has the same mantissa and a larger exponent.

    torch's own conversion is many times slower on a CPU, and gives the same numbers.
    """
    bits = (weight.codes.view(torch.int8).to(torch.int16) << 7) & ~(1 << 14)
    return bits.view(torch.float16).float().mul_(weight.scale[:, None] * 256)


def _dequantize_int4(weight: QuantizedWeight) -> Tensor:
    assert weight.minimum is not None
    pairs = weight.codes.unflatten(1, (-1, GROUP))
    values = torch.stack((pairs & 15, pairs >> 4), 2).flatten(1, 2).float()
    scale, low = weight.scale.float()[..., None], weight.minimum.float()[..., None]
    return values.mul_(scale).add_(low).flatten(1)[:, : weight.shape[1]]


_DEQUANTIZE: Mapping[str, Callable[[QuantizedWeight], Tensor]] = {
    "int8": _dequantize_int8,
    "fp8": _dequantize_fp8,
    "int4": _dequantize_int4,
}


class QuantizedLinear(nn.Module):
    """A linear layer whose weight is quantised. It has no gradient for the weight."""

    codes: Tensor
    scale: Tensor
    minimum: Tensor | None
    bias: Tensor | None

    def __init__(self, kind: str, like: nn.Linear) -> None:
        """Make the layer in the shape, dtype and device of `like`, without its numbers."""
        super().__init__()
        self.kind, self.in_features, self.out_features = kind, like.in_features, like.out_features
        weight = QuantizedWeight.empty(
            kind, (like.out_features, like.in_features), like.weight.device
        )
        self.register_buffer("codes", weight.codes)
        self.register_buffer("scale", weight.scale)
        self.register_buffer("minimum", weight.minimum)
        self.register_parameter("bias", cast("nn.Parameter | None", like.bias))
        self.find_hardware()

    def find_hardware(self) -> None:
        """Look up what the layer's device can do, which a compiled pass must not ask for."""
        self._fp8_scales = fp8_product.hardware_scales(self.codes.device)
        self._kernels = small_batch_ops.available(self.codes.device)

    @property
    def weight(self) -> QuantizedWeight:
        """The weight, which shares the layer's memory."""
        shape = (self.out_features, self.in_features)
        return QuantizedWeight(self.kind, shape, self.codes, self.scale, self.minimum)

    def parts(self, x: Tensor) -> Tensor:
        """Return the output for x (B, S, K) as (P, B, S, N): P partial sums, to be added up."""
        weight = self.weight
        # Our kernels have no gradient.
        kernels = self._kernels and x.dim() == 3 and not torch.is_grad_enabled()
        if self.kind == "fp8" and self._fp8_scales and fp8_product.fits(x, self.codes):
            parts = fp8_product.parts(
                x, self.codes, self.scale, scales=self._fp8_scales, kernels=kernels
            )
        elif self.kind == "int8" and kernels and small_batch_ops.fits(x, weight, most=None):
            parts = _int8_product(x, weight)
        elif self.kind == "int4" and kernels and small_batch_ops.fits(x, weight, most=None):
            parts = _int4_product(x, weight, fp8=self._fp8_scales is not None)
        elif self.kind == "int8" and cpu_product.int8_fits(x):
            parts = cpu_product.int8_linear(x, self.codes, self.scale)[None]
        else:
            parts = product(x, weight)[None]
        if self.bias is None:
            return parts
        return (parts.sum(0).to(x.dtype) + self.bias)[None]

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 2:  # the head's input; kernels take rows of a batch
            return self(x[None])[0]
        parts = self.parts(x)
        return parts[0] if len(parts) == 1 else parts.sum(0).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.kind}, in_features={self.in_features}, out_features={self.out_features}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantizedLinear:
        """Move the layer; a change of the dtype does not change codes and scales."""
        kept = {name: part for name, part in self._buffers.items() if part is not None}
        super()._apply(fn, recurse)
        for name, part in kept.items():
            moved = self._buffers[name]
            if moved is not None and moved.dtype != part.dtype:
                self._buffers[name] = part.to(moved.device)
        self.find_hardware()
        return self


def _int8_product(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """Return (P, B, S, N) from our kernel, for any number of rows."""
    pieces, row_scale, _ = small_batch_ops.split_rows(x.flatten(0, 1), torch.int8)
    pieces = pieces.unflatten(1, x.shape[:2])
    return small_batch_ops.int8_product(pieces, row_scale, weight.codes, weight.scale, x.dtype)


def _int4_product(x: Tensor, weight: QuantizedWeight, *, fp8: bool) -> Tensor:
    """Return (P, B, S, N) from our kernels: few rows on a GPU with fp8, or the whole weight."""
    assert weight.minimum is not None
    if not fp8 or not small_batch_ops.fits(x, weight):
        plain = small_batch_ops.dequantize_int4(weight.codes, weight.scale, weight.minimum, x.dtype)
        return F.linear(x, plain)[None]
    pieces, row_scale, sums = small_batch_ops.split_rows(x.flatten(0, 1), E4M3)
    pieces = pieces.unflatten(1, x.shape[:2])
    return small_batch_ops.int4_product(
        pieces, row_scale, sums, weight.codes, weight.scale, weight.minimum, x.dtype
    )


def product(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """Return x · weightᵀ, from blocks of rows that are dequantised one after the other."""
    numbers = CPU_BLOCK if x.device.type == "cpu" else CUDA_BLOCK
    made = [cpu_product.linear(x, part.dequantize(x.dtype)) for _, part in weight.blocks(numbers)]
    return made[0] if len(made) == 1 else torch.cat(made, dim=-1)


def check_kind(kind: str | None) -> str | None:
    """Return a supported kind of quantisation, or None."""
    if kind is None or (isinstance(kind, str) and kind in KINDS):
        return kind
    raise OptionError(
        f"There is no quantisation {quote(kind)}; known: {', '.join(KINDS)}"
        f"{did_you_mean(kind, KINDS) if isinstance(kind, str) else ''}.",
        option="quantize",
        value=kind,
    )


def linear_kind(name: str, kind: str) -> str:
    """Return the kind of one linear layer: the head of an int4 model is int8.

    The head is read once per position and decides every token, and it is a small part of a model.
    """
    return "int8" if kind == "int4" and name == "output" else kind


def linears(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers that a quantised model replaces, by module name."""
    return {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear)}


def replace_linears(model: nn.Module, kind: str) -> None:
    """Replace the linear layers by quantised ones whose numbers are not set."""
    for name, linear in linears(model).items():
        _replace(model, name, QuantizedLinear(linear_kind(name, kind), linear))


def quantize_model(model: nn.Module, kind: str) -> None:
    """Quantise a model in place, one layer after the other."""
    for name, linear in linears(model).items():
        made = QuantizedLinear(linear_kind(name, kind), linear)
        made.weight.copy_(linear.weight.detach())
        _replace(model, name, made)


def _replace(model: nn.Module, name: str, made: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, made)


def quantization_of(model: object) -> str | None:
    """Return how a model's weights are quantised, or None."""
    if not isinstance(model, nn.Module):
        return None
    found = {part.kind for part in model.modules() if isinstance(part, QuantizedLinear)}
    return next((kind for kind in reversed(KINDS) if kind in found), None)


def weight_bytes(model: nn.Module, dtype: torch.dtype, kind: str | None) -> int:
    """Return the bytes of a model's weights in a dtype, with its linear layers in `kind`.

    Args:
        model: The model before its layers are replaced; it may be on the meta device.
        dtype: The dtype of everything that is not quantised.
        kind: The quantisation, or None.
    """
    replaced = {} if kind is None else linears(model)
    total = sum(part.numel() for part in model.parameters()) * dtype.itemsize
    for name, linear in replaced.items():
        shape = (linear.out_features, linear.in_features)
        weight = QuantizedWeight.empty(linear_kind(name, str(kind)), shape, "meta")
        total += weight.bytes - linear.weight.numel() * dtype.itemsize
    return total


class StoredQuantization(NamedTuple):
    """The quantisation that a config.json describes."""

    kind: str
    # Only the file is quantised: the model is dequantised when it is loaded.
    storage_only: bool

    def to_json(self) -> dict[str, Any]:
        """Return the value of the config's key."""
        return {"weights": self.kind, "storage_only": self.storage_only}


def stored_quantization(config: Mapping[str, Any]) -> StoredQuantization | None:
    """Return the quantisation of a checkpoint, or None if its weights are plain.

    Raises:
        CheckpointError: The config describes a quantisation that is not supported.
    """
    found = config.get(KEY)
    if found is None:
        return None
    known: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    kind, storage_only = known.get("weights"), known.get("storage_only", False)
    if kind not in KINDS or type(storage_only) is not bool or len(known) > 2:
        raise CheckpointError(
            f"{CONFIG}: {KEY} = {quote(found)} is not supported; use weights = "
            f"{', '.join(KINDS)}, and storage_only = true or false."
        )
    return StoredQuantization(kind, storage_only)


def logical_entries(
    entries: Mapping[str, TensorEntry], wanted: Mapping[str, Weight]
) -> dict[str, TensorEntry]:
    """Return the stored tensors as if none were quantised, for a comparison with the model.

    Raises:
        CheckpointError: A quantised tensor lacks its scales, or they have another shape.
    """
    found: dict[str, TensorEntry] = {}
    for name, entry in entries.items():
        if _owner(name) in entries:
            continue
        kind = STORED.get(entry.dtype)
        if kind is None or len(entry.shape) != 2:
            found[name] = entry
            continue
        rows, columns = entry.shape
        if kind == "int4":
            columns *= 2
            target = wanted.get(name)
            if target is not None and padded_columns(target.shape[-1]) == columns:
                columns = target.shape[-1]
        for part, tensor in (
            QuantizedWeight.empty(kind, (rows, columns), "meta").tensors(name).items()
        ):
            stored = entries.get(part)
            if stored is None or stored.shape != tuple(tensor.shape):
                raise CheckpointError(
                    f"Tensor {quote(name)} in {entry.file} is quantised, but {quote(part)} is "
                    "missing or has another shape; fetch the files again."
                )
        found[name] = TensorEntry(entry.file, (rows, columns), "F32")
    return found


def read_weights(entries: Mapping[str, TensorEntry], weights: Mapping[str, Weight]) -> None:
    """Copy each stored tensor into the model; only one is in memory in addition.

    A tensor is quantised or dequantised if the model's weight and the stored one differ in that.
    """
    for name, tensor in stream_tensors(entries, weights):
        target, kind = weights[name], STORED.get(entries[name].dtype)
        if kind is None:
            target.copy_(tensor)
            continue
        rows, columns = target.shape
        codes = tensor.view(torch.uint8) if kind == "fp8" else tensor
        minimum = read_tensor(entries, name + MINIMUM) if kind == "int4" else None
        scale = read_tensor(entries, name + SCALE)
        stored = QuantizedWeight(kind, (rows, columns), codes, scale, minimum)
        if isinstance(target, QuantizedWeight):
            target.copy_(stored)
            continue
        for start, block in stored.blocks(QUANTIZE_BLOCK):
            target[start : start + block.shape[0]].copy_(block.dequantize(torch.float32))
    checked = {name: part if isinstance(part, Tensor) else part.scale
               for name, part in weights.items()}  # fmt: skip
    check_finite(entries, checked)


def quantize_tensors(
    tensors: Mapping[str, Tensor], kind: str, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return the tensors of a file with all matrices quantised and the others in `dtype`."""
    found: dict[str, Tensor] = {}
    for name, part in tensors.items():
        if part.dim() == 2:
            found |= QuantizedWeight.of(part, kind).tensors(name)
        else:
            found[name] = part.to(dtype)
    return found


def quantized_parts(tensors: Mapping[str, Tensor]) -> set[str]:
    """Return the names of the codes and scales of quantised weights."""
    parts = {name for name in tensors if _owner(name) in tensors}
    return parts | {str(_owner(name)) for name in parts}


def _owner(name: str) -> str | None:
    """Return the name of the weight that a tensor with scales belongs to, or None."""
    for suffix in (SCALE, MINIMUM):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return None
