"""The hash: equal to splitmix64 in plain integers, and random enough."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stompp.data.hashing import below, draw, fold, permutation, uniform

MASK = (1 << 64) - 1


def plain_mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def plain_draw(key, counter):
    return plain_mix((key + 0x9E3779B97F4A7C15 * (counter + 1)) & MASK)


def test_draw_gives_the_published_sequence_of_splitmix64():
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [value & MASK for value in draw(1234567, torch.arange(4)).tolist()] == published


@given(st.integers(0, MASK), st.lists(st.integers(0, 1 << 40), min_size=1, max_size=9))
def test_draw_equals_plain_integers(key, counters):
    got = draw(key, torch.tensor(counters))
    assert [value & MASK for value in got.tolist()] == [plain_draw(key, c) for c in counters]


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=4))
def test_fold_equals_plain_integers(words):
    key = 0
    for word in words:
        key = plain_mix(((key ^ (word & MASK)) + 0x9E3779B97F4A7C15) & MASK)
    assert fold(*words) == key


def test_fold_tells_seeds_epochs_and_purposes_apart():
    keys = {fold(seed, epoch, purpose) for seed in range(20) for epoch in range(20) for purpose in range(3)}
    assert len(keys) == 20 * 20 * 3


@pytest.mark.parametrize("n", [1, 2, 9, 10, 1 << 21])
@pytest.mark.parametrize("field", [0, 1, 2])
def test_below_and_uniform_read_their_own_21_bits(n, field):
    bits = draw(fold(3), torch.arange(500))
    plain = [((value & MASK) >> (21 * field)) & ((1 << 21) - 1) for value in bits.tolist()]
    assert below(bits, field, n).tolist() == [(value * n) >> 21 for value in plain]
    assert uniform(bits, field).tolist() == [(value + 0.5) / (1 << 21) for value in plain]


@pytest.mark.parametrize("field", [0, 1, 2])
def test_below_is_even_over_its_range(field):
    counts = torch.bincount(below(draw(fold(5), torch.arange(90_000)), field, 9), minlength=9)
    chi_square = ((counts - 10_000.0) ** 2 / 10_000).sum().item()
    assert chi_square < 26.1  # 8 degrees of freedom, p = 0.001; the draw is fixed, so this never flickers


@given(st.integers(0, 300), st.integers(0, MASK))
def test_permutation_sorts_the_signed_hashes(n, key):
    def signed(i):
        return plain_draw(key, i) - ((plain_draw(key, i) >> 63) << 64)

    assert permutation(key, n).tolist() == sorted(range(n), key=lambda i: (signed(i), i))
