"""Strict JSON, as the page of the format has it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from oracles import build
from peakmem_check.jsonfile import DEEPEST, MOST_DIGITS, parse_json, read_program
from peakmem_check.model import InputError, Program


def nested(depth: int, mixed: bool) -> bytes:
    if not mixed:
        return b"[" * depth + b"]" * depth
    pairs, rest = divmod(depth, 2)
    return b'{"]":[' * pairs + b"{}" * rest + b"]}" * pairs


@pytest.mark.parametrize("mixed", [False, True])
def test_depth(mixed: bool) -> None:
    for depth in (1, 255, 256):
        parse_json(nested(depth, mixed), "x")
    for depth in (257, 258, 990, 1500, 100_000):
        with pytest.raises(InputError, match="nested more than 256 deep"):
            parse_json(nested(depth, mixed), "x")


def test_brackets_in_texts_and_side_by_side_are_not_depth() -> None:
    wide: list[Any] = [[["[", '"[{\\', "\\", "]"]] for _ in range(1000)]
    assert parse_json(json.dumps([wide, "[" * 1000, {"{" * 300 + '"': 1}]).encode(), "x")[0] == wide
    deep = json.dumps("\\" * 50).encode()
    for _ in range(255):
        deep = b'["\\\\", "\\"]", ' + deep + b', "["]'
    parse_json(b"[" + deep + b"]", "x")
    with pytest.raises(InputError, match="deep"):
        parse_json(b"[[" + deep + b"]]", "x")


def test_depth_as_counted_by_walking() -> None:
    def walked(value: Any) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return 0 if inner is None else 1 + max(map(walked, inner), default=0)

    def made(rng: random.Random, left: int) -> Any:
        if left == 0 or rng.random() < 0.01:
            return rng.choice([1, "[", '"', "\\]", None])
        children = [made(rng, left - 1), *(rng.choice(["}", [], {}]) for _ in range(rng.randint(0, 2)))]
        rng.shuffle(children)
        return children if rng.random() < 0.5 else {f"{i}[": child for i, child in enumerate(children)}

    met = set()
    for seed in range(150):
        document = made(random.Random(seed), 253 + seed % 6)
        deep = walked(document)
        met.add(deep > DEEPEST)
        data = json.dumps(document).encode()
        if deep > DEEPEST:
            with pytest.raises(InputError, match="deep"):
                parse_json(data, "x")
        else:
            assert parse_json(data, "x") == document
    assert met == {False, True}


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize("limit", ["", "0", "5000"])
def test_digits(sign: str, limit: str) -> None:
    """Whatever the limit of the interpreter is."""
    code = (
        "import sys; from peakmem_check.jsonfile import *; from peakmem_check.model import InputError\n"
        "print(parse_json(sys.argv[1].encode() + b'9' * MOST_DIGITS, 'x') % 10)\n"
        "try: parse_json(sys.argv[1].encode() + b'9' * (MOST_DIGITS + 1), 'x')\n"
        "except InputError as error: print(error)\n"
    )
    options = ["-X", f"int_max_str_digits={limit}"] if limit else []
    done = subprocess.run([sys.executable, *options, "-c", code, sign], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["1" if sign else "9", "x: holds an integer of more than 4300 digits"]


def test_digits_of_what_is_no_integer() -> None:
    long = b"9" * (MOST_DIGITS + 1)
    assert parse_json(b'["' + long + b'"]', "x") == [long.decode()]
    assert parse_json(b"0." + long, "x") == 1.0
    assert parse_json(long + b"e-4301", "x") == 1.0


@pytest.mark.parametrize(
    ("text", "value"),
    [("-0", 0), ("1e999", float("inf")), ("\ufeff[]", []), (" \t\r\n1 ", 1), ('{"":{"":0}}', {"": {"": 0}}), ('"\x7f\\u0000"', "\x7f\0")],
)  # fmt: skip
def test_read(text: str, value: object) -> None:
    found = parse_json(text.encode(), "x")
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    "data",
    [
        b"NaN", b"-Infinity", b'{"a": [Infinity]}', b'{"x": {"a": 1, "b": 2, "a": 1}}', b'{"a": 1, "\\u0061": 1}',
        b'["\\ud800"]', b'{"\\udc00": 1}', b'{"a": {"\\ud83d": 1}}', b'"\xed\xa0\x80"', b"\xef\xbb\xbf\xef\xbb\xbf[]",
        b"\xff\xfe[\x00]\x00", b"", b"[1,]", b"01", b"+1", b".5", b"1.", b'"\t"', b"'a'", b"[] []", b"\x0c[]", b"\xc2\xa0[]",
        b"// x\n1", b"--1", b"\xef\xbc\x91", b"1_0", b"0x1", b"True", b'"\\x41"', b'"\\u00g0"',
    ],
)  # fmt: skip
def test_refused(data: bytes) -> None:
    with pytest.raises(InputError, match=r"^c\.json: [^\n]*$"):
        parse_json(data, "c.json")


def test_a_program_file(tmp_path: Path) -> None:
    program = build("a=1 b=2", "A > a | use 3", "B a > b | after A")
    document = program.to_json()
    path = tmp_path / "p.json"
    for quantity in ("live_peak", "bytes_above_entry"):
        path.write_text(json.dumps({**document, "quantity": quantity, "other": {"a": [1e5, None]}}))
        assert read_program(path) == read_program(str(path)) == program
    for wrong in (None, 1, [], "bytes", "LIVE_PEAK"):
        with pytest.raises(InputError, match=r"p\.json: 'quantity': must be one of live_peak, bytes_above_entry"):
            Program.from_json({**document, "quantity": wrong}, where="p.json")
    inner = {**document, "statements": [{"id": "if", "bodies": [{**document, "quantity": 7}]}]}
    with pytest.raises(InputError, match="body 0/0: 'quantity'"):
        Program.from_json(inner)
    path.write_text(json.dumps({**document, "statements": [{"id": "A", "effects": [1]}]}))
    with pytest.raises(InputError, match="'effects' must be a list of texts"):
        read_program(path)
