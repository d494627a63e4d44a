"""Training images that are held out: which ones, what is told of them, and that training does not see them."""

import numpy as np
import pytest
import torch
from tests.helpers.pictures import make_pictures

from outfield.backbone import Classifier, load_classifier
from outfield.classifier import Augmentation, HeldOut, Pixels, Recipe, TrainingCheckpoint, train_classifier
from outfield.classifier.learner import Learner
from outfield.classifier.pixels import split_off
from outfield.errors import InputError

RECIPE = Recipe(epochs=2, batch_size=24, learning_rate=0.05, augmentation=Augmentation(scale=(0.6, 1.0)))
TINY = Classifier("test_resnet", classes=4, size=(16, 16))


def numbered(labels, name="numbered"):
    """Images that say their own place: image i is filled with the byte i."""
    labels = torch.as_tensor(labels)
    images = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 4, 4)
    return Pixels(images.contiguous(memory_format=torch.channels_last), labels, name)


def places(pixels):
    return pixels.images[:, 0, 0, 0].tolist()


@pytest.fixture(scope="module")
def train():
    return Pixels.of(make_pictures(96), (16, 16))


class TestSplit:
    LABELS = [0] * 40 + [1] * 20 + [2] * 5

    @pytest.mark.parametrize(("share", "counts"), [(0.1, [4, 2, 0]), (0.25, [10, 5, 1]), (0.5, [20, 10, 2])])
    def test_each_class_gives_its_share(self, share, counts):
        kept, out = split_off(numbered(self.LABELS), share)
        assert torch.bincount(out.labels, minlength=3).tolist() == counts
        assert sorted(places(kept) + places(out)) == list(range(65))
        for part in (kept, out):
            assert places(part) == sorted(places(part))
            assert part.labels.tolist() == [self.LABELS[place] for place in places(part)]
            assert part.name == "numbered"
            assert part.images.is_contiguous(memory_format=torch.channels_last)

    def test_the_same_images_every_time_and_more_of_them_for_a_larger_share(self):
        state = torch.get_rng_state()
        small, again, large = (places(split_off(numbered(self.LABELS), share)[1]) for share in (0.1, 0.1, 0.4))
        assert small == again
        assert set(small) < set(large)
        assert small != [0, 1, 2, 3, 40, 41]  # not the first of each class
        assert torch.equal(state, torch.get_rng_state())

    @pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, 5, float("nan"), float("inf"), "0.1", True, [0.1]])
    def test_a_share_that_is_none_is_refused(self, share):
        with pytest.raises(InputError, match=r"hold_out is .*(above 0|below 1)"):
            split_off(numbered(self.LABELS), share)

    def test_a_class_keeps_images_to_train_on(self):
        kept, _ = split_off(numbered(self.LABELS), 0.89)
        assert torch.bincount(kept.labels).tolist() == [4, 2, 1]
        with pytest.raises(InputError, match="of the 5 images of class 2 none would be left"):
            split_off(numbered(self.LABELS), 0.91)

    def test_a_share_that_holds_nothing_out_is_refused(self):
        with pytest.raises(InputError, match=r"hold_out is 0\.01; that is less than half an image .* of few"):
            split_off(numbered([0] * 40 + [1] * 20, name="few"), 0.01)
        assert len(split_off(numbered([0] * 40 + [1] * 20), 0.013)[1]) == 1


class TestTraining:
    def test_the_accuracy_is_that_of_the_trained_network_on_the_held_out_images(self, train):
        done = train_classifier(train, None, TINY, RECIPE, seed=3, hold_out=0.25)
        kept, out = split_off(train, 0.25)
        with torch.no_grad():
            right = (done.network((out.images / 255 - 0.5) / 0.5).argmax(1) == out.labels).double().mean()
        assert done.held_out == HeldOut(0.25, 24, pytest.approx(float(right)))
        assert done.curve.test_accuracy == [None, None]
        alone = train_classifier(kept, None, TINY, RECIPE, seed=3)
        assert alone.held_out is None
        for name, value in alone.network.state_dict().items():
            assert torch.equal(value, done.network.state_dict()[name])

    def test_the_training_seed_does_not_choose_them(self, train, monkeypatch):
        seen = []
        look = Learner.accuracy
        monkeypatch.setattr(Learner, "accuracy", lambda self, data: seen.append(data.fingerprint()) or look(self, data))
        for seed in (0, 1):
            train_classifier(train, None, TINY, RECIPE, seed=seed, hold_out=0.25)
        assert len(seen) == 2
        assert len(set(seen)) == 1

    def test_the_file_tells(self, train, tmp_path):
        done = train_classifier(train, None, TINY, RECIPE, hold_out=np.float64(0.25))
        done.save(tmp_path / "c.safetensors", make_pictures(96))
        notes = load_classifier(tmp_path / "c.safetensors")[2]
        assert notes["held_out"] == {"share": 0.25, "images": 24, "accuracy": done.held_out.accuracy}
        assert str(HeldOut(0.1, 5000, 0.9512)) == "held-out accuracy 95.12 % on 5,000 training images"

    def test_a_finished_checkpoint_gives_it_again_and_another_share_is_refused(self, train, tmp_path):
        checkpoint = TrainingCheckpoint(tmp_path / "c.safetensors")
        first, again = (
            train_classifier(train, None, TINY, RECIPE, hold_out=0.25, checkpoint=checkpoint) for _ in range(2)
        )
        assert first.held_out == again.held_out
        for other in (None, 0.5):
            with pytest.raises(InputError, match="not the same: images, hold_out"):
                train_classifier(train, None, TINY, RECIPE, hold_out=other, checkpoint=checkpoint)
