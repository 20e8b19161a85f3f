"""The cache keeps what was used last, within its two bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from triolet.text.grammar_cache import LruCache


def test_the_least_recently_used_goes_first() -> None:
    cache = LruCache[int](max_entries=2, max_characters=100)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)


def test_a_key_over_the_limit_is_not_kept() -> None:
    cache = LruCache[int](max_entries=2, max_characters=3)
    cache.put("long", 1)
    assert len(cache) == 0


def test_what_is_pinned_stays_whatever_the_limits() -> None:
    cache = LruCache[int](max_entries=1, max_characters=3)
    for _ in range(2):
        cache.pin("long")
    cache.put("long", 1)
    cache.put("b", 2)
    assert cache.get("long") == 1
    cache.unpin("long")
    cache.put("c", 3)
    assert cache.get("long") == 1
    cache.unpin("long")
    assert cache.get("long") is None
    cache.put("d", 4)
    assert (cache.get("d"), len(cache)) == (4, 1)


@given(st.lists(st.tuples(st.booleans(), st.text("abc", max_size=4))))
def test_it_agrees_with_a_list(operations: list[tuple[bool, str]]) -> None:
    cache = LruCache[str](max_entries=3, max_characters=7)
    model: list[str] = []
    for is_put, key in operations:
        assert (cache.get(key) == key) == (key in model)
        if key in model:
            model.remove(key)
            model.append(key)
        if is_put:
            cache.put(key, key)
            model = [*(known for known in model if known != key), key]
            while len(model) > 3 or sum(map(len, model)) > 7:
                model.pop(0)
        assert len(cache) == len(model)
