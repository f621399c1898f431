"""Gradient flow, sign flips, and OvSW against a slow twin."""

import copy

import pytest
import torch
from torch import nn

import stompp
from stompp import Binarize, GradientFlow, OvSW, SignFlips, UsageError
from stompp.core.diagnose import LayerFlow

STE = Binarize(weights="ste", activations="ste")


def deep(inner: int = 4, config: Binarize | None = None) -> nn.Module:
    torch.manual_seed(0)
    body = [m for _ in range(inner) for m in (nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())]
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), *body, nn.Flatten(), nn.Linear(96, 2)
    )
    return stompp.prepare(net, torch.zeros(2, 1, 4, 4), config)


def flow_at(net: nn.Module, freezer: stompp.Freezer, steps: range) -> list[LayerFlow]:
    for t in steps:
        freezer.step(t)
    for p in net.parameters():
        p.grad = None
    with GradientFlow(net) as flow:
        net(torch.randn(8, 1, 4, 4)).square().mean().backward()
    return flow.layers()


def test_flow_can_be_read_after_the_gradients_are_gone() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with stompp.GradientFlow(net) as flow:
        net(torch.ones(2, 3)).sum().backward()
        within = flow.layers()
    after = flow.layers()
    net.zero_grad(set_to_none=True)
    assert within == after == flow.layers()
    assert all(row.weight_norm > 0 for row in after[1:])


def test_flow_refuses_a_compiled_model() -> None:
    with pytest.raises(UsageError, match="give GradientFlow the model itself"):
        stompp.GradientFlow(torch.compile(nn.Linear(2, 2), backend="eager"))


def test_gradient_flow_shows_the_blockade_exactly_behind_a_frozen_activation():
    net = deep()
    freezer = stompp.Freezer(net, 90, order="reverse")
    rows = flow_at(net, freezer, range(25))  # the last activation and the last weight are frozen, the next one moves
    frozen = [site.name for site in freezer.sites if site.phase == "frozen"]
    assert frozen == ["12.weight", "14"]
    assert [row.name for row in rows] == ["0", "3", "6", "9", "12", "16"]
    for row in rows[:-1]:  # all behind the frozen activation: nothing at all
        assert (row.signal_norm, row.signal_share, row.weight_norm, row.weight_share) == (0, 0, 0, 0), row.name
    assert rows[-1].signal_norm > 0
    assert rows[-1].weight_share > 0


def test_gradient_flow_in_layerwise_order_reaches_all_that_still_trains():
    net = deep()
    freezer = stompp.Freezer(net, 90, order="layerwise")
    rows = flow_at(net, freezer, range(50))  # sites 0..4 frozen: two convs and three activations
    phases = {site.name: site.phase for site in freezer.sites}
    assert [name for name, phase in phases.items() if phase == "frozen"] == ["2", "3.weight", "5", "6.weight", "8"]
    flows = {row.name: row for row in rows}
    for name in ("9", "12", "16"):
        assert flows[name].signal_share > 0.1, name
        assert flows[name].weight_norm > 0, name
    for name in ("0", "3", "6"):
        assert flows[name].signal_norm == 0, name
    assert 0 < flows["9"].weight_share <= 1


def test_gradient_flow_numbers_are_those_of_autograd():
    net = deep()
    freezer = stompp.Freezer(net, 9, order="global", schedule="linear", refresh=2)
    for t in range(5):
        freezer.step(t)
    outputs = []

    def keep(module: nn.Module, args: object, output: torch.Tensor) -> None:
        output.retain_grad()
        outputs.append(output)

    handle = net[9].register_forward_hook(keep)
    with GradientFlow(net) as flow:
        net(torch.randn(8, 1, 4, 4)).square().mean().backward()
    handle.remove()
    row = next(row for row in flow.layers() if row.name == "9")
    grad, weight = outputs[0].grad, net[9].weight.grad
    assert row.signal_norm == pytest.approx(grad.norm().item())
    assert row.signal_share == pytest.approx((grad != 0).float().mean().item())
    assert row.weight_norm == pytest.approx(weight.norm().item())
    assert row.weight_share == pytest.approx((weight != 0).float().mean().item())
    assert row.weight_share <= 1 - net[9].site.fraction  # frozen entries get none


def test_gradient_flow_removes_its_hooks_also_after_an_error_and_forgets_the_step_before():
    net = deep()
    flow = GradientFlow(net)
    with flow:
        net(torch.randn(2, 1, 4, 4)).sum().backward()
    assert len(flow.layers()) == 6
    with pytest.raises(RuntimeError, match="x"), flow:
        raise RuntimeError("x")
    assert flow.layers() == []
    assert not any(m._forward_hooks for m in net.modules())
    with flow, torch.no_grad():
        net(torch.randn(2, 1, 4, 4))
    for p in net.parameters():
        p.grad = None
    assert {row.signal_norm for row in flow.layers()} == {0.0}
    assert {row.weight_norm for row in flow.layers()} == {0.0}


def test_sign_flips_counts_entries_since_the_last_look():
    net = deep(2)
    flips = SignFlips(net)
    assert flips.look() == {"3.weight": 0.0, "6.weight": 0.0}
    net[3].weight.data[0].neg_()
    net[6].weight.data.mul_(3.0)
    assert flips.look() == {"3.weight": pytest.approx(1 / 6), "6.weight": 0.0}
    assert flips.look() == {"3.weight": 0.0, "6.weight": 0.0}
    net[6].weight.data.fill_(0.0)
    flips.look()
    net[6].weight.data.fill_(-0.0)  # sign(-0) = sign(0) = +1
    assert flips.look()["6.weight"] == 0.0
    assert list(SignFlips(deep(2, STE)).look()) == ["3.weight", "6.weight"]


def test_sign_flips_continue_from_a_saved_state():
    net = deep(2)
    flips = SignFlips(net)
    state = copy.deepcopy(flips.state_dict())
    net[3].weight.data.neg_()
    flips.look()
    flips.load_state_dict(state)
    assert flips.look()["3.weight"] == 1.0


# OvSW.
class SlowOvSW:
    """OvSW in plain loops, filter by filter and weight by weight."""

    def __init__(self, weights: dict[str, torch.Tensor], delta: float, momentum: float, threshold: float, decay: float):
        self.delta, self.momentum, self.threshold, self.decay = delta, momentum, threshold, decay
        self.signs = {k: [v >= 0 for v in w.flatten().tolist()] for k, w in weights.items()}
        self.flips = {k: [1.0] * w.numel() for k, w in weights.items()}

    def correct(self, name: str, weight: torch.Tensor, grad: torch.Tensor, frozen: torch.Tensor) -> torch.Tensor:
        per_filter = weight[0].numel()
        w, g, out = weight.flatten().tolist(), grad.flatten().tolist(), grad.flatten().tolist()
        still = frozen.flatten().tolist()
        for i, value in enumerate(w):
            flipped = (value >= 0) != self.signs[name][i]
            self.flips[name][i] = self.momentum * self.flips[name][i] + (1 - self.momentum) * flipped
            self.signs[name][i] = value >= 0
        for f in range(len(weight)):
            entries = [i for i in range(f * per_filter, (f + 1) * per_filter) if not still[i]]
            w_norm = sum(w[i] ** 2 for i in entries) ** 0.5
            g_norm = sum(g[i] ** 2 for i in entries) ** 0.5
            scale = 1.0
            if w_norm > 0 and 0 < g_norm / w_norm < self.delta:
                scale = self.delta * w_norm / g_norm
            for i in entries:
                out[i] = g[i] * scale
                if self.flips[name][i] < self.threshold:
                    out[i] += self.decay * w[i]
        return torch.tensor(out, dtype=grad.dtype).reshape(grad.shape)


@pytest.mark.parametrize("rule", ["ste", "stompp global", "stompp layerwise", "scaffold"])
def test_ovsw_equals_its_slow_twin_over_a_run(rule):
    config = STE if rule == "ste" else Binarize(frozen_grad="ste" if rule == "scaffold" else "zero")
    net = deep(2, config).double()
    total = 30
    order = "layerwise" if "layerwise" in rule else "global"
    freezer = stompp.Freezer(net, total, order=order, schedule="linear", refresh=2)
    arguments = {"delta": 0.5, "momentum": 0.8, "threshold": 0.3, "decay": 0.01}
    ovsw = OvSW(net, **arguments)
    weights = {"3.weight": net[3].weight, "6.weight": net[6].weight}
    slow = SlowOvSW(weights, **arguments)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    changed = silent = 0
    for t in range(total):
        freezer.step(t)
        optimizer.zero_grad()
        net(torch.randn(4, 1, 4, 4, dtype=torch.float64)).square().mean().backward()
        expected = {}
        for name, weight in weights.items():
            site = net[int(name[0])].site
            closed = site.mask if site.mask is not None and rule != "scaffold" else torch.zeros(weight.shape)
            before = torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
            expected[name] = slow.correct(name, weight.detach(), before, closed.bool())
            changed += int((expected[name] != before).sum()) if weight.grad is not None else 0
            silent += sum(f < 0.3 for f in slow.flips[name])
            if rule.startswith("stompp") and site.phase == "frozen":
                assert weight.grad is None
        ovsw.apply()
        for name, weight in weights.items():
            if weight.grad is None:
                continue
            assert torch.allclose(weight.grad, expected[name], rtol=1e-10, atol=1e-14), (t, name)
            site = net[int(name[0])].site
            if rule.startswith("stompp") and site.mask is not None:
                assert (weight.grad[site.mask] == 0).all()
        optimizer.step()
    assert changed > 100
    assert silent > 100
    for name in weights:
        assert ovsw.state_dict()["flips"][name].flatten().tolist() == pytest.approx(slow.flips[name])


def test_ovsw_state_continues_exactly():
    def run(stop: int | None) -> tuple[nn.Module, OvSW]:
        net = deep(2, STE)
        ovsw = OvSW(net, threshold=0.5, momentum=0.7, decay=0.1)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for t in range(12):
            if t == stop:
                state = copy.deepcopy(ovsw.state_dict())
                ovsw = OvSW(net, threshold=0.5, momentum=0.7, decay=0.1)
                ovsw.load_state_dict(state)
            optimizer.zero_grad()
            net(torch.randn(4, 1, 4, 4, generator=torch.Generator().manual_seed(t))).square().mean().backward()
            ovsw.apply()
            optimizer.step()
        return net, ovsw

    (a, one), (b, two) = run(None), run(6)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters()))
    assert torch.equal(one.state_dict()["flips"]["3.weight"], two.state_dict()["flips"]["3.weight"])
    saved = one.state_dict()["flips"]["3.weight"]
    one.apply()
    assert not torch.equal(saved, one.state_dict()["flips"]["3.weight"])  # a saved state is a copy


def test_ovsw_without_binary_weights_is_an_error():
    with pytest.raises(UsageError, match="this model has none: prepare it with binary weights"):
        OvSW(deep(2, Binarize(weights="float")))
