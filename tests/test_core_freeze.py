"""The forward and backward map of a site, its phases, and what autograd sees of it."""

import gc
import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError
from torch.nn import functional as F

import stompp
from stompp.core.freeze import SURROGATES, Site, SurrogateSign, clip, fully_binary, sign, sites, surrogate_slope
from stompp.core.layers import BinaryActivation

KINDS = ("weight", "activation")


def mixed_site(kind: str, shape: tuple[int, ...], surrogate: str | None = None) -> Site:
    site = Site("s", kind, shape, surrogate=surrogate)
    site.begin()
    site.mask = torch.rand(shape, generator=torch.Generator().manual_seed(3)) < 0.5
    assert 0 < site.fraction < 1
    return site


def away_from_kinks(*shape: int) -> Tensor:
    """Random values in (-2, 2), none near -1, 0 or 1, where sign and clip have no derivative."""
    values = torch.rand(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 4 - 2
    near = (values - values.round()).abs() < 0.05
    return torch.where(near, values + 0.1, values)


def graph_nodes(output: Tensor) -> list[object]:
    """Every node of the autograd graph behind a tensor."""
    found, waiting = {}, [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and id(node) not in found:
            found[id(node)] = node
            waiting += [following for following, _ in node.next_functions]
    return list(found.values())


# What the true derivative of the forward map of a conv net is made of. A surrogate has no business among these.
TRUE_DERIVATIVES = {
    "AccumulateGrad", "AddBackward0", "AddmmBackward0", "ClampBackward1", "ConvolutionBackward0", "MeanBackward1",
    "NativeBatchNormBackward0", "ReshapeAliasBackward0", "SumBackward0", "TBackward0", "ViewBackward0",
    "WhereBackward0", "ThnnConv2DBackward0", "MkldnnConvolutionBackward0", "SqueezeBackward1", "UnsafeViewBackward0",
}  # fmt: skip


def surrogates_in(output: Tensor) -> list[str]:
    """Names of nodes that are not plain torch derivatives: python-made ones, and unknown ones."""
    nodes = {type(node).__name__: node for node in graph_nodes(output)}
    nodes.pop("ClampOnCPUBackward", None)  # clamp's own derivative, as a test below proves
    custom = {name for name, node in nodes.items() if isinstance(node, torch.autograd.function.BackwardCFunction)}
    return sorted(custom | (set(nodes) - TRUE_DERIVATIVES))


def moving_net(config: stompp.Binarize | None = None, order: str = "global") -> tuple[nn.Module, stompp.Freezer]:
    torch.manual_seed(0)
    net = stompp.models.build("cifar_resnet8", width=4)
    stompp.prepare(net, torch.zeros(2, 3, 8, 8), config)
    freezer = stompp.Freezer(net, 40, order=order, schedule="linear", refresh=2)
    return net, freezer


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_clip_has_the_value_and_the_gradient_of_clamp(dtype):
    torch.manual_seed(0)
    eps, inf = torch.finfo(dtype).eps, float("inf")
    edges = [0.0, -0.0, 1.0, 1 - eps / 2, 1 + eps, 1 + 2 * eps, 1e-30, 300.0, inf]
    u = torch.cat(
        [torch.randn(1_000).to(dtype) * 2, torch.tensor([s * e for e in edges for s in (1, -1)], dtype=dtype)]
    )
    grad = torch.randn(len(u)).to(dtype)
    grad[:3] = torch.tensor([inf, -inf, float("nan")])
    ours, plain = u.clone().requires_grad_(), u.clone().requires_grad_()
    value, expected = clip(ours), plain.clamp(-1.0, 1.0)
    value.backward(grad)
    expected.backward(grad)
    assert "ClampOnCPU" in type(value.grad_fn).__name__  # or this test compares clamp with itself
    assert torch.equal(value, expected)
    assert torch.equal(ours.grad.nan_to_num(7), plain.grad.nan_to_num(7))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # by torch.func.jvp itself
def test_clip_works_under_every_transform_that_clamp_does():
    u = torch.tensor([-3.0, -1.0, 0.25, 1.0, 2.0], dtype=torch.float64)
    slope = torch.tensor([0.0, 1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    assert torch.equal(torch.func.grad(lambda v: clip(v).sum())(u), slope)
    assert torch.equal(torch.func.vmap(torch.func.grad(clip))(u), slope)
    assert torch.equal(torch.func.jvp(clip, (u,), (torch.ones_like(u),))[1], slope)
    inside = u[2:3].clone().requires_grad_()
    assert torch.autograd.gradcheck(clip, (inside,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(clip, (inside,))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_sign_has_two_values_and_is_plus_one_at_both_zeros(dtype):
    u = torch.tensor([-3.0, -1e-7, -0.0, 0.0, 1e-7, 5.0], dtype=dtype)
    assert sign(u).tolist() == [-1, 1 if u[1] == 0 else -1, 1, 1, 1, 1]
    assert sign(u).dtype == dtype
    assert not sign(u.requires_grad_()).requires_grad


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("surrogate", [None, *SURROGATES])
def test_site_forward_and_backward_are_the_two_equations_entry_by_entry(kind, surrogate):
    site = mixed_site(kind, (5, 4), surrogate)
    u = (away_from_kinks(5, 4) if kind == "weight" else away_from_kinks(3, 5, 4)).requires_grad_()
    out = site(u)
    signal = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    out.backward(signal)
    mask = site.mask.expand_as(u)
    for index in itertools.product(*map(range, u.shape)):
        value, frozen = u[index].item(), bool(mask[index])
        inside = abs(value) <= 1
        if frozen:
            expected = 1.0 if value >= 0 else -1.0
            slope = {None: 0.0, "identity": 1.0, "clip": float(inside), "approxsign": 2 - 2 * abs(value)}[surrogate]
            slope = slope if inside or surrogate == "identity" else 0.0
        else:
            expected = value if kind == "weight" else max(-1.0, min(1.0, value))
            slope = 1.0 if kind == "weight" else float(inside)
        assert out[index].item() == expected
        assert u.grad[index].item() == pytest.approx(signal[index].item() * slope, abs=1e-15)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("phase", ["open", "moving"])
def test_gradcheck_passes_on_stompp_sites(kind, phase):
    site = mixed_site(kind, (4, 3))
    if phase == "open":
        site.reset()
    u = (away_from_kinks(4, 3) if kind == "weight" else away_from_kinks(2, 4, 3)).requires_grad_()
    assert torch.autograd.gradcheck(site, (u,))


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_gradcheck_fails_on_surrogates(surrogate):
    u = away_from_kinks(4, 3).requires_grad_()
    with pytest.raises(GradcheckError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(mixed_site("weight", (4, 3), surrogate), (u,))


def test_gradcheck_passes_on_a_net_of_mixed_sites():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)
    ).double()
    stompp.prepare(net, torch.zeros(1, 1, 6, 6).double())
    freezer = stompp.Freezer(net, 10, order="global", schedule="linear", refresh=2)
    for t in range(4):
        freezer.step(t)
    assert {site.phase for site in freezer.sites} == {"moving"}
    assert all(0 < site.fraction < 1 for site in freezer.sites)
    x = torch.randn(2, 1, 6, 6, dtype=torch.float64, requires_grad=True)
    values = list(net.parameters())
    names = [name for name, _ in net.named_parameters()]

    def run(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(net, dict(zip(names, values)), (x,))

    assert torch.autograd.gradcheck(run, (x, *values))


def test_graph_of_a_stompp_net_has_no_surrogate_and_that_of_others_has():
    images = torch.randn(2, 3, 8, 8)
    net, freezer = moving_net()
    for t in range(40):
        freezer.step(t)
        if t in (0, 20, 39):
            assert surrogates_in(net(images).sum()) == [], t
    for config in (
        stompp.Binarize(weights="ste", activations="ste"),
        stompp.Binarize(weights="ste"),
        stompp.Binarize(activations="ste", surrogate="clip"),
        stompp.Binarize(frozen_grad="ste"),
    ):
        net, freezer = moving_net(config)
        for t in range(20):
            freezer.step(t)
        assert surrogates_in(net(images).sum()) == ["SurrogateSignBackward"], config


def test_frozen_activation_cuts_the_graph():
    net, freezer = moving_net(order="reverse")
    images = torch.randn(2, 3, 8, 8, requires_grad=True)
    sizes = []
    for t in range(40):
        freezer.step(t)
        sizes.append(len(graph_nodes(net(images).sum())))
    assert sizes[0] > 60
    assert sizes[-1] < 12  # only the last linear layer is left
    assert sizes == sorted(sizes, reverse=True) or sizes[0] > sizes[20] > sizes[-1]
    last = [site for site in sites(net) if site.kind == "activation"][-1]
    assert last.phase == "frozen"
    assert not last(torch.randn(2, *last.shape, requires_grad=True)).requires_grad
    net(images).sum().backward()
    assert images.grad is None
    assert [name for name, p in net.named_parameters() if p.grad is not None] == ["fc.weight", "fc.bias"]


def test_mask_is_shared_by_the_batch_and_has_the_shape_of_a_sample():
    site = mixed_site("activation", (2, 3, 3))
    out = site(torch.full((5, 2, 3, 3), 0.25))
    assert (out == torch.where(site.mask, 1.0, 0.25)).all()


def test_mask_exists_only_while_moving():
    net, freezer = moving_net(order="layerwise")
    most = 0
    for t in range(40):
        freezer.step(t)
        masks = [site for site in freezer.sites if site.mask is not None]
        assert all(site.phase == "moving" for site in masks)
        most = max(most, len(masks))
        assert {name for name, _ in net.named_buffers() if name.endswith(("mask", "held"))} <= {
            f"{name}.mask" for name, m in net.named_modules() if m in masks
        }
    assert most == 1
    gc.collect()
    assert [site.fraction for site in freezer.sites] == [1.0] * len(freezer.sites)


def test_site_refuses_a_sample_of_another_shape_while_moving():
    site = mixed_site("activation", (2, 4, 4))
    with pytest.raises(ValueError, match=r"'s' got a sample of shape \(2, 5, 5\).*\(2, 4, 4\).*example"):
        site(torch.zeros(1, 2, 5, 5))
    with pytest.raises(ValueError, match="shape"):  # would broadcast silently
        site(torch.zeros(1, 1, 4, 4))
    site.freeze()
    assert site(torch.zeros(1, 2, 5, 5)).shape == (1, 2, 5, 5)


FORMATS = {
    "nchw": (torch.contiguous_format, (8, 5, 6)),
    "nhwc": (torch.channels_last, (8, 5, 6)),
    "ndhwc": (torch.channels_last_3d, (8, 3, 5, 6)),
}


@pytest.mark.parametrize("phase", ["open", "moving", "frozen"])
@pytest.mark.parametrize("surrogate", [None, "clip"])
@pytest.mark.parametrize("layout", FORMATS)
def test_memory_format_survives_sites(layout, surrogate, phase):
    memory, shape = FORMATS[layout]
    x = torch.randn(4, *shape).contiguous(memory_format=memory).requires_grad_()
    for kind, own in (("activation", shape), ("weight", (4, *shape))):
        site = mixed_site(kind, own, surrogate)
        if phase != "moving":
            site.reset() if phase == "open" else site.freeze()
        out = site(x)
        assert out.is_contiguous(memory_format=memory)
        assert torch.equal(out, site(x.detach().contiguous()))
        if out.requires_grad and out is not x:
            (grad,) = torch.autograd.grad(out.sum(), x)
            assert grad.shape == x.shape


def test_binary_view_is_sign_in_every_phase_and_ends_with_its_context():
    net, freezer = moving_net()
    images = torch.randn(2, 3, 8, 8)
    for t in range(10):
        freezer.step(t)
    before = net(images)
    with fully_binary(net) as view:
        assert view is net
        for site in freezer.sites:
            value = site(torch.randn(1, *site.shape) if site.kind == "activation" else torch.randn(site.shape))
            assert set(value.unique().tolist()) == {-1.0, 1.0}
        with fully_binary(net):
            pass
        assert all(site.binary_view for site in freezer.sites)  # the inner context does not end the outer one
    net.eval(), net.train()
    assert not any(site.binary_view for site in freezer.sites)
    with pytest.raises(RuntimeError, match="stop"), fully_binary(net):
        raise RuntimeError("stop")
    assert torch.equal(net(images), before)


def test_surrogate_slopes_have_the_published_shape():
    u = torch.linspace(-2, 2, 401, dtype=torch.float64)
    inside = u.abs() <= 1
    assert (surrogate_slope(u, "identity") == 1).all()
    assert torch.equal(surrogate_slope(u, "clip"), inside.double())
    assert torch.allclose(surrogate_slope(u, "approxsign"), torch.where(inside, 2 - 2 * u.abs(), 0.0), atol=1e-12)
    # Bi-Real's slope belongs to a curve from -1 to 1: its area is 2.
    assert torch.trapezoid(surrogate_slope(u, "approxsign"), u).item() == pytest.approx(2, abs=1e-3)
    for surrogate in SURROGATES:
        v = u.clone().requires_grad_()
        SurrogateSign.apply(v, surrogate).backward(3 * torch.ones_like(v))
        assert torch.equal(v.grad, 3 * surrogate_slope(u, surrogate))


@pytest.mark.parametrize("config", [stompp.Binarize(), stompp.Binarize("ste", "ste", surrogate="approxsign")])
def test_autocast_in_bf16_trains(config):
    net, freezer = moving_net(config)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    dtypes = set()
    for module in net.modules():
        if isinstance(module, BinaryActivation):
            module.register_forward_hook(lambda m, args, out: dtypes.add((args[0].dtype, out.dtype)))
    for t in range(40):
        freezer.step(t)
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(net(torch.randn(4, 3, 8, 8)), torch.tensor([0, 1, 2, 3]))
        optimizer.zero_grad()
        loss.backward()
        assert loss.isfinite()
        optimizer.step()
    assert all(given == out for given, out in dtypes)
    assert (torch.bfloat16, torch.bfloat16) in dtypes
    assert stompp.assert_binary(net, torch.randn(1, 3, 8, 8)).layers == 6


def test_site_describes_itself():
    assert "'s', weight, moving, surrogate clip" in repr(mixed_site("weight", (9,), "clip"))
    assert "zero gradient" in repr(Site("x", "activation", (1,)))
    assert clip(torch.tensor([2.0])).item() == 1.0
