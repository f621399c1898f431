"""Properties of an epoch: every index once, ranks share it out, a resume equals skipping, and no state is touched."""

import itertools
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stompp.data import Augment, Batches, Split, load
from stompp.errors import UsageError

MEAN, STD = (0.4,), (0.3,)


def numbered(n, size=2):
    """Makes a split whose labels are the indices of its images."""
    images = torch.arange(n * size * size).remainder(251).to(torch.uint8).view(n, 1, size, size)
    return Split(images, torch.arange(n))


def labels_of(batches, epoch, start=0):
    return [y.tolist() for _, y in batches.epoch(epoch, start)]


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


sizes = st.integers(1, 60)
seeds = st.integers(0, (1 << 63) - 1)


@given(sizes, st.integers(1, 70), seeds, st.integers(0, 1000))
@settings(deadline=None)
def test_an_epoch_holds_every_index_exactly_once(n, batch_size, seed, epoch):
    batches = Batches(numbered(n), batch_size, MEAN, STD, seed=seed, drop_last=False)
    steps = labels_of(batches, epoch)
    assert len(steps) == len(batches)
    assert sorted(flat(steps)) == list(range(n))


@given(sizes, st.integers(1, 9), st.integers(1, 5), seeds, st.booleans())
@settings(deadline=None)
def test_ranks_partition_the_epoch(n, batch_size, world, seed, shuffle):
    common = {"seed": seed, "shuffle": shuffle, "drop_last": False}
    ranks = [Batches(numbered(n), batch_size, MEAN, STD, rank=r, world=world, **common) for r in range(world)]
    seen = [flat(labels_of(rank, 3)) for rank in ranks]
    assert sorted(flat(seen)) == list(range(n))
    assert [len(labels_of(rank, 3)) for rank in ranks] == [len(rank) for rank in ranks]


@given(sizes, st.integers(1, 9), st.integers(1, 5), seeds)
@settings(deadline=None)
def test_with_drop_last_the_ranks_together_see_the_steps_of_one_large_batch(n, batch_size, world, seed):
    if n < batch_size * world:
        return
    alone = labels_of(Batches(numbered(n), batch_size * world, MEAN, STD, seed=seed), 5)
    ranks = [Batches(numbered(n), batch_size, MEAN, STD, seed=seed, rank=r, world=world) for r in range(world)]
    shares = [labels_of(rank, 5) for rank in ranks]
    assert {len(rank) for rank in ranks} == {len(alone)}
    for step, together in enumerate(alone):
        assert sorted(flat(share[step] for share in shares)) == sorted(together)
        assert {len(share[step]) for share in shares} == {batch_size}


@given(st.integers(1, 40), st.integers(1, 9), seeds, st.booleans(), st.data())
@settings(deadline=None, max_examples=50)
def test_a_resume_at_step_k_equals_skipping_k_steps(n, batch_size, seed, drop_last, data):
    if drop_last and n < batch_size:
        return
    augment = data.draw(st.sampled_from([None, Augment(1, flip=True), Augment(resized_crop=True)]))
    batches = Batches(numbered(n, 3), batch_size, MEAN, STD, augment, seed=seed, drop_last=drop_last)
    start = data.draw(st.integers(0, len(batches)))
    skipped, resumed = list(batches.epoch(2))[start:], list(batches.epoch(2, start))
    assert len(skipped) == len(resumed) == len(batches) - start
    for (x, y), (again_x, again_y) in zip(skipped, resumed):
        assert torch.equal(x, again_x)
        assert torch.equal(y, again_y)


@given(st.integers(1, 12), st.integers(1, 4))
@settings(deadline=None, max_examples=20)
def test_pixels_do_not_depend_on_batch_size_or_world(batch_size, world):
    split, augment = numbered(24, 5), Augment(crop_pad=2, flip=True)
    reference = {int(y): x for x, y in Batches(split, 1, MEAN, STD, augment, seed=4).epoch(9)}
    for rank in range(world):
        batches = Batches(split, batch_size, MEAN, STD, augment, seed=4, rank=rank, world=world, drop_last=False)
        for x, y in batches.epoch(9):
            for image, label in zip(x, y.tolist()):
                assert torch.equal(image[None], reference[label])


def test_epochs_and_seeds_give_different_orders_and_crops():
    split, augment = numbered(200, 4), Augment(crop_pad=2, flip=True)

    def first(seed, epoch):
        return next(iter(Batches(split, 200, MEAN, STD, augment, seed=seed, shuffle=False).epoch(epoch)))[0]

    assert not torch.equal(first(0, 0), first(0, 1))
    assert not torch.equal(first(0, 0), first(1, 0))
    assert torch.equal(first(0, 0), first(0, 0))
    orders = {tuple(Batches(split, 1, MEAN, STD, seed=s).order(e).tolist()) for s in range(3) for e in range(3)}
    assert len(orders) == 9


def test_without_shuffle_the_order_is_that_of_the_split():
    batches = Batches(numbered(10), 4, MEAN, STD, shuffle=False, drop_last=False)
    assert labels_of(batches, 0) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_an_interleaved_second_iterator_changes_nothing():
    batches = Batches(numbered(30), 4, MEAN, STD)
    one, other, pairs = batches.epoch(1), batches.epoch(1), []
    for (_, y), (_, again) in zip(one, other):
        list(batches.epoch(2))
        pairs.append((y.tolist(), again.tolist()))
    assert all(y == again for y, again in pairs)


def test_the_global_generator_and_the_images_are_left_alone():
    split = numbered(32, 6)
    before, images = torch.get_rng_state(), split.images.clone()
    for augment in (None, Augment(2, flip=True), Augment(resized_crop=True, flip=True)):
        for x, _ in Batches(split, 8, MEAN, STD, augment).epoch(0):
            x.zero_()  # what a batch holds is its own memory
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(split.images, images)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_dtype_and_memory_format_are_those_asked_for(dtype, channels_last):
    split = Split(torch.randint(0, 256, (8, 3, 4, 5), dtype=torch.uint8), torch.zeros(8, dtype=torch.int64))
    constants = (0.5, 0.4, 0.3), (0.2, 0.2, 0.3)
    plain = next(iter(Batches(split, 8, *constants).epoch(0)))[0]
    x, _ = next(iter(Batches(split, 8, *constants, dtype=dtype, channels_last=channels_last).epoch(0)))
    assert x.dtype == dtype
    assert x.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    assert torch.equal(x, plain.to(dtype))


def test_normalised_training_images_have_mean_0_and_deviation_1():
    data = load("digits")
    x = torch.cat([x for x, _ in Batches(data.train, 100, data.mean, data.std, drop_last=False).epoch(0)])
    assert abs(x.mean().item()) < 1e-3
    assert abs(x.std().item() - 1) < 1e-3


def test_a_batch_costs_next_to_nothing():
    """A ResNet-18 step takes seconds on a CPU; 15 ms is far below 3 % of it, and a batch needs far below 15 ms."""
    split = Split(torch.zeros(1280, 3, 32, 32, dtype=torch.uint8), torch.zeros(1280, dtype=torch.int64))
    stream, seconds = Batches(split, 128, (0.5,) * 3, (0.2,) * 3, Augment(4, flip=True)).epoch(0), []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine several threads wait for each other, which is not our cost
    try:
        for _ in range(10):
            begin = time.perf_counter()
            next(stream)
            seconds.append(time.perf_counter() - begin)
    finally:
        torch.set_num_threads(threads)
    assert min(seconds) < 0.015


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"batch_size": 0}, "at least 1"),
        ({"batch_size": 11}, "needs 11 images and the split has 10"),
        ({"batch_size": 4, "world": 3}, "needs 12 images and the split has 10"),
        ({"rank": 2, "world": 2}, "ranks count from 0"),
        ({"rank": -1}, "ranks count from 0"),
        ({"mean": (0.1, 0.2)}, "the images have 1 channels"),
    ],
)
def test_bad_arguments_are_refused_with_the_remedy(arguments, message):
    with pytest.raises(UsageError, match=message):
        Batches(**{"split": numbered(10), "batch_size": 2, "mean": MEAN, "std": STD, **arguments})


@pytest.mark.parametrize("start", [-1, 6])
def test_a_start_outside_the_epoch_is_refused_at_once(start):
    with pytest.raises(UsageError, match="has 5 steps; it cannot start"):
        Batches(numbered(10), 2, MEAN, STD).epoch(0, start)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("augment", [Augment(4, flip=True), Augment(resized_crop=True, flip=True)])
def test_a_gpu_gives_the_same_bits(augment):
    split = Split(torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8), torch.arange(64))
    constants = (0.5, 0.4, 0.3), (0.2, 0.2, 0.3)
    for (x, y), (gpu_x, gpu_y) in zip(
        Batches(split, 16, *constants, augment).epoch(1), Batches(split.to("cuda"), 16, *constants, augment).epoch(1)
    ):
        assert torch.equal(x, gpu_x.cpu())
        assert torch.equal(y, gpu_y.cpu())
