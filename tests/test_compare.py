"""The comparison: what passes, what fails, and where the report points."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from harness.compare import Gate, compare, error_map, gate

FP16 = Gate("current", 2**-14, 2**-9, 0.99, 0.1)
EXACT = Gate("exact", 0.0, 0.0, 1.0, math.inf)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape)


def test_equal_passes() -> None:
    result = compare(ones(4, 8).astype(np.float16), ones(4, 8), FP16)
    assert result.passed
    assert result.max_error == 0
    assert result.report == ""


def test_one_percent_may_exceed_the_tolerance_but_not_the_cap() -> None:
    got = ones(10, 100)
    got[0, :10] += 0.05
    assert compare(got, ones(10, 100), FP16).passed
    got[1, 0] += 0.05  # one more than 1 %
    assert not compare(got, ones(10, 100), FP16).passed
    got = ones(10, 100)
    got[3, 7] += 0.2
    result = compare(got, ones(10, 100), FP16)
    assert not result.passed
    assert "first: [3, 7]" in result.report


def test_a_whole_row_or_column_may_not_exceed_the_tolerance() -> None:
    for place in ((3, slice(None)), (slice(None), 7)):
        got = ones(400, 300)
        got[place] += 0.05  # less than 1 %
        result = compare(got, ones(400, 300), FP16)
        assert not result.passed
        assert "only in" in result.report
    got = ones(400, 300)
    got[5, ::2] += 0.05  # half of a row is not most of it
    assert compare(got, ones(400, 300), FP16).passed


def test_the_cap_follows_the_magnitude() -> None:
    expected = np.full((4, 4), 2000.3)
    assert compare(expected.astype(np.float16), expected, FP16).passed


@pytest.mark.parametrize(
    ("got", "expected"),
    [(np.nan, 1.0), (1.0, np.nan), (np.inf, 1.0), (np.inf, -np.inf), (-np.inf, np.nan), (65504.0, np.inf)],
)
def test_masks_are_compared_apart(got: float, expected: float) -> None:
    a, b = ones(100, 100).astype(np.float16), ones(100, 100)
    a[5, 5], b[5, 5] = got, expected
    result = compare(a, b, FP16)
    assert not result.passed  # however few they are
    assert "1 of 10000 elements wrong" in result.report


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_equal_masks_pass(value: float) -> None:
    a, b = ones(4, 4).astype(np.float16), ones(4, 4)
    a[1, 1] = b[1, 1] = value
    assert compare(a, b, FP16).passed


def test_what_the_output_type_cannot_hold_counts_as_infinite() -> None:
    expected = np.full((2, 2), 1e6)
    assert compare(np.full((2, 2), np.inf, np.float16), expected, FP16).passed
    assert not compare(np.full((2, 2), 65504, np.float16), expected, FP16).passed


def test_bfloat16() -> None:
    expected = np.linspace(-3, 3, 64).reshape(8, 8)
    limits = Gate("current", 2**-10, 2**-6, 0.99, 1.0)
    assert compare(expected.astype(ml_dtypes.bfloat16), expected, limits).passed
    assert not compare((expected + 0.3).astype(ml_dtypes.bfloat16), expected, limits).passed


def test_integers_are_exact() -> None:
    got = np.arange(64, dtype=np.int32).reshape(8, 8)
    assert compare(got, got.astype(np.int64), EXACT).passed
    wrong = got.copy()
    wrong[7, 7] += 1
    result = compare(wrong, got.astype(np.int64), EXACT)
    assert not result.passed
    assert "[7, 7] got 64, expected 63" in result.report


def test_shape_and_empty() -> None:
    assert "shape" in compare(ones(2, 3), ones(3, 2), FP16).report
    assert compare(ones(0, 3), ones(0, 3), FP16).passed


def test_a_dropped_tail_is_seen_at_once() -> None:
    got, expected = ones(77, 103).astype(np.float16), ones(77, 103)
    got[64:, :] = np.nan
    report = compare(got, expected, FP16, (32, 32)).report
    assert "are NaN: never written" in report
    assert "rows 64-76 of 0-76" in report
    assert report.splitlines()[-3:] == ["  ....", "  ....", "  ####"]
    assert "(tile row 2, column 0)" in report


def test_a_wrong_block_is_seen_at_once() -> None:
    got, expected = ones(64, 64), ones(64, 64)
    got[16:32, 32:48] = 5
    report = compare(got, expected, FP16, (16, 16)).report
    assert "only in rows 16-31 of 0-63, columns 32-47 of 0-63" in report
    assert report.splitlines()[-4:] == ["  ....", "  ..#.", "  ....", "  ...."]


@pytest.mark.parametrize("shape", [(1,), (5,), (3, 1), (1000, 3000), (2, 3, 40, 50)])
def test_the_map_stays_small(shape: tuple[int, ...]) -> None:
    wrong = np.zeros(shape, bool)
    wrong.flat[-1] = True
    lines = error_map(wrong, None)[1:]
    assert len(lines) <= 16
    assert all(len(line.strip()) <= 48 for line in lines)
    assert lines[-1][-1] in "#+"


def test_gates_come_from_the_catalog() -> None:
    from harness import catalog

    facts = catalog.load()
    assert gate(facts, "float16").cap == pytest.approx(0.1)
    assert gate(facts, "bfloat16").rtol == pytest.approx(2**-6)
    assert gate(facts, "float16", name="legacy", tolerance="large").rtol == pytest.approx(5e-3)
    assert gate(facts, "float32", name="legacy", tolerance="fusion").atol == pytest.approx(1e-4)
    assert gate(facts, "int32").name == "exact"
