"""Guards of an object detector: verdicts on each box, whatever the detector gives."""

import copy
import json

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import save, save_file
from tests.helpers.boxes import scene, scenes, squares
from tests.helpers.program import outfield

import outfield as of
from outfield.guard import BoxPlan, describe_guard, write_verdicts


@pytest.fixture(scope="module")
def guard():
    return of.Guard.build(of.Boxes(squares, ["red", "green"]), scenes(120), device="cpu")


class TestVerdicts:
    def test_each_box_has_its_own(self, guard):
        image, corners, _ = scene(5, "green", "blue", "red")
        found = guard(image)
        assert isinstance(found, of.ImageVerdict)
        assert found.is_ood
        assert [one.is_ood for one in found.boxes] == [False, True, False]
        assert [one.class_name for one in found.boxes] == ["green", "red", "red"]
        assert [[one.left, one.top, one.right, one.bottom] for one in found.boxes] == corners
        assert [one.confidence for one in found.boxes] == pytest.approx([0.9] * 3)
        assert found.boxes[1].p_value < 0.05
        assert found.boxes[1].triggered_by in guard.members

    def test_an_image_without_a_box_has_an_empty_list(self, guard):
        found = guard([scene(1)[0], scene(2, "red")[0]])
        assert [len(one.boxes) for one in found] == [0, 1]
        assert not found[0].is_ood
        assert found[0].error is None
        assert found.table()["score"] == [None, found[1].boxes[0].score]

    def test_p_values_of_new_boxes_are_valid(self, guard):
        p_values = guard([image for image, _, _ in scenes(150, seed=9)]).boxes.p_values
        assert len(p_values) == 450
        for level in (0.05, 0.1, 0.3):
            assert (p_values <= level).mean() < level + 0.08

    def test_files_that_cannot_be_read_are_said(self, guard, tmp_path):
        Image.fromarray(scene(1, "red", "blue")[0]).save(tmp_path / "a.png")
        (tmp_path / "b.png").write_bytes(b"no image")
        found = guard(tmp_path, on_error="skip")
        assert [one.error is None for one in found] == [True, False]
        assert found[0].boxes[0].file == str(tmp_path / "a.png")
        with pytest.raises(of.FileFormatError, match=r"b\.png"):
            guard(tmp_path)

    def test_open_files_and_iterators_are_read_once(self, guard, tmp_path):
        image = scene(1, "red", "blue")[0]
        Image.fromarray(image).save(tmp_path / "a.png")
        with open(tmp_path / "a.png", "rb") as opened:
            assert guard(opened).boxes[1].score == guard(image).boxes[1].score
        assert [len(one.boxes) for one in guard(one for one in [image, image[:, :16]])] == [2, 1]

    def test_tables_have_a_row_of_each_box(self, guard, tmp_path):
        found = guard([scene(1, "red", "blue")[0], scene(2)[0]])
        write_verdicts(tmp_path / "a.csv", found)
        table = pd.read_csv(tmp_path / "a.csv")
        assert table["is_ood"].tolist() == [False, True, False]
        assert table["right"].tolist()[:2] == [14, 30]
        assert np.isnan(table["score"][2])
        write_verdicts(tmp_path / "a.json", found)
        said = json.loads((tmp_path / "a.json").read_text())
        assert [len(one["boxes"]) for one in said] == [2, 0]
        assert said[0]["boxes"][1]["left"] == 18

    def test_discoveries_are_of_boxes(self, guard):
        found = guard([image for image, _, _ in [*scenes(5), *scenes(5, ("blue",))]])
        assert found.boxes.discoveries(0.1).tolist() == [False] * 15 + [True] * 15
        with pytest.raises(of.InputError, match=r"verdicts\.boxes"):
            found.discoveries(0.1)


def detector_of(**given):
    """A detector that gives the same for every image."""
    one = {"boxes": [[1.0, 1.0, 5.0, 5.0]], "labels": [0], "scores": [0.9], "features": [[1.0, 2.0]], **given}
    return lambda images: [one for _ in images]


class TestWhatADetectorGives:
    def found(self, **given):
        settings = {name: given.pop(name) for name in ("score", "most") if name in given}
        return of.Boxes(detector_of(**given), **settings).find(torch.rand(3, 20, 30))

    def test_boxes_are_cut_at_the_edge_and_empty_ones_dropped(self):
        corners = [
            [-5, -5, 10, 10],
            [20, 10, 99, 99],
            [40, 5, 60, 9],
            [5, 5, 5, 9],
            [9, 9, 3, 3],
            [0, 0, float("nan"), 5],
        ]
        found = self.found(boxes=corners, labels=[0] * 6, scores=[0.5] * 6, features=torch.eye(6))
        assert found.boxes.tolist() == [[0, 0, 10, 10], [20, 10, 30, 20]]
        assert found.rows.features.tolist() == torch.eye(6)[:2].tolist()

    def test_of_thousands_the_surest_are_kept_in_order(self):
        scores = torch.rand(5000, generator=torch.Generator().manual_seed(0))
        many = {"boxes": torch.tensor([[1.0, 1, 5, 5]]).repeat(5000, 1), "labels": torch.zeros(5000)}
        found = self.found(**many, scores=scores, features=scores[:, None], most=40, score=0.1)
        assert torch.equal(found.confidences, scores.sort(descending=True).values[:40])
        assert torch.equal(found.rows.features[:, 0], found.confidences)
        assert len(self.found(**many, scores=scores, features=scores[:, None], most=5000, score=0.9).classes) < 600

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"features": [[1.0], [2.0]]}, r"features.*\(2, 1\)"),
            ({"boxes": [[1.0, 2.0]]}, r"n boxes are \(n, 4\)"),
            ({"boxes": None}, "what is no numbers"),
            ({"labels": ["red"]}, "what is no numbers"),
            ({"scores": torch.rand(3, 2)}, r"n boxes are \(n, 4\)"),
        ],
    )
    def test_what_does_not_fit_is_said(self, given, says):
        with pytest.raises(of.InputError, match=says):
            self.found(**given)

    def test_a_detector_that_is_none_is_said(self):
        image = torch.rand(3, 9, 9)
        with pytest.raises(of.InputError, match="must give boxes, labels, scores, features"):
            of.Boxes(lambda images: [{"boxes": []}]).find(image)
        for given in (None, {}, [], [{}, {}]):
            with pytest.raises(of.InputError, match="for a list of one image"):
                of.Boxes(lambda images, given=given: given).find(image)
        for label in (7, -1):
            with pytest.raises(of.InputError, match=f"label {label}"):
                of.Boxes(detector_of(labels=[label]), ["a", "b"]).find(image)
        with pytest.raises(of.InputError, match="pools no features"):
            of.Boxes(3)  # type: ignore[arg-type]


class TestBuilding:
    def test_boxes_of_an_image_stay_together(self, guard):
        counts = guard.provenance
        assert sum(counts[name] for name in ("train", "choose", "calibrate")) == 360
        assert all(counts[name] % 3 == 0 for name in ("train", "choose", "calibrate"))

    def test_boxes_that_match_nothing_do_not_count(self):
        by = np.array([[3, 0, 3, 0], [3, 0, 3, 0], [9, 0, 9, 0]])
        moved = [(image, boxes + by, ["red"] * 3) for image, boxes, _ in scenes(60, ("red",))]
        held_out = [(image, boxes, [0] * 3) for image, boxes, _ in scenes(40, ("red",), seed=3)]
        made = of.Guard.build(of.Boxes(squares, ["red", "green"]), moved, held_out, detector="KNN", device="cpu")
        assert made.provenance["train"] == 120
        assert made.provenance["calibrate"] == 120

    def test_what_cannot_be_is_said(self):
        boxes = of.Boxes(squares, ["red", "green"])
        with pytest.raises(of.TooFewSamplesError, match="held out"):
            of.Guard.build(boxes, scenes(5), device="cpu")
        with pytest.raises(of.TooFewSamplesError, match="order of its labels"):
            of.Guard.build(boxes, [(image, corners, ["car"] * 3) for image, corners, _ in scenes(3)], device="cpu")
        with pytest.raises(of.InputError, match="names="):
            of.Guard.build(of.Boxes(squares), scenes(3), device="cpu")
        for corners in ([0, 0, 1], [[0, 0, 1]], [["a"] * 4]):
            with pytest.raises(of.InputError, match=r"they must be numbers \(n, 4\)"):
                of.Guard.build(boxes, [(scene(1, "red")[0], corners, ["red"])], device="cpu")
        with pytest.raises(of.InputError, match="views"):
            of.Guard.build(boxes, scenes(3), views="flip", device="cpu")


def write_voc(folder, images):
    """Annotated images as Pascal VOC has them."""
    for name in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (folder / name).mkdir(parents=True)
    for place, (image, boxes, names) in enumerate(images):
        Image.fromarray(image).save(folder / "JPEGImages" / f"i{place}.png")
        ends = [dict(zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)) for box in boxes]
        found = [
            f"<object><name>{name}</name><bndbox>{''.join(f'<{k}>{v}</{k}>' for k, v in box.items())}</bndbox></object>"
            for name, box in zip(names, ends, strict=True)
        ]
        (folder / "Annotations" / f"i{place}.xml").write_text(f"<annotation>{''.join(found)}</annotation>")
    (folder / "ImageSets/Main/train.txt").write_text("".join(f"i{place}\n" for place in range(len(images))))
    return folder


def write_coco(folder, images):
    """Annotated images as COCO has them."""
    kinds, boxes = ["red", "green", "blue"], []
    for place, (image, corners, names) in enumerate(images):
        Image.fromarray(image).save(folder / f"i{place}.png")
        boxes += [
            {"image_id": place, "bbox": [left, top, right - left, bottom - top], "category_id": kinds.index(name) + 3}
            for (left, top, right, bottom), name in zip(corners, names, strict=True)
        ]
    files = [{"id": place, "file_name": f"i{place}.png"} for place in range(len(images))]
    categories = [{"id": place + 3, "name": kind} for place, kind in enumerate(kinds)]
    path = folder / "boxes.json"
    path.write_text(json.dumps({"images": files, "annotations": boxes, "categories": categories}))
    return path


def test_annotations_of_voc_and_coco_are_read(tmp_path):
    images, boxes = scenes(40), of.Boxes(squares, ["red", "green"])
    voc, coco = write_voc(tmp_path / "voc", images), write_coco(tmp_path, images)
    made = [
        of.Guard.build(boxes, one, detector="KNN", device="cpu")
        for one in (images, voc, voc / "ImageSets/Main/train.txt", coco)
    ]
    expected = made[0](images[0][0]).boxes
    assert made[2](images[0][0]).boxes == made[3](images[0][0]).boxes == expected
    counts = [{**one.provenance, "one_an_image": len(one.watched.reference)} for one in made]
    assert counts[1] == counts[0]  # of other images, since a folder has another order
    (voc / "Annotations" / "i3.xml").write_text("<annotation><object>")
    with pytest.raises(of.FileFormatError, match=r"i3\.xml"):
        of.Guard.build(boxes, voc, device="cpu")
    with pytest.raises(of.StorageError, match="no annotated images"):
        of.Guard.build(boxes, tmp_path, device="cpu")


def test_a_file_knows_its_detector(guard, tmp_path):
    guard.save(tmp_path / "a.guard")
    image = scene(3, "red", "blue")[0]
    assert of.Guard.load(tmp_path / "a.guard", "cpu", network=squares)(image) == guard(image)
    with pytest.raises(of.InputError, match="squares, and does not hold it"):
        of.Guard.load(tmp_path / "a.guard", "cpu")
    told = describe_guard(tmp_path / "a.guard")
    assert "not in the file" in told["network"]
    assert "of ID boxes" in told["threshold"]


NETWORK = "torchvision:fasterrcnn_mobilenet_v3_large_320_fpn"


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """An untrained detector of torchvision, images, and the guard that the command builds on whatever it finds in them."""
    from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

    folder = tmp_path_factory.mktemp("real")
    torch.manual_seed(0)
    small = {"min_size": 64, "max_size": 64}
    network = fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, num_classes=3, **small)
    save_file(network.state_dict(), folder / "net.safetensors")
    boxes = of.Boxes(network.eval(), ["background", "red", "green"])
    images = [image for image, _, _ in scenes(6)]
    found = [boxes.find(torch.from_numpy(one).permute(2, 0, 1) / 255) for one in images]
    names = [[boxes.names[index] for index in one.classes] for one in found]
    voc = write_voc(folder / "voc", [(a, b.boxes.tolist(), c) for a, b, c in zip(images, found, names, strict=True)])
    words = ("--images", voc, "--names", "red,green", "--detector", "KNN", "--size", "64", "--device", "cpu")
    done = outfield("guard", "build", f"{NETWORK}@net.safetensors", *words, "-o", "my.guard", cwd=folder, code=0)
    assert "match annotated ones, in 6 images" in done.said
    assert "of new ID boxes (90 % interval)" in done.said
    return folder, boxes, images, of.Guard.load(folder / "my.guard", "cpu")


class TestTorchvision:
    def test_rows_are_what_its_head_makes_of_its_boxes(self, real):
        _, boxes, images, _ = real
        given, network = torch.from_numpy(images[0]).permute(2, 0, 1) / 255, boxes.network
        own = boxes.find(given)
        with torch.no_grad():
            expected = network([given])[0]
        assert torch.allclose(own.boxes, expected["boxes"], atol=1e-3)
        assert torch.equal(own.confidences, expected["scores"])
        assert torch.equal(own.classes, expected["labels"] - 1)
        assert own.rows.features.shape == (len(own.boxes), 1024)
        direct = network.roi_heads.box_predictor.cls_score(own.rows.features)
        assert torch.allclose(own.rows.logits, direct[:, 1:] - direct[:, :1], atol=1e-5)
        # The rows are those that the network's own confidence was made of.
        chances = direct.softmax(1)[range(len(direct)), own.classes + 1]
        assert torch.allclose(chances, own.confidences, atol=1e-5)
        maps = {}
        with network.roi_heads.box_head.register_forward_pre_hook(lambda _, inputs: maps.update(seen=inputs[0])):
            own = boxes.find(given)
        means = maps["seen"].mean((2, 3))
        assert all(bool((means == row).all(1).any()) for row in own.rows.stage2)

    def test_its_file_holds_it(self, real):
        folder, boxes, images, guard = real
        expected = boxes.find(torch.from_numpy(images[1]).permute(2, 0, 1) / 255)
        found = guard(images[1]).boxes
        assert [one.confidence for one in found] == expected.confidences.tolist()
        assert [one.score for one in found] == guard.detector.score(expected.rows).tolist()
        with pytest.raises(of.InputError, match="its weights or settings differ"):
            of.Guard.load(folder / "my.guard", "cpu", network=torch.nn.Identity())

    def test_where_nothing_is_proposed_there_is_no_box(self, real, monkeypatch):
        monkeypatch.setattr(real[1].network.rpn, "score_thresh", 1.1)
        assert real[1].find(torch.rand(3, 40, 50)).rows is None

    def test_an_image_that_it_cannot_take_keeps_no_other_from_a_verdict(self, real):
        thin = np.zeros((1, 300, 3), np.uint8)
        found = real[3]([thin, real[2][0]], on_error="skip")
        assert "cannot resize 300 × 1 pixels" in found[0].error
        assert found[1].error is None
        with pytest.raises(of.InputError, match="cannot resize"):
            real[3](thin)

    def test_heads_of_another_kind_are_refused(self, real):
        head = copy.deepcopy(real[1].network)
        head.roi_heads.box_predictor.bbox_pred = torch.nn.Linear(1024, 4)  # for all classes together
        bare = copy.deepcopy(real[1].network)
        bare.roi_heads = torch.nn.Identity()
        for network in (head, bare):
            with pytest.raises(of.InputError, match="no bbox_pred of four numbers a class"):
                of.Boxes(network)

    def test_names_and_settings_that_cannot_be_are_said(self, real):
        folder, boxes, _, _ = real
        file = folder / "net.safetensors"
        for names, said in (("abcde", "are 5 names"), ("a", "is 1 name")):
            with pytest.raises(of.InputError, match=f"there {said}, but the network has 2 classes"):
                of.Boxes(boxes.network, [*names])
        with pytest.raises(of.InputError, match="has no setting colour"):
            of.Boxes(f"{NETWORK}@{file}", colour=3)
        with pytest.raises(of.UnknownNameError, match="fasterrcnn_resnet50_fpn"):
            of.Boxes(f"torchvision:fasterrcnn_of_mine@{file}")
        (folder / "other.safetensors").write_bytes(save({"a": torch.zeros(1)}))
        with pytest.raises(of.FileFormatError, match="holds no weights"):
            of.Boxes(f"{NETWORK}@{folder / 'other.safetensors'}")

    def test_commands_check_and_show_it(self, real):
        folder = real[0]
        done = outfield("guard", "check", "my.guard", "voc/JPEGImages/i0.png", "--device", "cpu", cwd=folder, code=0)
        header, *rows = done.stdout.splitlines()
        assert header.split()[-5:] == ["confidence", "left", "top", "right", "bottom"]
        assert len(rows) > 3
        done = outfield("guard", "show", "my.guard", cwd=folder, code=0)
        assert f"{NETWORK}, 75,9" in " ".join(done.stdout.split())
        assert "members" not in done.stdout  # KNN has none
        evaluate = ("guard", "evaluate", "my.guard", "--device", "cpu", "--ood", "voc/JPEGImages/i0.png", "--id")
        whole = outfield(*evaluate, "voc/JPEGImages", cwd=folder, code=0).stdout.splitlines()
        assert "boxes" in whole[1]
        assert outfield(*evaluate, "voc", cwd=folder, code=0).stdout.splitlines()[2:] == whole[2:]
        found = real[3](real[2][0]).boxes[0]
        part = [(real[2][0], [[found.left, found.top, found.right, found.bottom]], [found.class_name])]
        write_voc(folder / "part", part)
        matched = len(BoxPlan().rows(real[1], folder / "part"))
        told = outfield(*evaluate, "part", cwd=folder, code=0).stdout.splitlines()[2].split()
        assert 0 < int(told[1]) == matched < int(whole[2].split()[1])
