"""What benchmarks/recipes.py reads from its options and makes of its trainings."""

import json

import numpy as np
import pytest
from benchmarks.recipes import main, read_recipe, split_at_commas, summary
from tests.helpers.pictures import make_pictures

from outfield.classifier import Recipe
from outfield.errors import InputError

TINY = "epochs:1,batch_size:24,augmentation.scale:[0.6,1.0]"


def trial(name, accuracy, seed=0, **settings):
    held_out = {"share": 0.1, "images": 400, "accuracy": accuracy}
    what = {"recipe": name, "settings": settings, "images": "cifar10", "architecture": "a", "seed": seed}
    return {**what, "held_out": held_out, "train_accuracy": 0.5, "seconds": 10 + seed}


def test_recipes_are_read_from_text():
    assert read_recipe("plain=") == ("plain", Recipe())
    name, recipe = read_recipe("other=schedule:cosine, augmentation.scale:[0.4,1.0],weight_decay:1e-3")
    assert name == "other"
    assert (recipe.schedule, recipe.augmentation.scale, recipe.weight_decay) == ("cosine", (0.4, 1.0), 1e-3)
    assert split_at_commas('a:[1,[2,3]],b:{"c":1,"d":2},e:4') == ["a:[1,[2,3]]", 'b:{"c":1,"d":2}', "e:4"]
    assert split_at_commas("") == []
    for text, said in (("plain", "NAME=KEY:VALUE"), ("=epochs:3", "NAME=KEY:VALUE"), ("a=epochs", "must be KEY:VALUE"),
                       ("a=epoch:3", "no setting epoch"), ("a=epochs:3,", "must be KEY:VALUE")):  # fmt: skip
        with pytest.raises(InputError, match=said):
            read_recipe(text)


def test_the_best_recipe_comes_first_and_seeds_are_averaged():
    trials = [trial("a", 0.7, lr=1), trial("b", 0.8, lr=2), trial("b", 0.82, 1, lr=2), trial("b", 0.82, 1, lr=2)]
    (best, seeds, accuracy, error, fitted, seconds), second = summary(trials)
    assert (best, seeds, fitted) == ("b", 2, 0.5)
    assert (accuracy, error, seconds) == pytest.approx((0.81, (0.81 * 0.19 / 400) ** 0.5, 10.5))
    assert second[:3] == ("a", 1, 0.7)
    assert len(summary([trial("a", 0.7, lr=1), trial("a", 0.6, lr=2)])) == 2  # one name, two recipes


def test_trainings_are_kept_and_not_repeated(tmp_path, capsys):
    images = make_pictures(96)
    np.savez(tmp_path / "cifar10_train.npz", images=images.images, labels=images.labels)
    out = tmp_path / "r.json"
    given = ["cifar10", "--data", str(tmp_path), "--architecture", "test_resnet", "--device", "cpu", "--out", str(out),
             "--hold-out", "0.25", "--recipe", f"steps={TINY}", "--recipe", f"cosine={TINY},schedule:cosine"]  # fmt: skip
    main(given)
    first = json.loads(out.read_text())["trials"]
    assert [one["recipe"] for one in first] == ["steps", "cosine"]
    assert [one["held_out"]["images"] for one in first] == [24, 24]
    assert "| steps | 1 |" in capsys.readouterr().out
    main([*given, "--seeds", "2"])
    assert "seed 0" not in capsys.readouterr().out
    again = json.loads(out.read_text())["trials"]
    assert again[:2] == first
    assert [one["seed"] for one in again] == [0, 0, 1, 1]
