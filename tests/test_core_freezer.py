"""Sites over time: windows, phases, states saved and loaded, and what optimizers do to frozen entries."""

import copy
import io
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import stompp
from stompp import UsageError
from stompp.core.freezer import Freezer
from stompp.core.orders import ORDERS, layerwise, windows
from stompp.core.policies import POLICIES, resolve_policy
from stompp.core.schedules import SCHEDULES, resolve_schedule

FEW = settings(max_examples=40, deadline=None)


def chain(sites: int, width: int = 3) -> nn.Module:
    """A prepared MLP with an odd number of sites: activations and weights in turn."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(width, width)]
    for _ in range((sites + 1) // 2):
        layers += [nn.ReLU(), nn.Linear(width, width)]
    net = stompp.prepare(nn.Sequential(*layers), torch.zeros(2, width))
    assert len(stompp.sites(net)) == sites
    return net


def train_step(net: nn.Module, optimizer: torch.optim.Optimizer, t: int, set_to_none: bool = True) -> torch.Tensor:
    generator = torch.Generator().manual_seed(t)
    width = net[0].in_features
    optimizer.zero_grad(set_to_none=set_to_none)
    loss = nn.functional.mse_loss(net(torch.randn(8, width, generator=generator)), torch.ones(8, width))
    loss.backward()
    optimizer.step()
    return loss.detach()


def save_and_load(state: object) -> object:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def optimizers(net: nn.Module) -> dict[str, torch.optim.Optimizer]:
    return {
        "sgd": torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
        "adamw": torch.optim.AdamW(net.parameters(), 0.05, weight_decay=0.5),
    }


# Windows and schedules.
@given(sites=st.integers(1, 60), extra=st.integers(0, 500), order=st.sampled_from(["layerwise", "reverse"]))
@FEW
def test_windows_tile_all_steps_exactly(sites, extra, order):
    total = sites + extra
    found = windows(order, sites, total)
    owners = [i for t in range(total) for i, (start, end) in enumerate(found) if start <= t < end]
    in_turn = range(sites) if order == "layerwise" else reversed(range(sites))
    assert len(owners) == total  # every step belongs to exactly one site
    assert [i for i, _ in itertools.groupby(owners)] == list(in_turn)
    lengths = [end - start for start, end in found]
    assert max(lengths) - min(lengths) <= 1
    assert windows("global", sites, total) == [(0, total)] * sites


@given(
    sites=st.integers(1, 20),
    epochs=st.integers(1, 90),
    steps_per_epoch=st.integers(1, 9),
    rest=st.integers(0, 8),
    order=st.sampled_from(sorted(ORDERS)),
)
@FEW
def test_epoch_windows_are_equal_whole_epochs_and_the_rest_comes_last(sites, epochs, steps_per_epoch, rest, order):
    total = epochs * steps_per_epoch + rest % steps_per_epoch
    arguments = {"granularity": "epoch", "steps_per_epoch": steps_per_epoch}
    if order == "global":
        assert windows(order, sites, total, **arguments) == [(0, epochs * steps_per_epoch)] * sites
    elif epochs < sites:
        with pytest.raises(UsageError, match=f"{epochs} epochs are too few.* at least {sites} epochs"):
            windows(order, sites, total, **arguments)
    else:
        each = epochs // sites * steps_per_epoch
        found = sorted(windows(order, sites, total, **arguments))
        assert found == [(i * each, (i + 1) * each) for i in range(sites)]


@given(u=st.floats(0, 1), v=st.floats(0, 1), name=st.sampled_from(sorted(SCHEDULES)))
def test_schedules_rise_from_zero_to_one(u, v, name):
    schedule = SCHEDULES[name]
    low, high = sorted((u, v))
    assert 0 <= schedule(low) <= schedule(high) + 1e-15 <= 1 + 2e-15
    assert schedule(0.0) == 0
    assert schedule(1.0) == 1
    assert resolve_schedule(name) is schedule


@given(
    pairs=st.integers(0, 3),
    extra=st.integers(0, 25),
    order=st.sampled_from(sorted(ORDERS)),
    schedule=st.sampled_from(sorted(SCHEDULES)),
    steps_per_epoch=st.sampled_from([None, 1, 2]),
)
@FEW
def test_every_site_goes_open_moving_frozen_with_rising_p(pairs, extra, order, schedule, steps_per_epoch):
    sites = 2 * pairs + 1
    total = sites * (steps_per_epoch or 1) + extra
    net = chain(sites)
    granularity = "step" if steps_per_epoch is None else "epoch"
    freezer = Freezer(
        net, total, order=order, schedule=schedule, refresh=1, granularity=granularity, steps_per_epoch=steps_per_epoch
    )
    ranks = {"open": 0, "moving": 1, "frozen": 2}
    last_rank, last_p = dict.fromkeys(freezer.sites, 0), dict.fromkeys(freezer.sites, 0.0)
    for t in range(total):
        freezer.step(t)
        moving = dict(freezer.moving)
        for site, (start, end) in zip(freezer.sites, freezer.windows):
            assert site.phase == ("open" if t < start else "moving" if t < end - 1 else "frozen")
            assert ranks[site.phase] >= last_rank[site]
            last_rank[site] = ranks[site.phase]
            assert (site.mask is not None) == (site in moving) == (site.phase == "moving")
            if site in moving:
                assert 0 < moving[site] < 1
                assert moving[site] >= last_p[site]
                last_p[site] = moving[site]
    assert all(site.phase == "frozen" for site in freezer.sites)
    freezer.step(total)  # training on is fine: everything stays frozen
    if pairs:
        assert stompp.assert_binary(net, torch.randn(2, 3)).layers == pairs


@given(
    at=st.integers(-1, 29),
    order=st.sampled_from(sorted(ORDERS)),
    hold=st.booleans(),
    policy=st.sampled_from(sorted(POLICIES)),
)
@FEW
def test_saved_state_at_any_step_continues_bit_for_bit(at, order, hold, policy):
    total = 30

    def make() -> tuple[nn.Module, torch.optim.Optimizer, Freezer]:
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        activations = "stompp" if policy == "stochastic" else "clip"
        stompp.prepare(net, torch.zeros(1, 4), stompp.Binarize(activations=activations))
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        return net, optimizer, Freezer(net, total, order=order, policy=policy, refresh=2, hold_frozen=hold, seed=9)

    net, optimizer, freezer = make()
    saved, losses, masks = None, [], []
    for t in range(-1, total):
        if t >= 0:
            freezer.step(t)
            losses.append(train_step(net, optimizer, t))
            masks.append([None if s.mask is None else s.mask.clone() for s in freezer.sites])
        if t == at:
            saved = save_and_load([net.state_dict(), optimizer.state_dict(), freezer.state_dict()])
            assert saved[2]["t"] == at

    other, optimizer, freezer = make()
    other.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    freezer.load_state_dict(saved[2])
    for t in range(at + 1, total):
        freezer.step(t)
        assert torch.equal(train_step(other, optimizer, t), losses[t])
        for site, mask in zip(freezer.sites, masks[t]):
            assert (site.mask is None and mask is None) or torch.equal(site.mask, mask)
    for ours, theirs in zip(other.parameters(), net.parameters()):
        assert torch.equal(ours, theirs)


def test_state_is_a_copy_and_its_masks_are_not_shared_with_another_freezer():
    net = chain(3)
    freezer = Freezer(net, 30, order="global", refresh=1, schedule="linear")
    freezer.step(0)
    state = freezer.state_dict()
    before = copy.deepcopy(state)
    other = Freezer(chain(3), 30, order="global", refresh=1, schedule="linear")
    other.load_state_dict(state)
    for t in range(1, 20):
        freezer.step(t)
        other.step(t)
    assert all(torch.equal(state["masks"][k], before["masks"][k]) for k in before["masks"])
    assert len(before["masks"]) == 3


def test_masks_depend_on_seed_site_and_step_alone():
    def masks(seed: int, disturb: bool = False) -> list[torch.Tensor]:
        freezer = Freezer(chain(5, width=12), 30, order="global", schedule="linear", refresh=3, seed=seed)
        for t in range(12):
            if disturb:
                torch.manual_seed(t), torch.rand(7)
            freezer.step(t)
        return [site.mask.flatten() for site in freezer.sites]

    first = masks(1)
    assert all(torch.equal(a, b) for a, b in zip(first, masks(1, disturb=True)))
    assert not all(torch.equal(a, b) for a, b in zip(first, masks(2)))
    assert not torch.equal(first[1], first[3])  # two sites of one size


# Misuse.
@given(t=st.integers(-3, 40), at=st.integers(-1, 9))
def test_jumping_in_t_is_an_error_that_says_what_to_call(t, at):
    freezer = Freezer(chain(3), 20)
    for done in range(at + 1):
        freezer.step(done)
    if t in (at, at + 1) and t >= 0:
        freezer.step(t)
        return
    phases = [site.phase for site in freezer.sites]
    with pytest.raises(UsageError, match=rf"Call step\({at + 1}\), or load_state_dict"):
        freezer.step(t)
    assert [site.phase for site in freezer.sites] == phases
    freezer.step(at + 1)


def test_same_step_again_changes_nothing():
    freezer = Freezer(chain(3), 30, order="global", schedule="linear", refresh=2)
    for t in range(10):
        freezer.step(t)
    before = [site.mask.clone() for site in freezer.sites]
    freezer.step(9)
    assert all(torch.equal(site.mask, mask) for site, mask in zip(freezer.sites, before))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"order": "outwards"}, "unknown order 'outwards'; known are layerwise, global, reverse"),
        ({"schedule": "quartic"}, "unknown schedule 'quartic'; known are cosine"),
        ({"schedule": lambda u: 2 * u}, "a schedule rises from 0 to 1"),
        ({"schedule": lambda u: u + (0.3 if 0.4 < u < 0.5 else 0)}, "a schedule never falls"),
        ({"policy": "random"}, "unknown policy 'random'; known are stochastic, deterministic"),
        ({"policy": "deterministic"}, "'1' is an activation: use policy='stochastic'"),
        ({"refresh": 0}, "refresh must be a whole number of at least 1, not 0"),
        ({"refresh": 2.5}, "refresh must be a whole number of at least 1, not 2.5"),
        ({"total_steps": 2}, "2 steps are too few for 3 sites.*at least 3"),
        ({"total_steps": 0}, "total_steps must be at least 1, not 0"),
        ({"total_steps": 12.5}, "total_steps must be a whole number"),
        ({"granularity": "batch"}, "granularity must be 'step' or 'epoch', not 'batch'"),
        ({"granularity": "epoch"}, "needs steps_per_epoch"),
        ({"granularity": "epoch", "steps_per_epoch": 12}, "1 epochs are too few for 3 sites.*at least 3 epochs"),
        ({"granularity": "epoch", "steps_per_epoch": 30, "order": "global"}, "20 steps are less than one epoch of 30"),
        ({"order": lambda n, t: [(0, t)]}, "the order gave 1 windows for 3 sites"),
        ({"order": lambda n, t: [(0, t + 1)] * n}, r"site 0 the window \[0, 21\), which is not within \[0, 20\)"),
        ({"order": lambda n, t: [(3, 3)] * n}, r"the window \[3, 3\)"),
    ],
)
def test_freezer_misuse_says_what_to_write(arguments, message):
    net = chain(3)
    with pytest.raises(UsageError, match=message):
        Freezer(net, **{"total_steps": 20, **arguments})


def test_hold_frozen_with_a_surrogate_is_an_error():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    stompp.prepare(net, torch.zeros(1, 2), stompp.Binarize(frozen_grad="ste"))
    with pytest.raises(UsageError, match="surrogate gradient: use frozen_grad='zero' or hold_frozen=False"):
        Freezer(net, 9, hold_frozen=True)


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"order": "global"},
        {"refresh": 7},
        {"schedule": "linear"},
        {"total_steps": 21},
        {"hold_frozen": True},
    ],
)
def test_state_of_other_settings_is_refused_by_name(other):
    state = Freezer(chain(3), 20).state_dict()
    (name,) = other
    with pytest.raises(UsageError, match=rf"the saved Freezer has {name}=.*, this one {name}="):
        Freezer(chain(3), **{"total_steps": 20, **other}).load_state_dict(state)


def test_state_of_another_net_is_refused():
    state = Freezer(chain(41), 100).state_dict()
    with pytest.raises(UsageError, match=r"sites=\['1', .*\.\.\., this one sites=\['1', '2.weight', '3'\]"):
        Freezer(chain(3), 100).load_state_dict(state)


def test_freezer_reopens_sites_that_an_earlier_one_froze():
    net = chain(3)
    for _ in range(2):
        freezer = Freezer(net, 6)
        assert [site.phase for site in freezer.sites] == ["open"] * 3
        for t in range(6):
            freezer.step(t)
        assert [site.phase for site in freezer.sites] == ["frozen"] * 3


def test_freezer_of_a_net_without_scheduled_sites_does_nothing():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    stompp.prepare(net, torch.zeros(1, 2), stompp.Binarize(weights="ste", activations="ste"))
    freezer = Freezer(net, 3, policy="deterministic")
    for t in range(5):
        freezer.step(t)
    assert freezer.sites == []
    assert [site.phase for site in stompp.sites(net, scheduled=False)] == ["frozen"] * 3


def test_order_schedule_and_policy_take_functions():
    def two_at_a_time(sites: int, total: int) -> list[tuple[int, int]]:
        return [layerwise((sites + 1) // 2, total)[i // 2] for i in range(sites)]

    def all_but_the_first(mask, p, key, values):
        mask.fill_(True)
        mask.view(-1)[0] = False
        return mask

    freezer = Freezer(chain(3), 8, order=two_at_a_time, schedule=lambda u: u**5, policy=all_but_the_first)
    freezer.step(0)
    assert [site.phase for site in freezer.sites] == ["moving", "moving", "open"]
    assert freezer.moving[0][1] == pytest.approx(0.25**5)
    assert (~freezer.sites[1].mask).sum() == 1
    assert "two_at_a_time" in freezer.state_dict()["settings"]["order"]


def test_deterministic_policy_takes_the_nearest_and_of_equals_the_first():
    policy = resolve_policy("deterministic", 100)
    mask = torch.zeros(2, 4, dtype=torch.bool)
    values = torch.tensor([[0.5, 1.5, -0.5, -1.5], [3.0, -1.0, 0.9, 0.0]])
    for p, expected in [(0.0, []), (0.13, [5]), (0.25, [5, 6]), (0.5, [0, 1, 5, 6]), (0.99, [0, 1, 2, 3, 5, 6, 7])]:
        chosen = policy(mask, p, None, values)
        assert chosen.flatten().nonzero().flatten().tolist() == expected, p
        assert chosen.shape == mask.shape


# Optimizers and frozen entries.
@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("order", ORDERS)
def test_parameters_of_frozen_sites_have_no_gradient_and_stay_bit_identical(name, set_to_none, order):
    net = chain(5, width=6)
    optimizer = optimizers(net)[name]
    freezer = Freezer(net, 30, order=order, refresh=2)
    weights = {f"{n}.weight": m.weight for n, m in net.named_modules() if hasattr(m, "site")}
    at_freeze, moved = {}, set()
    for t in range(45):
        freezer.step(t)
        for site in freezer.sites:
            if site.kind == "weight" and site.phase == "frozen":
                at_freeze.setdefault(site.name, weights[site.name].detach().clone())
        before = {k: v.detach().clone() for k, v in weights.items()}
        train_step(net, optimizer, t, set_to_none)
        for key, value in weights.items():
            if key in at_freeze:
                assert value.grad is None, (t, key)
                assert torch.equal(value, at_freeze[key]), (t, key)
            elif not torch.equal(value, before[key]):
                moved.add(key)
    assert at_freeze.keys() == weights.keys()
    assert order == "reverse" or moved == weights.keys()  # they did train until then


def momentum_trap(hold_frozen: bool) -> tuple[list[float], list[float], list[float]]:
    """One weight is pushed down fast, then frozen while its site moves; return latents, values, values in eval."""
    net = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1, bias=False), nn.Linear(1, 1))
    stompp.prepare(net, torch.zeros(1, 1), stompp.Binarize(activations="relu"))
    layer = net[1]
    layer.weight.data.fill_(0.35)

    def freeze_from_step_three(mask, p, key, values):
        return torch.full_like(mask, key.step >= 3)

    freezer = Freezer(net, 20, policy=freeze_from_step_three, hold_frozen=hold_frozen)
    optimizer = torch.optim.SGD([layer.weight], 0.1, momentum=0.9)
    latents, values, evaluated = [], [], []
    for t in range(12):
        freezer.step(t)
        latents.append(layer.weight.item())
        values.append(layer.effective_weight().item())
        optimizer.zero_grad()
        (0.5 * layer.effective_weight().sum() + 0.0 * net(torch.ones(1, 1)).sum()).backward()
        if t >= 3:
            assert layer.weight.grad.item() == 0
        optimizer.step()
        layer.eval()
        evaluated.append(layer.effective_weight().item())  # between two steps, as an evaluation would see it
        with stompp.fully_binary(net):
            if t >= 3:
                assert layer.effective_weight().item() == evaluated[-1]
    return latents, values, evaluated


def test_momentum_moves_frozen_entries_and_flips_their_sign_as_written():
    latents, values, _ = momentum_trap(hold_frozen=False)
    assert latents[3] > 0
    assert values[3] == 1
    assert latents[4] < latents[3]
    assert values[-1] == -1  # a frozen entry that flipped: zero gradient is not constancy


def test_held_entries_are_exactly_constant_also_between_steps():
    latents, values, evaluated = momentum_trap(hold_frozen=True)
    assert len(set(latents[3:])) == 1
    assert set(values[3:]) == {1.0}
    assert set(evaluated[3:]) == {1.0}


@pytest.mark.parametrize("hold_frozen", [False, True])
def test_hold_frozen_decides_whether_frozen_entries_drift_in_training(hold_frozen):
    net = chain(3, width=12)
    optimizer = torch.optim.SGD(net.parameters(), 0.3, momentum=0.9)
    freezer = Freezer(net, 60, order="global", schedule="linear", refresh=10, hold_frozen=hold_frozen)
    weight, site = net[2].weight, net[2].site
    drifted, flipped, was, mask = 0, 0, None, None
    for t in range(59):
        freezer.step(t)
        if mask is not None:
            both = mask & site.mask
            drifted += int((weight.detach() != was)[both].sum())
            flipped += int(((weight.detach() >= 0) != (was >= 0))[both].sum())
        was, mask = weight.detach().clone(), site.mask.clone()
        train_step(net, optimizer, t)
        if hold_frozen:  # the same in an evaluation between two steps
            held = torch.where(was >= 0, 1.0, -1.0)[mask]
            assert torch.equal(net[2].effective_weight().detach()[mask], held)
    assert (drifted > 100) == (not hold_frozen)
    assert (flipped > 0) == (not hold_frozen)


def test_binary_view_of_held_sites_uses_open_entries_as_they_are_now():
    net = chain(3)
    freezer = Freezer(net, 30, order="global", schedule="linear", refresh=1, hold_frozen=True)
    for t in range(15):
        freezer.step(t)
    layer = net[2]
    mask = layer.site.mask
    assert 0 < layer.site.fraction < 1
    signs = torch.where(layer.weight.detach() >= 0, 1.0, -1.0)
    layer.weight.data.neg_()  # as an optimizer step might
    with stompp.fully_binary(net):
        seen = layer.effective_weight()
    assert torch.equal(seen[mask], signs[mask])
    assert torch.equal(seen[~mask], -signs[~mask])
    stompp.convert(net, early=True)
    assert torch.equal(net[2].weight.detach(), seen)


def test_held_values_survive_a_resume_between_optimizer_step_and_freezer_step():
    def make() -> tuple[nn.Module, Freezer]:
        net = chain(3)
        return net, Freezer(net, 30, order="global", schedule="linear", refresh=1, hold_frozen=True)

    net, freezer = make()
    for t in range(15):
        freezer.step(t)
    net[2].weight.data.neg_()
    other, resumed = make()
    state = save_and_load([net.state_dict(), freezer.state_dict()])
    other.load_state_dict(state[0])
    resumed.load_state_dict(state[1])
    assert torch.equal(other[2].effective_weight(), net[2].effective_weight())
    freezer.step(15), resumed.step(15)
    assert torch.equal(other[2].weight, net[2].weight)


def test_masks_live_where_the_model_lives_and_move_with_it():
    net = chain(3)
    freezer = Freezer(net, 30, order="global", schedule="linear", refresh=2)
    for t in range(3):
        freezer.step(t)
    masks = [site.mask.clone() for site in freezer.sites]
    net.double()
    assert all(torch.equal(site.mask, mask) for site, mask in zip(freezer.sites, masks))
    net.to("meta")
    assert all(site.mask.is_meta for site in freezer.sites)


def test_state_of_something_else_is_refused() -> None:
    net = stompp.prepare(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), torch.zeros(1, 2))
    with pytest.raises(UsageError, match="no state of a Freezer"):
        stompp.Freezer(net, 10).load_state_dict({"a": 1})
