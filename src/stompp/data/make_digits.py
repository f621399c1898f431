"""Makes digits.npz, once, from scikit-learn's copy of the UCI digits (`pip install scikit-learn`, not a dependency).

    python src/stompp/data/make_digits.py

Grey values stay as they are published (0 to 16). The split is fixed: of every class the 36 images whose index hashes
lowest under splitmix64 form the test split (360 images), the other 1,437 the training split, in the published order.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

TEST_PER_CLASS = 36
_MASK = (1 << 64) - 1


def main() -> None:
    from sklearn.datasets import load_digits  # type: ignore[import-not-found]

    digits = load_digits()
    images, labels = digits.images.astype(np.uint8), digits.target.astype(np.uint8)
    test = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        members = [int(i) for i in np.flatnonzero(labels == label)]
        test[sorted(members, key=splitmix64)[:TEST_PER_CLASS]] = True
    np.savez_compressed(
        Path(__file__).with_name("digits.npz"),
        train_images=images[~test],
        train_labels=labels[~test],
        test_images=images[test],
        test_labels=labels[test],
    )


def splitmix64(index: int) -> int:
    z = (index + 1) * 0x9E3779B97F4A7C15 & _MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


if __name__ == "__main__":
    main()
