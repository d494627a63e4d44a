"""Networks of a Hugging Face folder and of an ONNX file: features, logits and pixels are those of the network itself."""

import copy
import json
import pickle

import numpy as np
import onnx
import pytest
import torch
import transformers
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from tests.helpers.networks import Lookup, Plain, seeded
from tests.helpers.program import outfield
from tests.helpers.trap import Trap
from torch import nn

import outfield as of
from outfield.backbone import Origin
from outfield.backbone.origin import _class_names as class_names

HALF = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.25, 0.3)}
NAMES = {0: "dog", 1: "cat", 2: "ant", 3: "bee"}


def pictures(n=5):
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (int(rng.integers(20, 60)), int(rng.integers(20, 60)), 3), np.uint8) for _ in range(n)]


def rebuilt(backbone):
    origin = Origin.of_json(json.loads(json.dumps(backbone.origin.to_json())))
    return origin.build(origin.state(backbone.network), "a file")


# Hugging Face


def vit():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8, id2label=NAMES)
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    return transformers.ViTForImageClassification(config), processor


def resnet():
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
    config = transformers.ResNetConfig(**sizes, layer_type="basic", num_labels=4)
    processor = transformers.ConvNextImageProcessor(size={"shortest_edge": 32})
    return transformers.ResNetForImageClassification(config), processor


def convnext():
    config = transformers.ConvNextConfig(hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], num_labels=4)
    processor = transformers.ConvNextImageProcessor(size={"shortest_edge": 64})
    return transformers.ConvNextForImageClassification(config), processor


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    network, processor = vit()
    network.save_pretrained(tmp_path / "net")
    processor.save_pretrained(tmp_path / "net")
    return tmp_path / "net"


class TestHuggingFace:
    @pytest.mark.parametrize("names", [{"1": "a", "2": "b"}, {"0": "a", "2": "b"}, {"a": "x"}, ["a"], {"0": "LABEL_0"}])
    def test_names_that_are_not_of_all_classes_are_none(self, names):
        assert class_names({"id2label": {"1": "cat", "0": "dog"}}) == ("dog", "cat")
        assert class_names({"id2label": names}) == ()

    @pytest.mark.parametrize("make", [vit, resnet, convnext])
    def test_logits_are_those_of_transformers(self, make, tmp_path):
        torch.manual_seed(0)
        network, processor = make()
        network.save_pretrained(tmp_path)
        processor.save_pretrained(tmp_path)
        backbone = of.Backbone.open(f"hf:{tmp_path}", device="cpu")
        images = pictures()
        way = of.Preprocessing.of(json.loads((tmp_path / "preprocessor_config.json").read_text()))
        assert backbone.preprocessing == way  # whose pixels are those of transformers: test_preprocessing.py
        pixels = torch.stack([way.tensor(image) for image in images])
        with torch.no_grad():
            wanted = network.eval()(pixels).logits
        found = backbone.extract(Lookup(images))
        assert torch.allclose(found.logits, wanted, atol=1e-4)
        assert torch.allclose(found.features @ found.head_weight.T + found.head_bias, found.logits, atol=1e-4)
        assert backbone.extract(Lookup(images), odin=of.Odin()).odin_logits.shape == (5, found.logits.shape[1])
        assert torch.equal(rebuilt(backbone)(pixels).logits, backbone.network(pixels).logits)
        assert backbone.name == tmp_path.name

    def test_preprocessing_by_hand(self, folder):
        (folder / "preprocessor_config.json").unlink()
        with pytest.raises(of.InputError, match="does not say how it takes images; give size, mean, std"):
            of.Backbone.open(f"hf:{folder}", device="cpu")
        backbone = of.Backbone.open(f"hf:{folder}", device="cpu", size=40, crop=32, **HALF)
        assert (backbone.names, backbone.classes) == (("dog", "cat", "ant", "bee"), 4)
        assert backbone.preprocessing == of.Preprocessing(40, (32, 32), **HALF)
        with pytest.raises(of.InputError, match="has no setting classes"):
            of.Backbone.open(f"hf:{folder}", device="cpu", classes=4, size=32, **HALF)

    def test_pickles_are_never_read(self, folder, tmp_path):
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(tmp_path / "ran")))
        with pytest.raises(of.StorageError, match=r"there is no model\.safetensors in .*save_pretrained"):
            of.Backbone.open(f"hf:{folder}", device="cpu")
        assert not (tmp_path / "ran").exists()

    def test_code_of_the_folder_is_never_run(self, folder, tmp_path):
        config = json.loads((folder / "config.json").read_text())
        code = f"open({str(tmp_path / 'ran')!r}, 'w')\nclass M: pass\nclass C: pass\n"
        (folder / "mine.py").write_text(code)
        auto = {"AutoConfig": "mine.C", "AutoModelForImageClassification": "mine.M"}
        (folder / "config.json").write_text(json.dumps({**config, "auto_map": auto}))
        assert of.Backbone.open(f"hf:{folder}", device="cpu").classes == 4
        (folder / "config.json").write_text(json.dumps({**config, "auto_map": auto, "model_type": "mine"}))
        with pytest.raises(of.FileFormatError, match="no network that transformers can build"):
            of.Backbone.open(f"hf:{folder}", device="cpu")
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"architectures": ["ViTModel"]}, "no image classifier of transformers"),
            ({"architectures": None}, "no image classifier"),
            ({"model_type": 3}, "no image classifier"),
            ({"use_pretrained_backbone": True}, "would download weights"),
            ({"hidden_size": 64}, "do not fit|no network that"),
        ],
    )
    def test_other_configurations_are_refused(self, folder, change, words):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(of.FileFormatError, match=words):
            of.Backbone.open(f"hf:{folder}", device="cpu")

    def test_weights_in_several_files_lie_in_the_folder(self, folder, tmp_path):
        wanted = of.Backbone.open(f"hf:{folder}", device="cpu").fingerprint()
        network = transformers.AutoModelForImageClassification.from_pretrained(folder)
        (folder / "model.safetensors").unlink()
        network.save_pretrained(folder, max_shard_size="20KB")
        index = folder / "model.safetensors.index.json"
        listed = json.loads(index.read_text())
        assert len(set(listed["weight_map"].values())) > 1
        assert of.Backbone.open(f"hf:{folder}", device="cpu").fingerprint() == wanted
        first, file = next(iter(listed["weight_map"].items()))
        (folder / file).rename(tmp_path / "outside.safetensors")
        for name in ("../outside.safetensors", str(tmp_path / "outside.safetensors")):
            index.write_text(json.dumps({**listed, "weight_map": {**listed["weight_map"], first: name}}))
            with pytest.raises(of.FileFormatError, match=r"index\.json names the file '.*outside.*the folder itself"):
                of.Backbone.open(f"hf:{folder}", device="cpu")

    def test_broken_and_missing_files(self, folder, tmp_path):
        with pytest.raises(of.StorageError, match=r"config\.json"):
            of.Backbone.open(f"hf:{tmp_path / 'nothing'}", device="cpu")
        for content in (b"{", b"[]", b"\xff"):
            (folder / "config.json").write_bytes(content)
            with pytest.raises(of.FileFormatError, match=r"config\.json"):
                of.Backbone.open(f"hf:{folder}", device="cpu")

    def test_on_the_command_line(self, folder, tmp_path):
        for name, image in zip(("cat/0.png", "dog/1.png"), pictures(2), strict=True):
            (tmp_path / "photos" / name).parent.mkdir(parents=True)
            Image.fromarray(image).save(tmp_path / "photos" / name)
        done = outfield("extract", f"hf:{folder}", tmp_path / "photos", "-o", tmp_path / "f.npz", "--device", "cpu")
        assert done.returncode == 0, done.stderr
        found = of.FeatureSet.load(tmp_path / "f.npz")
        assert found.labels.tolist() == [1, 0]  # by their names, whatever the order of the folders
        assert "accuracy" in done.said

    def test_tensors_that_do_not_fit(self, folder):
        backbone = of.Backbone.open(f"hf:{folder}", device="cpu")
        state = backbone.origin.state(backbone.network)
        with pytest.raises(of.FileFormatError, match="a file does not fit"):
            backbone.origin.build({"classifier.weight": state["classifier.weight"]}, "a file")


# ONNX


def exported(network, path, channels=3, side=16, batch=None, names=("logits",)):
    """An ONNX file by PyTorch's own exporter."""
    example = torch.rand(batch or 2, channels, side, side)
    shapes = None if batch else {name: {0: "n"} for name in ("images", *names)}
    called = {"input_names": ["images"], "output_names": list(names), "dynamic_axes": shapes}
    torch.onnx.export(network.eval(), (example,), path, dynamo=False, **called)
    return path


class Two(nn.Module):
    """Gives logits and features."""

    def __init__(self):
        super().__init__()
        self.body, self.last = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU()), nn.Conv2d(6, 4, 1)

    def forward(self, images):
        pooled = self.body(images).mean((2, 3), keepdim=True)
        return self.last(pooled).flatten(1), pooled.flatten(1)


def by_hand(nodes, constants, output="y", inner=None):
    """A graph: mean over positions, then these nodes."""
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])
    pool = [helper.make_node("GlobalAveragePool", ["x"], ["p"]), helper.make_node("Flatten", ["p"], ["f"])]
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
    graph = helper.make_graph([*pool, *nodes], "g", [image], outputs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def built(model):
    """The network as a guard that holds the model builds it."""
    content = torch.frombuffer(bytearray(model.SerializeToString()), dtype=torch.uint8)
    return Origin("onnx").build({"model": content}, "a guard")


WEIGHT = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
BIAS = np.arange(4, dtype=np.float32)


class TestOnnx:
    @pytest.mark.parametrize("batch", [None, 1, 3])
    def test_it_gives_what_the_module_gives(self, tmp_path, batch):
        network = seeded(Plain).eval()
        path = exported(network, tmp_path / "net.onnx", batch=batch)
        backbone = of.Backbone.open(str(path), device="cpu", **HALF)
        images = Lookup(pictures())
        found, wanted = backbone.extract(images), of.Backbone(network, size=16, **HALF).extract(images)
        for name in ("features", "logits", "head_weight", "head_bias"):
            assert torch.allclose(getattr(found, name), getattr(wanted, name), atol=1e-4), name
        assert backbone.name == "net"
        assert backbone.preprocessing == of.Preprocessing((16, 16), interpolation="tensor", **HALF)
        batch_of = torch.rand(4, 3, 16, 16)
        assert torch.equal(rebuilt(backbone)(batch_of), backbone.network(batch_of))
        other = of.Backbone(copy.deepcopy(backbone.network), preprocessing=backbone.preprocessing)
        assert other.fingerprint() == backbone.fingerprint()
        assert torch.equal(pickle.loads(pickle.dumps(backbone.network))(batch_of), backbone.network(batch_of))

    def test_weights_in_a_file_beside_it(self, tmp_path):
        path = exported(seeded(Plain), tmp_path / "net.onnx")
        wanted = of.Backbone.open(str(path), device="cpu", **HALF).extract(Lookup(pictures()))
        onnx.save_model(onnx.load(path), path, save_as_external_data=True, location="net.data", size_threshold=0)
        assert (tmp_path / "net.data").is_file()
        found = of.Backbone.open(str(path), device="cpu", **HALF).extract(Lookup(pictures()))
        assert torch.equal(found.features, wanted.features)
        (tmp_path / "net.data").unlink()
        with pytest.raises((of.StorageError, of.FileFormatError), match="weights of"):
            of.Backbone.open(str(path), device="cpu", **HALF)

    def test_outputs_that_are_called_features_and_logits(self, tmp_path):
        torch.manual_seed(0)
        network = Two().eval()
        path = exported(network, tmp_path / "two.onnx", names=("logits", "features"))
        backbone = of.Backbone.open(str(path), device="cpu", **HALF)
        images = pictures()
        with torch.no_grad():
            logits, features = network(torch.stack([backbone.preprocessing.tensor(image) for image in images]))
        found = backbone.extract(Lookup(images))
        assert torch.allclose(found.features, features, atol=1e-5)
        assert torch.allclose(found.logits, logits, atol=1e-5)
        assert found.head_weight is None
        again = of.Backbone(rebuilt(backbone), preprocessing=backbone.preprocessing, head=backbone.head)
        assert torch.equal(again.extract(Lookup(images)).features, found.features)

    @pytest.mark.parametrize(
        ("nodes", "constants", "bias"),
        [
            ([helper.make_node("MatMul", ["f", "w"], ["y"])], {"w": WEIGHT}, None),
            ([helper.make_node("MatMul", ["f", "w"], ["m"]), helper.make_node("Add", ["m", "b"], ["y"])],
             {"w": WEIGHT, "b": BIAS}, BIAS),
            ([helper.make_node("MatMul", ["f", "w"], ["m"]), helper.make_node("Add", ["b", "m"], ["y"])],
             {"w": WEIGHT, "b": BIAS}, BIAS),
            ([helper.make_node("Gemm", ["f", "w", "b"], ["y"], transB=1)], {"w": WEIGHT.T.copy(), "b": BIAS[:1]}, 0 * BIAS),
            ([helper.make_node("Gemm", ["f", "w"], ["g"]), helper.make_node("Softmax", ["g"], ["y"])], {"w": WEIGHT}, None),
            ([helper.make_node("Transpose", ["v"], ["w"], perm=[1, 0]), helper.make_node("MatMul", ["f", "w"], ["y"])],
             {"v": WEIGHT.T.copy()}, None),
        ],
    )  # fmt: skip
    def test_last_layers_of_all_kinds(self, tmp_path, nodes, constants, bias):
        onnx.save(by_hand(nodes, constants), tmp_path / "net.onnx")
        backbone = of.Backbone.open(str(tmp_path / "net.onnx"), device="cpu", **HALF)
        images = torch.rand(5, 3, 8, 8)
        features = images.mean((2, 3))
        wanted = features @ torch.from_numpy(WEIGHT) + (0 if bias is None else torch.from_numpy(bias))
        assert torch.allclose(backbone.network(images), wanted, atol=1e-5)
        assert isinstance(backbone.network.head, nn.Linear)

    def test_a_last_layer_whose_weights_are_computed(self, tmp_path):
        nodes = [helper.make_node("Exp", ["v"], ["w"]), helper.make_node("MatMul", ["f", "w"], ["y"])]
        onnx.save(by_hand(nodes, {"v": WEIGHT}), tmp_path / "net.onnx")
        backbone = of.Backbone.open(str(tmp_path / "net.onnx"), device="cpu", **HALF)
        found = backbone.extract(Lookup(pictures()))
        assert torch.allclose(found.logits, found.features @ torch.from_numpy(WEIGHT).exp(), atol=1e-4)

    def test_its_size_is_its_own(self, tmp_path):
        path = str(exported(seeded(Plain), tmp_path / "net.onnx"))
        with pytest.raises(of.InputError, match=r"takes images of 16 × 16 .* gives 20 × 20"):
            of.Backbone.open(path, device="cpu", size=20, **HALF)
        assert of.Backbone.open(path, device="cpu", size=20, crop=16, **HALF).preprocessing.resize == 20
        with pytest.raises(of.InputError, match="give mean, std"):
            of.Backbone.open(path, device="cpu")

    def test_there_are_no_gradients(self, tmp_path):
        backbone = of.Backbone.open(str(exported(seeded(Plain), tmp_path / "net.onnx")), device="cpu", **HALF)
        images = Lookup(pictures(8))
        with pytest.raises(of.InputError, match="odin needs gradients, which net does not give"):
            backbone.extract(images, odin=of.Odin())
        labelled = of.FeatureSet(backbone.extract(images).features, labels=[0, 1] * 4)
        with pytest.raises(of.InputError, match="perturb needs gradients"):
            backbone.extract(images, perturb=of.Perturb(of.SSD().fit(labelled), 0.1))
        with pytest.raises(of.InputError, match=r"stages|blocks"):
            backbone.extract(images, stages=True)

    def test_what_is_no_such_model(self, tmp_path):
        path = tmp_path / "net.onnx"
        nonsense = helper.make_node("Nonsense", ["f"], ["g"]), helper.make_node("MatMul", ["g", "w"], ["y"])
        for content, error, words in (
            (b"no model at all", of.FileFormatError, "no ONNX model"),
            (b"", of.FileFormatError, "no ONNX model"),
            (by_hand([helper.make_node("Relu", ["f"], ["y"])], {}), of.InputError, "not end with a linear layer"),
            (by_hand(nonsense, {"w": WEIGHT}), of.FileFormatError, "cannot be run"),
        ):
            path.write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
            with pytest.raises(error, match=words):
                of.Backbone.open(str(path), device="cpu", **HALF)
        with pytest.raises(of.StorageError, match="no such file"):
            of.Backbone.open(str(tmp_path / "missing.onnx"), device="cpu", **HALF)

    def test_inputs_and_outputs_that_are_not_understood(self, tmp_path):
        good = by_hand([helper.make_node("MatMul", ["f", "w"], ["y"])], {"w": WEIGHT})
        several, flat, more = (onnx.ModelProto.FromString(good.SerializeToString()) for _ in range(3))
        several.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [1]))
        del flat.graph.input[0].type.tensor_type.shape.dim[-1]
        more.graph.output.append(helper.make_tensor_value_info("f", TensorProto.FLOAT, None))
        said = (several, "has 2 inputs"), (flat, "takes an input of shape"), (more, "has the outputs y, f")
        for model, words in said:
            with pytest.raises(of.InputError, match=words):
                built(model)

    def test_operators_of_others_are_refused_and_those_of_the_runtime_are_not(self):
        end = helper.make_node("MatMul", ["k", "w"], ["y"])
        mine = by_hand([helper.make_node("Mine", ["f"], ["k"], domain="my.domain"), end], {"w": WEIGHT})
        with pytest.raises(of.FileFormatError, match=r"a guard cannot be run: .*Mine.*my\.domain"):
            built(mine)
        model = by_hand([helper.make_node("Gelu", ["f"], ["k"], domain="com.microsoft"), end], {"w": WEIGHT})
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        assert built(model).channels == 3

    def test_no_file_outside_of_its_folder_is_read(self, tmp_path):
        model = by_hand([helper.make_node("MatMul", ["f", "w"], ["y"])], {"w": WEIGHT})
        path = tmp_path / "net.onnx"
        onnx.save_model(model, path, save_as_external_data=True, location="net.data", size_threshold=0)
        with pytest.raises(of.FileFormatError, match="the numbers of 'w' of a guard lie in another file"):
            built(onnx.load_model(path, load_external_data=False))
        changed = onnx.load_model(path, load_external_data=False)
        next(one for one in changed.graph.initializer[0].external_data if one.key == "location").value = "../net.data"
        (tmp_path / "in").mkdir()
        onnx.save_model(changed, tmp_path / "in/net.onnx")
        with pytest.raises(of.FileFormatError, match="cannot be read"):
            of.Backbone.open(str(tmp_path / "in/net.onnx"), device="cpu", **HALF)


def test_unknown_words_are_told_what_is_known():
    with pytest.raises(of.UnknownNameError, match=r"hf:FOLDER, FILE\.onnx or FILE\.pt2"):
        of.Backbone.open("something")


def test_weights_of_a_folder_that_are_not_finite(folder):
    from safetensors.torch import load_file, save_file

    state = load_file(folder / "model.safetensors")
    state["classifier.bias"][0] = float("inf")
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(of.FileFormatError, match=r"not finite, in classifier\.bias"):
        of.Backbone.open(f"hf:{folder}", device="cpu")


def test_weights_of_a_folder_in_half_precision(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    network = transformers.AutoModelForImageClassification.from_pretrained(folder, config=config).half()
    network.save_pretrained(folder)
    backbone = of.Backbone.open(f"hf:{folder}", device="cpu")
    assert {value.dtype for value in backbone.network.parameters()} == {torch.float32}
    assert torch.equal(backbone.network.classifier.weight, network.classifier.weight.float())
