"""Messages: what is parsed, what is refused, and the binary layout that the page reads."""

from __future__ import annotations

import json
from decimal import Decimal

import numpy as np
import pytest

from metastable.explorer import limits, protocol


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "1",
        "null",
        "{",
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a": 1e999}',
        '{"a": ' + "9" * 5000 + "}",
        '{"a": 99999999999999999999}',
        '{"a": 0.' + "1" * 1000 + "}",
        "[" * 100_000,
        '{"a":' * 50_000,
        "\x00\x01\x02",
        b"\xff\xfe\x00",
        '"' + "x" * limits.MESSAGE_BYTES + '"',
    ],
)
def test_what_is_not_a_message_is_refused(text):
    with pytest.raises(protocol.MessageError):
        protocol.parse(text)


@pytest.mark.parametrize("value", [2.0**53, 1e16, 1.2345678901234567e19, 9e20, 9.007199254740993e20, -1e16])
def test_real_numbers_that_scripts_write_without_a_point_are_read(value):
    """JSON.stringify(1e16) is 10000000000000000, and so on below 1e21."""
    text = f"{int(Decimal(repr(value)))}"
    assert protocol.parse(f'{{"a": {text}}}') == {"a": value}


def test_a_message_is_read_exactly():
    assert protocol.parse('{"a": [1, 2.5, true, null, "é"]}') == {"a": [1, 2.5, True, None, "é"]}


def test_positions_are_laid_out_as_documented():
    positions = np.arange(2 * 3 * 2, dtype=float).reshape(2, 3, 2)
    distance = np.array([[0.0, 0.5, 1.0], [0.0, 0.25, 2.0]])
    message = protocol.pack_positions(1, 77, 5, positions, distance)
    assert protocol.HEADER.size == 24
    assert protocol.HEADER.unpack(message[:24]) == (b"MS", protocol.POSITIONS, 1, 77, 5, 2, 3, 2)
    numbers = np.frombuffer(message[24:], "<f4")
    np.testing.assert_array_equal(numbers[:12].reshape(2, 3, 2), positions)
    np.testing.assert_array_equal(numbers[12:].reshape(2, 3), distance)


def test_leaders_and_attention_are_laid_out_as_documented():
    leaders = np.array([[0, 0, 2], [0, 0, 0]])
    message = protocol.pack_leaders(0, 1, 9, leaders)
    assert protocol.HEADER.unpack(message[:24]) == (b"MS", protocol.LEADERS, 0, 1, 9, 2, 3, 1)
    np.testing.assert_array_equal(np.frombuffer(message[24:], "<u2").reshape(2, 3), leaders)
    matrix = np.eye(4) / 2
    message = protocol.pack_attention(0, 1, 9, 200, matrix)
    assert protocol.HEADER.unpack(message[:24]) == (b"MS", protocol.ATTENTION, 0, 1, 9, 1, 200, 4)
    np.testing.assert_array_equal(np.frombuffer(message[24:], "<f4").reshape(4, 4), matrix)


def test_json_never_holds_a_number_that_browsers_cannot_read():
    assert protocol.finite([1.0, np.nan, np.inf]) == [1.0, None, None]
    with pytest.raises(ValueError, match="JSON"):
        protocol.dumps({"a": float("nan")})
    assert json.loads(protocol.dumps({"a": 1})) == {"a": 1}
