"""Prepared models and the rest of torch: compile, export, copies, pickles, state dicts, memory formats, dtypes."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import stompp
from stompp import Binarize
from stompp.core.freeze import sign
from stompp.core.layers import Sign

CONFIGS = {
    "stompp": Binarize(),
    "ste": Binarize(weights="ste", activations="ste", surrogate="clip"),
    "bwn": Binarize(activations="clip"),
}


class SharedReluNet(nn.Module):
    """Small, and with all that compilers stumble over: one activation in several places, a norm, a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv1, self.conv2 = (nn.Conv2d(i, 4, 3, padding=1) for i in (1, 4, 4))
        self.bn, self.relu, self.head = nn.BatchNorm2d(4), nn.ReLU(), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.stem(x))
        x = self.relu(self.bn(self.conv1(x)) + x)
        return self.head(self.relu(self.conv2(x)).mean((2, 3)))


def prepared(config: str = "stompp", seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return stompp.prepare(SharedReluNet(), torch.zeros(2, 1, 6, 6), CONFIGS[config])


def batch(t: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(t)
    return torch.randn(8, 1, 6, 6, generator=generator), torch.randint(3, (8,), generator=generator)


def train(net, freezer: stompp.Freezer, steps: range, model=None, channels_last: bool = False) -> list[float]:
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    losses = []
    for t in steps:
        freezer.step(t)
        x, y = batch(t)
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        loss = F.cross_entropy((net if model is None else model)(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def freezer_of(net: nn.Module, **arguments: object) -> stompp.Freezer:
    return stompp.Freezer(net, 24, **{"refresh": 2, "schedule": "linear", **arguments})


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield torch._dynamo.utils.counters
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:.*Function.* should not be instantiated:DeprecationWarning")  # by dynamo itself
@pytest.mark.parametrize("order", ["layerwise", "global"])
@pytest.mark.parametrize("config", CONFIGS)
def test_compiled_forward_trains_with_the_losses_of_eager_while_phases_change(config, order, fresh_compiler):
    """Dynamo with AOT autograd: graph capture and guards as in the default compiler, without generating code."""
    net = prepared(config)
    eager = train(net, freezer_of(net, order=order), range(24))
    net = prepared(config)
    with torch._dynamo.config.patch(recompile_limit=64):
        compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
        losses = train(net, freezer_of(net, order=order), range(24), compiled)
    assert losses == pytest.approx(eager, rel=1e-4)
    # One graph per combination of phases, as docs/compile.md says: a mask that changes costs no graph.
    sites = len(stompp.sites(net))
    combinations = 1 if not sites else 2 if order == "global" else 2 * sites
    assert fresh_compiler["stats"]["unique_graphs"] == combinations


def test_sign_has_two_values_where_it_is_compiled_and_exported(fresh_compiler):
    """Compilers get sign in other words, which must agree at zero too."""
    x = torch.tensor([-2.0, -1e-45, -0.0, 0.0, 1e-45, 3.0])
    wanted = torch.tensor([-1.0, -1.0, 1.0, 1.0, 1.0, 1.0])
    assert torch.equal(torch.compile(sign, backend="eager", fullgraph=True)(x), wanted)
    assert torch.equal(torch.export.export(Sign(), (x,)).module()(x), wanted)
    assert torch.equal(sign(x), wanted)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on importing its compiler
def test_default_compiler_trains_with_the_losses_of_eager(fresh_compiler):
    net = prepared()
    eager = train(net, freezer_of(net), range(24))
    net = prepared()
    with torch._dynamo.config.patch(recompile_limit=64):
        losses = train(net, freezer_of(net), range(24), torch.compile(net))
    assert losses == pytest.approx(eager, rel=1e-3)


@pytest.mark.parametrize("config", CONFIGS)
def test_converted_model_exports_with_equal_outputs(config):
    net = prepared(config)
    train(net, freezer_of(net), range(24))
    stompp.convert(net.eval())
    x, _ = batch(99)
    program = torch.export.export(net, (x,))
    assert torch.equal(program.module()(x), net(x))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    assert torch.equal(torch.export.load(file).module()(x), net(x))


def test_deepcopy_has_sites_of_its_own():
    net = prepared()
    freezer = freezer_of(net, order="global")
    train(net, freezer, range(10))
    twin = copy.deepcopy(net)
    assert not {id(s) for s in stompp.sites(net)} & {id(s) for s in stompp.sites(twin)}
    for ours, theirs in zip(stompp.sites(net), stompp.sites(twin)):
        assert (ours.name, ours.phase) == (theirs.name, theirs.phase)
        assert torch.equal(ours.mask, theirs.mask)
        assert ours.mask.data_ptr() != theirs.mask.data_ptr()
    resumed = freezer_of(twin, order="global")
    resumed.load_state_dict(freezer.state_dict())
    before = [site.mask.clone() for site in freezer.sites]
    rest = train(twin, resumed, range(10, 24))
    assert all(torch.equal(site.mask, mask) for site, mask in zip(freezer.sites, before))
    assert train(net, freezer, range(10, 24)) == rest  # both without the momentum they had
    both = copy.deepcopy((net, freezer))
    assert {id(s) for s in both[1].sites} == {id(s) for s in stompp.sites(both[0])}


@pytest.mark.parametrize("config", CONFIGS)
def test_pickle_keeps_phases_and_masks(config):
    net = prepared(config)
    freezer = freezer_of(net)
    train(net, freezer, range(10))
    twin = pickle.loads(pickle.dumps(net))
    x, _ = batch(50)
    assert torch.equal(twin(x), net(x))
    with stompp.fully_binary(net), stompp.fully_binary(twin):
        assert torch.equal(twin(x), net(x))


@pytest.mark.parametrize("config", CONFIGS)
def test_state_dict_is_that_of_the_float_model_in_every_phase(config):
    plain = SharedReluNet()
    keys = list(plain.state_dict())
    net = prepared(config)
    freezer = freezer_of(net, order="global", **({"hold_frozen": True} if config == "bwn" else {}))
    for t in range(24):
        freezer.step(t)
        if t in (0, 10, 23):
            assert list(net.state_dict()) == keys
    state = {k: v.clone() for k, v in net.state_dict().items()}
    plain.load_state_dict(state)
    fresh = prepared(config, seed=1)
    fresh.load_state_dict(state)
    assert all(torch.equal(v, state[k]) for k, v in fresh.state_dict().items())
    stompp.convert(net)
    assert list(net.state_dict()) == keys
    plain.load_state_dict(net.state_dict())
    assert set(plain.conv1.weight.unique().tolist()) <= {-1.0, 1.0}


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("order", ["layerwise", "global"])
def test_channels_last_trains_alike_and_keeps_its_format(config, order):
    net = prepared(config)
    expected = train(net, freezer_of(net, order=order), range(24))
    net = prepared(config).to(memory_format=torch.channels_last)
    formats = set()
    for site in stompp.sites(net, scheduled=False):
        if site.kind == "activation":
            site.register_forward_hook(
                lambda site, a, out: formats.add((site.phase, out.is_contiguous(memory_format=torch.channels_last)))
            )
    assert train(net, freezer_of(net, order=order), range(24), channels_last=True) == pytest.approx(expected, rel=1e-3)
    if config == "stompp":
        assert formats >= {("moving", True), ("frozen", True)}
    assert all(kept for _, kept in formats)


def test_memory_format_may_change_while_sites_move():
    def run(change: bool) -> list[torch.Tensor]:
        net = prepared("bwn")
        freezer = freezer_of(net, order="global")
        for t in range(12):
            if change and t == 5:
                net.to(memory_format=torch.channels_last)
            freezer.step(t)
        return [site.mask.contiguous() for site in freezer.sites]

    assert all(torch.equal(a, b) for a, b in zip(run(False), run(True)))


def test_to_dtype_moves_held_values_and_leaves_masks():
    net = prepared("bwn")
    freezer = freezer_of(net, order="global", hold_frozen=True)
    for t in range(10):
        freezer.step(t)
    net.double()
    site = freezer.sites[0]
    assert (site.mask.dtype, site.held.dtype) == (torch.bool, torch.float64)
    x, _ = batch(0)
    assert net(x.double()).dtype == torch.float64
    train(net.float(), freezer, range(10, 24))
    assert stompp.assert_binary(net, x).layers == 2


def test_functional_call_and_no_grad_see_the_same_values():
    net = prepared().eval()
    freezer = freezer_of(net, order="global")
    for t in range(10):
        freezer.step(t)
    x, _ = batch(0)
    with torch.no_grad():
        quiet = net(x)
    assert torch.equal(quiet, net(x).detach())
    with torch.inference_mode():
        assert torch.equal(net(x), quiet)
    doubled = {name: 2 * p.detach() for name, p in net.named_parameters() if name.startswith("head")}
    assert torch.allclose(torch.func.functional_call(net, doubled, (x,)), 2 * quiet, atol=1e-6)


def test_names_of_the_package_are_lazy_and_complete():
    for name in stompp.__all__:
        assert getattr(stompp, name) is not None
    assert set(dir(stompp)) == set(stompp.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        stompp.nothing  # noqa: B018
