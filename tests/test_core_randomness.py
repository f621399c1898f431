"""The draws: distinct, uniform, independent; and the frozen fraction as the exact Markov chain has it."""

import math
import time

import numpy as np
import pytest
import torch

from stompp.core.policies import SoftRefresh
from stompp.core.randomness import Key, coins, distinct_indices, heads


def chi_square_is_plausible(statistic: float, freedom: int) -> bool:
    """Wilson and Hilferty's normal approximation, two-sided at 4 sigma: too even is as suspect as too uneven."""
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return abs(z) < 4


def draws(n: int, k: int, count: int, site: int = 3) -> np.ndarray:
    return distinct_indices(n, k, [Key(11, site, step) for step in range(count)]).numpy()


@pytest.mark.parametrize("n, k", [(1, 1), (2, 1), (3, 3), (7, 7), (8, 3), (100, 1), (1024, 999), (4097, 4097)])
def test_indices_are_distinct_and_in_range(n, k):
    for seed in range(5):
        found = distinct_indices(n, k, [Key(seed, 1, 2)])[0].tolist()
        assert len(set(found)) == k
        assert set(found) <= set(range(n))


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 8, 10, 13, 16, 17])
def test_indices_are_uniform_alone_and_in_pairs(n):
    count = 1500
    pairs = draws(n, 2, count)
    cells = np.zeros((n, n))
    np.add.at(cells, (pairs[:, 0], pairs[:, 1]), 1)
    assert (np.diag(cells) == 0).all()
    expected = count / (n * (n - 1))
    off = cells[~np.eye(n, dtype=bool)]
    assert chi_square_is_plausible(((off - expected) ** 2 / expected).sum(), n * (n - 1) - 1)
    for column in range(2):
        single = np.bincount(pairs[:, column], minlength=n)
        if n > 2:
            assert chi_square_is_plausible(((single - count / n) ** 2 / (count / n)).sum(), n - 1)


@pytest.mark.parametrize("n", [1025, 2048, 3000])
def test_pairs_of_the_permutation_are_uniform_in_every_part_of_their_bits(n):
    """Too many pairs to count each: count by the lowest three bits of both, and by the eighth of [0, n) of both."""
    count = 1500
    pairs = draws(n, 2, count)
    for part in (lambda x: x % 8, lambda x: x * 8 // n):
        size = np.bincount(part(np.arange(n)), minlength=8)
        expected = count * (np.outer(size, size) - np.diag(size)) / (n * (n - 1))
        cells = np.zeros((8, 8))
        np.add.at(cells, (part(pairs[:, 0]), part(pairs[:, 1])), 1)
        assert chi_square_is_plausible(((cells - expected) ** 2 / expected).sum(), 63)


@pytest.mark.parametrize("n, k", [(100, 7), (1000, 10), (1025, 100), (3000, 30)])
def test_indices_are_uniform_over_steps_at_real_sizes(n, k):
    """With k of n distinct per draw a cell's count has variance R (k/n)(1 - k/n), and the cells' sum is fixed."""
    count = 600
    found = np.bincount(draws(n, k, count).ravel(), minlength=n)
    share = k / n
    statistic = ((found - count * share) ** 2).sum() / (count * share * (1 - share)) * (n - 1) / n
    assert chi_square_is_plausible(statistic, n - 1)


def test_draws_of_neighbouring_keys_are_independent():
    n, k, count = 200, 20, 400
    first = draws(n, k, count + 1)
    other_site = draws(n, k, count, site=4)
    expected, deviation = count * k * k / n, math.sqrt(count * k * (k / n) * (1 - k / n))
    for a, b in ((first[:-1], first[1:]), (first[:-1], other_site)):
        together = sum(len(np.intersect1d(x, y)) for x, y in zip(a, b))
        assert abs(together - expected) < 4 * deviation
    tossed = heads(coins(50, [Key(0, s, t) for s in range(20) for t in range(20)]), 0.3).double()
    assert abs(tossed.mean().item() - 0.3) < 4 * math.sqrt(0.3 * 0.7 / tossed.numel())
    assert chi_square_is_plausible(((tossed.sum(1) - 15) ** 2 / (50 * 0.3 * 0.7)).sum().item(), 400)
    assert chi_square_is_plausible(((tossed.sum(0) - 120) ** 2 / (400 * 0.3 * 0.7)).sum().item(), 50)


@pytest.mark.parametrize("n, refresh", [(12, 3), (7, 2), (50, 10)])
def test_frozen_fraction_follows_the_exact_markov_chain(n, refresh):
    """Mean and variance of the number X of frozen entries, step by step.

    Let m be P(entry i frozen) and q = P(entries i and j both frozen); all entries and pairs are alike. One step draws
    k = floor(n/r) of n without replacement and sets them to independent coins of probability p. So

        m' = (1 - k/n) m + (k/n) p
        q' = P(neither drawn) q + P(exactly one drawn) p m + P(both drawn) p^2

    with P(both) = k(k-1) / n(n-1), P(neither) = (n-k)(n-k-1) / n(n-1), P(exactly one) = 2 k(n-k) / n(n-1). Then
    E X = n m and Var X = n m + n(n-1) q - (n m)^2.
    """
    seeds, steps = 500, 14
    counts = np.zeros((steps, seeds))
    for seed in range(seeds):
        mask, policy = torch.zeros(n, dtype=torch.bool), SoftRefresh(refresh)
        for t in range(steps):
            mask = policy(mask, ((t + 1) / steps) ** 2, Key(seed, 0, t))
            counts[t, seed] = mask.sum()
    k, m, q = n // refresh, 0.0, 0.0
    pairs = n * (n - 1)
    both, neither, one = k * (k - 1) / pairs, (n - k) * (n - k - 1) / pairs, 2 * k * (n - k) / pairs
    for t in range(steps):
        p = ((t + 1) / steps) ** 2
        q = neither * q + one * p * m + both * p * p
        m = (1 - k / n) * m + k / n * p
        mean, variance = n * m, n * m + pairs * q - (n * m) ** 2
        assert abs(counts[t].mean() - mean) < 4 * math.sqrt(variance / seeds) + 1e-9, t
        # The variance of a sample variance, from the sample's own fourth moment.
        spread = math.sqrt(max(((counts[t] - counts[t].mean()) ** 4).mean() - variance**2, 0) / seeds)
        assert abs(counts[t].var(ddof=1) - variance) < 4.5 * spread + 0.02, t


def test_refresh_larger_than_the_site_never_moves_it():
    policy = SoftRefresh(100)
    mask = torch.zeros(99, dtype=torch.bool)
    for t in range(50):
        mask = policy(mask, 1.0, Key(0, 0, t))
    assert not mask.any()
    assert policy(torch.zeros(100, dtype=torch.bool), 1.0, Key(0, 0, 0)).sum() == 1
    assert policy(torch.zeros(299, dtype=torch.bool), 1.0, Key(0, 0, 0)).sum() == 2


@pytest.mark.parametrize("n", [150, 5_000, 300_000])
def test_drawing_ahead_changes_nothing(n):
    """Whatever was drawn before, and from whichever step on, a step's draw is that of its key alone."""
    policy = SoftRefresh(7)
    for step in (0, 1, 2, 100, 101, 63, 64, 65, 1000):
        for site in (0, 1):
            key = Key(5, site, step)
            found = policy(torch.zeros(n, dtype=torch.bool), 0.5, key)
            expected = torch.zeros(n, dtype=torch.bool)
            expected[distinct_indices(n, n // 7, [key])[0]] = heads(coins(n // 7, [key])[0], 0.5)
            assert torch.equal(found, expected)


def test_no_draws_are_kept_of_steps_that_have_passed():
    policy = SoftRefresh(10)
    for site in range(30):
        for step in range(site * 200, site * 200 + 200):
            policy(torch.zeros(500 + site, dtype=torch.bool), 0.5, Key(0, site, step))
    assert len(policy._ahead) <= 2


def test_draw_costs_what_is_drawn_and_not_what_it_is_drawn_from():
    def best(n: int) -> float:
        times = []
        for step in range(15):
            start = time.perf_counter()
            distinct_indices(n, 100, [Key(0, 0, step)])
            times.append(time.perf_counter() - start)
        return min(times)

    assert best(2**30) < 10 * best(2**12)  # a permutation of 2**30 entries would take seconds


def test_keys_differ_in_every_part():
    keys = [Key(a, b, c).subkey(d) for a in range(6) for b in range(6) for c in range(6) for d in range(6)]
    assert len(set(keys)) == 6**4
    assert all(0 <= key < 2**64 for key in keys)
