"""A network of your own becomes binary in ten lines: a small conv net on the bundled digits, in about ten seconds."""

import torch
from torch import nn
from torch.nn import functional as F

import stompp
from stompp.data import Augment, Batches, load

EPOCHS = 12

torch.manual_seed(0)
data = load("digits")
batches = Batches(data.train, 64, data.mean, data.std, augment=Augment(crop_pad=1), seed=0)
test_images, test_labels = next(
    Batches(data.test, len(data.test), data.mean, data.std, shuffle=False, drop_last=False).epoch(0)
)

# Any nn.Module will do. Activations are modules, so that each can become a site; the first and last layer stay float.
net = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(64), nn.ReLU(),
    nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
    nn.Flatten(), nn.Linear(64 * 4 * 4, 10),
)  # fmt: skip

stompp.prepare(net, example=test_images[:2])
freezer = stompp.Freezer(net, total_steps=EPOCHS * len(batches))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)


def accuracy() -> float:
    net.eval()
    with torch.no_grad():
        right = (net(test_images).argmax(1) == test_labels).float().mean()
    net.train()
    return 100 * right.item()


t = 0
for epoch in range(EPOCHS):
    for images, labels in batches.epoch(epoch):
        freezer.step(t)
        F.cross_entropy(net(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        t += 1
    current = accuracy()
    with stompp.fully_binary(net):
        binary = accuracy()
    phases = " ".join(f"{site.name}:{site.phase}" for site in freezer.sites)
    print(f"epoch {epoch + 1:2d}  test {current:5.1f} %  all ±1 {binary:5.1f} %  {phases}")

print(stompp.assert_binary(net, test_images))
print(stompp.summary(net, test_images[:1]))
stompp.convert(net)
print(f"converted: {accuracy():.1f} %")
