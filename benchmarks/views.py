"""What views cost at extraction: the same images with one, two and six views, side by side.

python benchmarks/views.py IMAGES.npz --backbone cifar10-0.safetensors
"""

from __future__ import annotations

import argparse
import time

import outfield as of


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("images", help="a folder of images, or .npz")
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    backbone, images = of.Backbone.open(options.backbone, options.device), of.open_images(options.images)
    seconds: dict[str, list[float]] = {"one": [], "flip": [], "six": []}
    for views in seconds:
        backbone.extract(images, views=views, labels=False)  # the first pass chooses algorithms
    for _ in range(options.repeats):
        for views, times in seconds.items():
            begin = time.perf_counter()
            backbone.extract(images, views=views, labels=False)
            times.append(time.perf_counter() - begin)
    best = {views: min(times) for views, times in seconds.items()}
    for views, took in best.items():
        print(f"{views}: {len(images) / took:,.0f} images a second, {took / best['one']:.2f} × one view")


if __name__ == "__main__":
    main()
