"""Scenes of coloured squares, and an object detector that finds them by their brightness: it knows red ones and green ones."""

import numpy as np
import torch

COLOURS = ("red", "green", "blue")
SIDE, APART = 12, 16


def scene(seed, *colours):
    """An image with a square of each colour from left to right, their boxes and their colours."""
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 30, (40, APART * max(len(colours), 1), 3)).astype(np.uint8)
    boxes = []
    for place, colour in enumerate(colours):
        left, top = APART * place + 2, int(rng.integers(0, 40 - SIDE))
        bright = rng.integers(150, 250) + rng.integers(-9, 10, (SIDE, SIDE))
        image[top : top + SIDE, left : left + SIDE, COLOURS.index(colour)] = bright.clip(0, 255)
        boxes.append([left, top, left + SIDE, top + SIDE])
    return image, boxes, list(colours)


def scenes(count, colours=COLOURS[:2], seed=0):
    """Annotated images of three squares."""
    draw = np.random.default_rng(seed)
    return [scene(seed + 1000 * place, *draw.choice(colours, 3)) for place in range(count)]


def squares(images):
    """Boxes of bright squares: red where there is more red than green, with the mean and the spread of each colour."""
    return [_found(one) for one in images]


def _found(image):
    boxes, rows = [], []
    for left in range(2, image.shape[2], APART):
        strip = image[:, :, left : left + SIDE]
        bright = (strip.amax(0).mean(1) > 0.4).nonzero().flatten().tolist()
        if bright:
            part = strip[:, bright[0] : bright[-1] + 1]
            boxes.append([left, bright[0], left + SIDE, bright[-1] + 1])
            rows.append(torch.cat([part.mean((1, 2)), part.std((1, 2))]))
    features = torch.stack(rows) if rows else torch.zeros(0, 6)
    labels = (features[:, 1] > features[:, 0]).long()
    return {"boxes": boxes, "labels": labels, "scores": torch.full((len(boxes),), 0.9), "features": features}
