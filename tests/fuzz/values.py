"""Odd values: what reaches a library when a colleague is tired or an attacker is not."""

import datetime
import decimal
import fractions
import math
import pathlib
import random
from typing import Any

import numpy as np
import torch

HUGE = 10**400

TEXTS = (
    "", " ", "0", "-1", "1e999", "nan", "NaN", "inf", "-Infinity", "true", "null", "[]", "{}", "[1,2]", "[[[[]]]]", "(1, 2)",
    "MLP", "Training", "Langevin", "auto", "cpu", "meta", "cuda:99", "prior", "ünïcödé 日本", "\x00", "a\nb", "[red]bold[/red]",
    "{{7*7}}", "%s%n", "../../etc", "9" * 5000, "[" * 3000, "x" * 300, "\ud800", "1_000", "0x10", "１２",
)  # fmt: skip


def scalar(rng: random.Random) -> Any:
    """One value of any kind."""
    return rng.choice(
        [
            lambda: rng.choice([0, 1, -1, 2, 3, 7, -5]),
            lambda: rng.choice([0.0, -0.0, 0.5, 1.0, -1.0, 1e-300, 1e300, math.nan, math.inf, -math.inf]),
            lambda: rng.choice([None, True, False, Ellipsis, NotImplemented]),
            lambda: rng.choice([2**31, 2**53 + 1, 2**63, -(2**63) - 1, HUGE, -HUGE]),
            lambda: rng.choice(TEXTS),
            lambda: rng.choice([b"", b"abc", bytearray(3), memoryview(b"xy")]),
            lambda: rng.choice([np.int8(3), np.int64(3), np.uint64(2**63), np.float16(0.5), np.float64(2.0)]),
            lambda: rng.choice([np.bool_(True), np.float32("nan"), np.str_("a"), np.datetime64("2024-01-01")]),
            lambda: rng.choice([torch.tensor(3), torch.tensor(0.5), torch.tensor([1.0, 2.0]), torch.tensor(True)]),
            lambda: rng.choice([[], (), {}, set(), [1], (1, 2), (0.5, 0.1), [None], {"a": 1}, (math.nan, 1)]),
            lambda: rng.choice([1 + 2j, decimal.Decimal("0.5"), fractions.Fraction(1, 3), datetime.date(2024, 1, 1)]),
            lambda: rng.choice([object(), object, len, print, rng, pathlib.Path("x"), ValueError("x"), range(3)]),
        ]
    )()


def nonsense_array(rng: random.Random) -> Any:
    """Something that can hardly be an array of numbers."""
    n = rng.randint(0, 4)
    return rng.choice(
        [
            lambda: scalar(rng),
            lambda: [scalar(rng) for _ in range(n)],
            lambda: [[1.0, 2.0], [3.0]],
            lambda: np.array(["a", "b"]),
            lambda: np.array([b"a", b"b"]),
            lambda: np.array(["2024-01-01"] * 2, "datetime64[D]"),
            lambda: np.array([[1, 2]], "timedelta64[s]"),
            lambda: np.array([[object()]]),
            lambda: np.array([[None, 1.0]]),
            lambda: np.array([(1.0, 2)], dtype=[("a", float), ("b", int)]),
            lambda: np.ma.array(np.ones((3, 2)), mask=np.eye(3, 2, dtype=bool)),
            lambda: np.ones((3, 2)) * (1 + 2j),
            lambda: np.full((3, 2), np.nan),
            lambda: np.full((3, 2), np.inf),
            lambda: np.zeros((0, 3)),
            lambda: np.zeros((3, 0)),
            lambda: np.zeros((2, 2, 2)),
            lambda: np.float64(3.0),
            lambda: np.void(b"abc"),
            lambda: np.array([[2**24 + 1, 1]], np.int64),
            lambda: np.array([[2**63 + 5, 1]], np.uint64),
            lambda: np.array([[2**53 + 1, 1]], np.int64),
            lambda: np.ones((3, 2), np.longdouble),
            lambda: torch.zeros(3, 2, device="meta"),
            lambda: torch.eye(3).to_sparse(),
            lambda: torch.eye(3).to_sparse_csr(),
            lambda: torch.zeros(3, 2, dtype=torch.complex64),
            lambda: torch.zeros(3, 2, dtype=torch.float8_e4m3fn),
            lambda: torch.quantize_per_tensor(torch.zeros(3, 2), 0.1, 0, torch.quint8),
            lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
            lambda: torch.zeros(3, 2, dtype=torch.bool),
            lambda: torch.empty(0),
            lambda: torch.zeros(()),
        ]
    )()


def good_matrix(rng: random.Random, rows: int, columns: int) -> tuple[Any, np.ndarray]:
    """Numbers (rows, columns) in an odd but honest dress, and what they are in float64."""
    numpy = np.random.default_rng(rng.getrandbits(32))
    plain = np.round(numpy.standard_normal((rows, columns)), 2).astype(np.float32)
    ints = numpy.integers(-100, 100, (rows, columns))
    dress = rng.choice(
        [
            lambda: plain,
            lambda: plain.astype(np.float64),
            lambda: plain.astype(np.float16),
            lambda: plain.astype(">f4"),
            lambda: np.asfortranarray(plain),
            lambda: plain[::-1],
            lambda: plain[:, ::-1],
            lambda: np.repeat(plain, 2, axis=0)[::2],
            lambda: np.broadcast_to(plain[:1], plain.shape),
            lambda: _read_only(plain),
            lambda: plain.tolist(),
            lambda: [row for row in plain],  # noqa: C416  a list of arrays
            lambda: ints,
            lambda: ints.astype(np.int8),
            lambda: ints.astype(">i4"),
            lambda: abs(ints).astype(np.uint16),
            lambda: np.ma.array(plain, mask=False),
            lambda: np.matrix(plain),
            lambda: torch.from_numpy(plain.copy()),
            lambda: torch.from_numpy(plain.copy()).double(),
            lambda: torch.from_numpy(plain.copy()).bfloat16(),
            lambda: torch.from_numpy(plain.copy()).T.contiguous().T,
            lambda: torch.from_numpy(plain.copy()).requires_grad_(),
            lambda: torch.nn.Parameter(torch.from_numpy(plain.copy())),
            lambda: torch.from_numpy(plain[:1].copy()).expand(rows, columns),
            lambda: torch.from_numpy(ints),
        ]
    )()
    known = dress.detach().double().numpy() if isinstance(dress, torch.Tensor) else np.array(dress, dtype=np.float64)
    return dress, known


def _read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array
