"""Why the order matters: halfway through training, where does a gradient still arrive?

In layerwise order the frozen part is a prefix, and every open layer gets its gradient. In reverse order the frozen part
is a suffix of sign functions: nothing behind it learns any more. That is the blockade.
"""

import torch
from torch.nn import functional as F

import stompp

images, labels = torch.randn(16, 3, 16, 16), torch.arange(16) % 10

for order in ("layerwise", "reverse"):
    torch.manual_seed(0)
    net = stompp.models.cifar_resnet8(num_classes=10)
    stompp.prepare(net, example=images[:1])
    freezer = stompp.Freezer(net, total_steps=100, order=order)
    for t in range(50):
        freezer.step(t)
    with stompp.GradientFlow(net) as flow:
        F.cross_entropy(net(images), labels).backward()
    frozen = [site.name for site in freezer.sites if site.phase == "frozen"]
    print(f"\n{order}: {len(frozen)} of {len(freezer.sites)} sites are frozen, from {frozen[0]} to {frozen[-1]}")
    for row in flow.layers():
        bar = "█" * round(40 * row.signal_share)
        print(f"  {row.name:22s} {row.signal_norm:9.2e}  {bar or 'no gradient'}")
