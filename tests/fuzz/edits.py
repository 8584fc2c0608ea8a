"""What accidents and enemies do to bytes: a strategy of edits on a good file."""

from __future__ import annotations

from hypothesis import strategies as st

INTERESTING = (
    b"\x00", b"\xff" * 8, b"\x00" * 8, b"\x7f" + b"\xff" * 7,
    b"-1", b"1e999", b"NaN", b"null", b"{", b"[" * 300, b'"', b"\\", b"\r\n", b"9" * 400,
    b"../../../etc/passwd", b"!!python/object/apply:os.system", b"&a [*a]", b"<script>", b"%s%n",
    b"\xef\xbb\xbf", b"\xf0\x9f", b"PK\x03\x04", b"\x93NUMPY", b"\x1b[31m",
)  # fmt: skip


@st.composite
def edited(draw: st.DrawFn, good: bytes, most: int = 6) -> bytes:
    """A good file after some edits (now and then none at all, or one that has nothing left of it)."""
    data = bytearray(good)
    for _ in range(draw(st.integers(0, most))):
        where = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 40))
        kind = draw(
            st.sampled_from(("flip", "flip", "cut", "insert", "replace", "repeat", "truncate", "swap"))
        )
        if kind == "flip" and where < len(data):
            data[where] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del data[where : where + length]
        elif kind == "insert":
            data[where:where] = draw(st.sampled_from(INTERESTING))
        elif kind == "replace":
            new = draw(st.sampled_from(INTERESTING) | st.binary(min_size=1, max_size=8))
            data[where : where + len(new)] = new
        elif kind == "repeat":
            data[where:where] = data[where : where + length] * draw(st.integers(1, 20))
        elif kind == "truncate":
            del data[where:]
        elif kind == "swap":
            other = draw(st.integers(0, len(data)))
            a, b = bytes(data[where : where + length]), bytes(data[other : other + length])
            data[where : where + len(b)], data[other : other + len(a)] = b, a
    return bytes(data)
