"""`load` and `names`, every data set by enumeration, and what importing the package costs."""

import subprocess
import sys

import pytest
import torch

from stompp.data import Dataset, load, names, shape_of
from stompp.errors import UsageError

EXPECTED = {"digits", "cifar10", "cifar100", "cifar10-16", "cifar100-16", "fashion-mnist", "imagenet"}


def test_names_lists_every_data_set():
    assert set(names()) == EXPECTED


@pytest.mark.parametrize("name", names())
def test_every_data_set_is_read_or_says_what_to_do(tmp_path, name):
    if name == "digits":
        data = load(name, root=tmp_path, download=False)
        assert shape_of(name) == (data.image_shape, data.num_classes)
        return
    with pytest.raises(UsageError, match="is not there: ") as caught:
        load(name, root=tmp_path, download=False)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name, nearest", [("cifar-10", "cifar10"), ("cifar100_16", "cifar100-16"), ("Digits", "digits"), ("fashion", None)]
)
def test_an_unknown_name_suggests_the_nearest(name, nearest):
    with pytest.raises(UsageError) as caught:
        load(name)
    assert f"there is no data set {name!r}" in str(caught.value)
    assert nearest is None or f"did you mean {nearest!r}?" in str(caught.value)


def test_shape_of_agrees_with_the_formats():
    from stompp.data import cifar, fashion

    for layout in (cifar.CIFAR10, cifar.CIFAR100):
        assert shape_of(layout.name) == ((3, 32, 32), len(layout.classes))
        assert shape_of(f"{layout.name}-16") == ((3, 16, 16), len(layout.classes))
    assert shape_of("fashion-mnist") == ((1, 28, 28), len(fashion.FASHION.classes))
    with pytest.raises(UsageError, match="did you mean 'digits'"):
        shape_of("digit")


def test_a_name_near_to_nothing_lists_all():
    with pytest.raises(UsageError, match="choose one of these"):
        load("qqqqqqqq")


@pytest.mark.parametrize("limit", [0, -1, 1438])
def test_limit_train_outside_the_data_is_refused(limit):
    with pytest.raises(UsageError, match=f"limit_train is {limit}"):
        load("digits", limit_train=limit)


def test_limit_train_keeps_the_first():
    whole, part = load("digits"), load("digits", limit_train=100)
    assert torch.equal(part.train.images, whole.train.images[:100])
    assert torch.equal(part.train.labels, whole.train.labels[:100])
    assert len(part.test) == len(whole.test)


@pytest.mark.parametrize("device", ["nonsense", "cuda:77"])
def test_a_device_that_is_not_there_is_refused(device):
    with pytest.raises(UsageError, match="the data cannot go to device") as caught:
        load("digits", device=device)
    assert "\n" not in str(caught.value)


def test_root_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("STOMPP_DATA", str(tmp_path / "here"))
    with pytest.raises(UsageError, match=str(tmp_path / "here")):
        load("cifar10", download=False)
    monkeypatch.delenv("STOMPP_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, match=str(tmp_path / ".cache" / "stompp")):
        load("cifar10", download=False)


def test_the_digits_are_split_evenly():
    data = load("digits")
    assert isinstance(data, Dataset)
    assert (len(data.train), len(data.test), data.classes) == (1437, 360, tuple("0123456789"))
    assert data.test.labels.bincount().tolist() == [36] * 10
    assert (int(data.train.images.min()), int(data.train.images.max())) == (0, 255)
    assert len(data.train.images.unique()) == 17  # the published grey values 0 to 16
    both = torch.cat([data.train.images, data.test.images]).flatten(1)
    assert len(both.unique(dim=0)) == 1797


def test_the_digits_constants_are_those_of_the_training_split():
    data = load("digits")
    x = data.train.images.double() / 255
    assert round(x.mean().item(), 4) == data.mean[0]
    assert round(x.std(correction=0).item(), 4) == data.std[0]


def test_loading_twice_gives_separate_memory():
    one, two = load("digits"), load("digits")
    one.train.images.zero_()
    assert two.train.images.any()


def test_importing_touches_nothing_optional():
    program = (
        "import sys, stompp.data; stompp.data.load('digits'); "
        "print([m for m in ('rich', 'PIL', 'sklearn', 'torchvision', 'tyro', 'requests') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
