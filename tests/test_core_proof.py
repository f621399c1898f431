"""Proof of binarity and the summary of costs."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import stompp
from stompp import Binarize, UsageError
from stompp.core.layers import Sign
from stompp.core.proof import Proof


class Branching(nn.Module):
    """A net whose second binary layer is reached by some inputs only."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.act1, self.one = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)
        self.act2, self.two, self.head = nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2)
        self.use_two = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(self.act1(self.stem(x)))
        return self.head(self.two(self.act2(x)) if self.use_two else x)


def conv_net(config: Binarize | None = None, finished: bool = True) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, padding=1, groups=2, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 16, 8),
        nn.ReLU(),
        nn.Linear(8, 2),
    )
    stompp.prepare(net, torch.zeros(1, 3, 4, 4), config)
    freezer = stompp.Freezer(net, 10)
    for t in range(10 if finished else 0):
        freezer.step(t)
    return net


IMAGES = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(0))


def test_proof_counts_what_it_saw_on_prepared_and_converted_nets():
    expected = Proof(layers=2, weights=6 * 2 * 9 + 96 * 8, inputs=5 * (4 * 16 + 96))
    assert stompp.assert_binary(conv_net(), IMAGES) == expected
    unfinished = conv_net(finished=False)  # the binary view is binary any time; the net as it is is not
    assert stompp.assert_binary(unfinished, IMAGES) == replace(expected, unfrozen=len(stompp.sites(unfinished)))
    assert stompp.assert_binary(stompp.convert(conv_net()), IMAGES) == expected
    bwn = stompp.assert_binary(conv_net(Binarize(activations="clip")), IMAGES)
    assert (bwn.layers, bwn.weights, bwn.inputs) == (2, expected.weights, 0)


def test_proof_leaves_no_trace_on_the_model():
    net = conv_net(finished=False)
    net[1].eval()
    modes, state = [m.training for m in net.modules()], {k: v.clone() for k, v in net.state_dict().items()}
    stompp.assert_binary(net, IMAGES)
    assert [m.training for m in net.modules()] == modes
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in net.modules())
    assert not any(site.binary_view for site in stompp.sites(net))


def test_proof_names_a_weight_that_is_not_binary():
    net = stompp.convert(conv_net())
    net[3].weight.data[2, 1, 0, 0] = 0.5
    with pytest.raises(
        UsageError, match=r"layer '3' is not binary: its weight has 1 of 108 entries .* \(0.5, for one\)"
    ):
        stompp.assert_binary(net, IMAGES)
    net[3].weight.data[2, 1, 0, 0] = float("nan")
    with pytest.raises(UsageError, match=r"layer '3' is not binary: .*nan"):
        stompp.assert_binary(net, IMAGES)
    net[3].weight.data.fill_(0.0)
    with pytest.raises(UsageError, match="108 of 108 entries"):
        stompp.assert_binary(net, IMAGES)


@pytest.mark.parametrize("converted", [True, False])
def test_proof_names_a_layer_whose_input_is_not_binary(converted):
    net = conv_net()
    if converted:
        stompp.convert(net)
        assert isinstance(net[5], Sign)
    net[5] = nn.Hardtanh()
    with pytest.raises(UsageError, match=r"^layer '7' is not binary: its input has \d+ of 480 entries other than ±1"):
        stompp.assert_binary(net, IMAGES)
    net[2] = nn.Identity()
    with pytest.raises(UsageError, match=r"layer '3' is not binary.*; layer '7' is not binary"):
        stompp.assert_binary(net, IMAGES)


def test_proof_names_a_layer_that_was_never_called():
    net = stompp.prepare(Branching(), torch.zeros(1, 4))
    stompp.assert_binary(net, torch.randn(2, 4))
    net.use_two = False
    with pytest.raises(UsageError, match="layer 'two' is not binary: the forward pass never called it"):
        stompp.assert_binary(net, torch.randn(2, 4))


def test_proof_of_a_float_net_is_an_error():
    with pytest.raises(UsageError, match=r"no binary layer; call stompp\.prepare"):
        stompp.assert_binary(nn.Sequential(nn.Linear(2, 2)), torch.zeros(1, 2))


def test_summary_has_the_numbers_computed_by_hand():
    net = conv_net(finished=False)
    table = stompp.summary(net, IMAGES[:1])
    rows = {row.name: row for row in table.layers}
    assert list(rows) == ["0", "3", "7", "9", "(other)"]
    # conv 3 -> 4, 3x3, with bias, 4x4 positions, float
    assert (rows["0"].parameters, rows["0"].bits, rows["0"].macs, rows["0"].binary_macs) == (112, 32, 108 * 16, 0)
    assert rows["0"].size == rows["0"].float_size == 448
    assert rows["0"].frozen is None
    assert rows["0"].output == (4, 4, 4)
    # conv 4 -> 6 in two groups: 6 * 2 * 9 weights, each used at 16 positions
    assert (rows["3"].parameters, rows["3"].bits, rows["3"].macs, rows["3"].binary_macs) == (108, 1, 0, 108 * 16)
    assert (rows["3"].size, rows["3"].float_size, rows["3"].frozen) == (13.5, 432, 0.0)
    # linear 96 -> 8 with bias: 96 bytes of bits and 32 of bias
    assert (rows["7"].parameters, rows["7"].size, rows["7"].float_size) == (776, 96 + 32, 3104)
    assert (rows["7"].macs, rows["7"].binary_macs) == (0, 768)
    assert (rows["9"].parameters, rows["9"].size, rows["9"].macs) == (18, 72, 16)
    # two batch norms: weight and bias, mean and variance, and a counter each
    assert (rows["(other)"].parameters, rows["(other)"].size) == (20, 4 * (20 + 20 + 2))
    assert table.parameters == sum(p.numel() for p in net.parameters()) == 112 + 108 + 776 + 18 + 20
    assert table.size == 448 + 13.5 + 128 + 72 + 168
    assert table.float_size == 448 + 432 + 3104 + 72 + 168
    assert (table.macs, table.binary_macs) == (1728 + 16, 1728 + 768)
    text = str(table)
    assert "BinaryConv2d" in text
    assert "packed 830 B, as float 4.2 kB: 5.1 times smaller" in text


def test_summary_follows_the_training_and_the_conversion():
    net = conv_net(Binarize(activations="relu"), finished=False)
    table = stompp.summary(net, IMAGES[:1])
    assert (table.binary_macs, table.macs) == (0, 1728 + 1728 + 768 + 16)  # real inputs: no xor and popcount
    freezer = stompp.Freezer(net, 10, schedule="linear", refresh=1)
    seen = []
    for t in range(10):
        freezer.step(t)
        seen.append([row.frozen for row in stompp.summary(net, IMAGES[:1]).layers[1:3]])
    assert seen == sorted(seen)
    assert 0 < seen[2][0] < 1
    assert seen[-1] == [1.0, 1.0]
    assert [r.frozen for r in stompp.summary(stompp.convert(net), IMAGES[:1]).layers] == [None, 1.0, 1.0, None, None]
    assert stompp.summary(nn.Sequential(nn.Linear(3, 2)), torch.zeros(1, 3)).binary_macs == 0


def test_summary_counts_a_layer_per_call_and_a_row_per_position():
    layer = nn.Linear(4, 4, bias=False)
    net = nn.Sequential(layer, layer)
    table = stompp.summary(net, torch.zeros(2, 7, 4))
    assert table.macs == 2 * 7 * 16
    assert table.parameters == 16
    assert table.layers[0].output == (7, 4)
    big = stompp.summary(nn.Sequential(nn.Linear(1000, 1000)), torch.zeros(1, 1000))
    assert "4.0 MB" in str(big)
