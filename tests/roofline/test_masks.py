"""Which keys a query sees: the closed forms against counting them one by one."""

from hypothesis import given
from hypothesis import strategies as st

from perfmodel.roofline.attention import distinct_keys, visible_pairs

KV = st.integers(1, 120)


def seen(p: int, window: int | None = None, sinks: int = 0, chunk: int | None = None) -> set[int]:
    """Keys (1-based) that the query at position p sees under a causal mask."""
    keys = range(1, p + 1)
    if chunk is not None:
        return {k for k in keys if (k - 1) // chunk == (p - 1) // chunk}
    return {k for k in keys if window is None or k > p - window or k <= sinks}


def queries(q: int, kv: int) -> range:
    return range(kv - q + 1, kv + 1)


@given(KV, st.data())
def test_full_attention_counts_every_key_up_to_the_query(kv: int, data: st.DataObject) -> None:
    """Pairs and distinct keys of full causal attention equal a count over all queries."""
    q = data.draw(st.integers(1, kv))
    sets = [seen(p) for p in queries(q, kv)]
    assert visible_pairs(float(q), float(kv)) == sum(map(len, sets))
    assert distinct_keys(float(q), float(kv)) == len(set().union(*sets))


@given(KV, st.integers(1, 40), st.integers(0, 12), st.data())
def test_window_with_sinks_counts_the_window_and_the_first_tokens(
    kv: int, window: int, sinks: int, data: st.DataObject
) -> None:
    """Pairs and distinct keys of a sliding window, with or without attention sinks, equal a count over all queries."""
    q = data.draw(st.integers(1, kv))
    sets = [seen(p, window, sinks) for p in queries(q, kv)]
    assert visible_pairs(float(q), float(kv), float(window + sinks)) == sum(map(len, sets))
    assert distinct_keys(float(q), float(kv), float(window), float(sinks)) == len(set().union(*sets))


@given(KV, st.integers(1, 40), st.data())
def test_chunked_attention_counts_the_own_chunk_only(kv: int, chunk: int, data: st.DataObject) -> None:
    """Pairs and distinct keys of chunked attention equal a count over all queries."""
    q = data.draw(st.integers(1, kv))
    sets = [seen(p, chunk=chunk) for p in queries(q, kv)]
    assert visible_pairs(float(q), float(kv), chunk=float(chunk)) == sum(map(len, sets))
    assert distinct_keys(float(q), float(kv), chunk=float(chunk)) == len(set().union(*sets))


@given(KV, st.integers(1, 40), st.data())
def test_top_k_counts_at_most_k_keys_a_query(kv: int, topk: int, data: st.DataObject) -> None:
    """Sparse attention's pairs are min(position, k), summed over the queries."""
    q = data.draw(st.integers(1, kv))
    assert visible_pairs(float(q), float(kv), float(topk)) == sum(min(p, topk) for p in queries(q, kv))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 30), st.integers(1, 30))
def test_pieces_of_a_prompt_have_the_pairs_of_the_whole(pieces: list[int], window: int, chunk: int) -> None:
    """Chunked prefill scores exactly the pairs of the whole prefill, however the prompt is cut and masked."""
    whole = float(sum(pieces))
    for mask in ({}, {"limit": float(window)}, {"chunk": float(chunk)}):
        done, pairs = 0.0, 0.0
        for piece in pieces:
            done += piece
            pairs += visible_pairs(float(piece), done, **mask)
        assert pairs == visible_pairs(whole, whole, **mask)


@given(st.integers(2, 10**6))
def test_causal_mask_needs_half_of_the_square_and_half_a_diagonal(n: int) -> None:
    """A causal prompt of n tokens needs n(n+1)/2 pairs: the half, not the n^2 of the full square."""
    assert visible_pairs(float(n), float(n)) == n * (n + 1) / 2
