"""A whole guard as ONNX, by torch.export, as a model and an ensemble of Triton: the same verdicts, and what they say."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from google.protobuf import text_format
from tests.helpers.guards import NAMES, labelled, noise, small_guard, trained
from tests.helpers.networks import ChannelsLast, Plain, backbone, seeded
from tests.helpers.program import outfield

import outfield as of
from outfield import adapters
from outfield.adapters import onnx as adapter
from outfield.adapters import to_onnx, to_pt2, to_triton, to_triton_ensemble
from outfield.adapters.graph import traced
from outfield.cli import app
from outfield.guard import ImageReader


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="module")
def guard(folder):
    members = (of.EnergyLogits(), of.KNN(k=5), of.SSD(field="stage2", ridge=0.1))
    made = small_guard(trained(folder / "net.safetensors"), detector=of.Fused(members), views="flip")
    made.save(folder / "my.guard")
    return made


@pytest.fixture(scope="module")
def light(guard):
    """A guard of the same network whose graph has few steps: a sum's takes seconds to trace, each time."""
    return small_guard(guard.backbone, detector=of.EnergyLogits())


@pytest.fixture(scope="module")
def written(guard, folder):
    return to_onnx(guard, folder / "guard.onnx")


@pytest.fixture(scope="module")
def session(written, folder):
    return onnxruntime.InferenceSession(str(folder / "guard.onnx"), providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def models(guard, folder):
    """The folders of a repository by name."""
    home = folder / "repository"
    (home / "other").mkdir(parents=True)
    outfield("export", "my.guard", "--format", "triton-ensemble", "-o", "repository", cwd=folder, code=0)
    assert {one.name for one in home.iterdir()} == {"my", "my_network", "my_detector", "other"}
    return {one.name: one for one in home.iterdir() if one.name != "other"}


@pytest.fixture(scope="module")
def features(models):
    """The ensemble's detector, which takes features."""
    path = models["my_detector"] / "1" / "model.onnx"
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def agree(guard, pixels, found):
    scores, p_values, is_ood, labels = (np.asarray(one) for one in found)
    verdicts = guard(pixels)
    np.testing.assert_allclose(scores, verdicts.scores, rtol=1e-4, atol=1e-4)
    away = np.abs(verdicts.scores - guard.threshold.value) > 1e-3
    assert away.any()
    assert np.array_equal(is_ood[away], verdicts.is_ood[away])
    reference = guard.threshold.reference.numpy()
    clear = np.abs(reference - verdicts.scores[:, None]).min(1) > 1e-3
    np.testing.assert_allclose(p_values[clear], verdicts.p_values[clear], rtol=1e-6)
    assert labels.tolist() == [one.class_index for one in verdicts]


@pytest.mark.parametrize("images", [noise(1, 6), noise(7, 5), labelled(30, 9).images])
def test_verdicts_of_any_number_of_images(guard, session, images):
    agree(guard, images, session.run(["score", "p_value", "is_ood", "label"], {"pixels": images}))


def test_what_goes_in_and_comes_out(written, session, folder):
    assert written.inputs == ("pixels uint8 [N, 16, 16, 3]",)
    assert written.outputs == ("score float32 [N]", "p_value float32 [N]", "is_ood bool [N]", "label int64 [N]")
    assert written.size == (folder / "guard.onnx").stat().st_size
    assert written.apart < 1e-4
    assert "MB, opset " in str(written)
    assert "in: pixels uint8 [N, 16, 16, 3]; out: score" in str(written)
    assert session.get_inputs()[0].shape == ["N", 16, 16, 3]


def test_what_it_says_of_itself(guard, session):
    said = session.get_modelmeta().custom_metadata_map
    assert json.loads(said["outfield.preprocessing"]) == guard.backbone.preprocessing.to_json()
    assert json.loads(said["outfield.class_names"]) == [*NAMES]
    assert said["outfield.network_fingerprint"] == guard.fingerprint
    assert said["outfield.detector_fingerprint"] == guard.detector.fingerprint()
    assert float(said["outfield.threshold"]) == guard.threshold.value
    assert float(said["outfield.keep"]) == 0.95
    assert said["outfield.views"] == "flip"
    assert said["outfield.takes"] == "pixels"


def test_the_weights_are_the_guards(guard, written, folder):
    model = onnx.load(folder / "guard.onnx")
    onnx.checker.check_model(model)
    there = {onnx.numpy_helper.to_array(one).tobytes() for one in model.graph.initializer}
    kernels = [value for value in guard.backbone.network.parameters() if value.dim() == 4]
    assert kernels
    assert all(value.detach().numpy().tobytes() in there for value in kernels)


def test_no_place_of_this_machine_is_in_the_file(written, folder):
    assert str(Path(of.__file__).parent).encode() not in (folder / "guard.onnx").read_bytes()


def test_the_network_is_left_as_it_was(guard, written):
    hooks = [module._forward_hooks or module._forward_pre_hooks for module in guard.backbone.network.modules()]
    assert not any(hooks)
    assert type(guard(noise(1)[0]).score) is float


def test_features_alone(guard, features):
    assert [one.name for one in features.get_inputs()] == ["logits", "features", "stage2"]
    assert [one.name for one in features.get_outputs()] == ["score", "p_value", "is_ood"]
    rows = guard.backbone.extract(labelled(12, 9), stages=True, views="flip", precision="float32")
    given = {name: rows.tensors()[name].numpy() for name in guard.detector.needs_to_score}
    scores, p_values, _ = features.run(None, given)
    np.testing.assert_allclose(scores, guard.detector.score(rows).numpy(), rtol=1e-4, atol=1e-4)
    assert ((p_values > 0) & (p_values <= 1)).all()


def test_numbers_that_are_none_are_ood(guard, features):
    known = guard.reader.extraction.fields(torch.from_numpy(labelled(3, 9).images))
    for bad in (float("nan"), float("inf"), -float("inf")):
        given = {name: known[name].numpy().copy() for name in guard.detector.needs_to_score}
        given["stage2"][1, 0] = bad
        scores, p_values, is_ood = features.run(None, given)
        assert np.isnan(scores).tolist() == [False, True, False]
        assert is_ood[1]
        assert p_values[1] == p_values.min()


def test_torch_export(guard, folder):
    found = to_pt2(guard, folder / "guard.pt2")
    said = {"outfield.json": ""}
    program = torch.export.load(folder / "guard.pt2", extra_files=said)
    assert json.loads(said["outfield.json"])["outfield.network_fingerprint"] == guard.fingerprint
    assert found.inputs == ("pixels uint8 [N, 16, 16, 3]",)
    assert found.opset is None
    for images in (noise(1, 6), labelled(9, 9).images):
        agree(guard, images, program.module()(torch.from_numpy(images)))


def test_normalised_images_and_views_of_every_kind():
    network = backbone(seeded(ChannelsLast), names=NAMES)
    guard = of.Guard.build(network, labelled(120, 1), labelled(120, 2), detector=of.SSD(), views=8, device="cpu")
    found = traced(guard, "normalised")
    assert found.inputs == ("images",)
    pixels = noise(4, 8)
    mean, std = (torch.tensor(value)[:, None, None] for value in (guard.backbone.input.mean, guard.backbone.input.std))
    images = (torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 - mean) / std
    agree(guard, pixels, found.program.module()(images))


def test_numbers_of_a_large_guard_lie_beside_it(light, tmp_path, monkeypatch):
    monkeypatch.setattr(adapter, "LARGEST", 2**24)
    found = to_onnx(light, tmp_path / "large.onnx", takes="features")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["large.onnx", "large.onnx.data"]
    assert found.size == sum(file.stat().st_size for file in tmp_path.iterdir())
    session = onnxruntime.InferenceSession(str(tmp_path / "large.onnx"), providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map["outfield.takes"] == "features"


def test_scores_that_differ_are_not_written(light, tmp_path, monkeypatch):
    monkeypatch.setattr(adapter, "TOLERANCE", {"ONNX Runtime": -1.0, "torch.export": -1.0})
    for write, name in ((to_onnx, "ONNX Runtime"), (to_pt2, "torch.export")):
        with pytest.raises(of.InputError, match=rf"{name} gives scores .* where the guard gives"):
            write(light, tmp_path / f"wrong.{write.__name__[3:]}", takes="features")
    assert not list(tmp_path.iterdir())


def triton_config(text):
    """As Triton reads it: by the message that its client has."""
    home = importlib.util.find_spec("tritonclient").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location("model_config_pb2", f"{home}/grpc/model_config_pb2.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return text_format.Parse(text, module.ModelConfig()), module


def test_a_model_of_triton(guard, tmp_path):
    (tmp_path / "models" / "other").mkdir(parents=True)
    guard = small_guard(guard.backbone, detector=of.SHE())
    to_triton(guard, tmp_path / "models", "my", takes="features")
    assert onnxruntime.InferenceSession(str(tmp_path / "models" / "my" / "1" / "model.onnx"))
    config, message = triton_config((tmp_path / "models" / "my" / "config.pbtxt").read_text())
    assert (config.name, config.backend, config.max_batch_size) == ("my", "onnxruntime", 64)
    assert config.HasField("dynamic_batching")
    assert [(one.name, list(one.dims)) for one in config.input] == [
        (name, [guard.reader.extraction.fields(torch.from_numpy(noise(2)))[name].shape[1]])
        for name in ("features", "logits")
    ]
    assert [one.name for one in config.output] == ["score", "p_value", "is_ood"]
    kinds = [message.TYPE_FP32, message.TYPE_FP32, message.TYPE_BOOL]
    assert [one.data_type for one in config.output] == kinds
    assert all(list(one.dims) == [1] and one.HasField("reshape") for one in config.output)
    way = config.parameters["outfield.preprocessing"].string_value
    assert json.loads(way) == guard.backbone.preprocessing.to_json()
    with pytest.raises(of.InputError, match="is there already"):
        to_triton(guard, tmp_path / "models", "my")
    with pytest.raises(of.InputError, match="name is 'a/b'"):
        to_triton(guard, tmp_path / "models", "a/b")


class TestEnsemble:
    def run(self, models, config, pixels):
        """As Triton runs an ensemble: a step whose inputs are there, after the other, by the maps alone."""
        known, left = {config.input[0].name: pixels}, list(config.ensemble_scheduling.step)
        while left:
            step = next(one for one in left if set(one.input_map.values()) <= set(known))
            session = onnxruntime.InferenceSession(str(models[step.model_name] / "1" / "model.onnx"))
            wanted = list(step.output_map)
            given = {name: known[value] for name, value in step.input_map.items()}
            known |= dict(zip((step.output_map[name] for name in wanted), session.run(wanted, given), strict=True))
            left.remove(step)
        return [known[one.name] for one in config.output]

    def test_its_steps_in_order_give_the_guards_verdicts(self, guard, models):
        config, message = triton_config((models["my"] / "config.pbtxt").read_text())
        assert (config.name, config.platform, config.max_batch_size) == ("my", "ensemble", 64)
        assert not config.HasField("dynamic_batching")
        assert not any(one.HasField("reshape") for one in config.output)
        assert (models["my"] / "1").is_dir()
        assert not list((models["my"] / "1").iterdir())
        assert [one.name for one in config.output] == ["score", "p_value", "is_ood", "label"]
        assert config.output[3].data_type == message.TYPE_INT64
        for n in (1, 7):
            pixels = np.concatenate([labelled(n, 5).images, noise(n)])
            agree(guard, pixels, self.run(models, config, pixels))

    def test_types_and_sizes_of_what_is_handed_on_agree(self, models):
        configs = {name: triton_config((folder / "config.pbtxt").read_text())[0] for name, folder in models.items()}
        whole = configs["my"]
        kinds = {one.name: (one.data_type, list(one.dims)) for one in whole.input}
        for step in whole.ensemble_scheduling.step:
            config = configs[step.model_name]
            assert config.name == step.model_name
            assert config.backend == "onnxruntime"
            assert step.model_version == -1
            assert set(step.input_map) == {one.name for one in config.input}
            for one in config.input:
                assert kinds[step.input_map[one.name]] == (one.data_type, list(one.dims))
            kinds |= {step.output_map[one.name]: (one.data_type, list(one.dims)) for one in config.output}
        assert all(kinds[one.name] == (one.data_type, list(one.dims)) for one in whole.output)
        assert json.loads(whole.parameters["outfield.class_names"].string_value) == list(NAMES)

    def test_what_cannot_be(self, guard, tmp_path):
        with pytest.raises(of.InputError, match="an ensemble takes images"):
            to_triton_ensemble(guard, tmp_path, "my", takes="features")
        (tmp_path / "my_network").mkdir()
        with pytest.raises(of.InputError, match="my_network is there already"):
            to_triton_ensemble(guard, tmp_path, "my")
        assert [one.name for one in tmp_path.iterdir()] == ["my_network"]
        with pytest.raises(of.InputError, match="name is 'a b'"):
            to_triton_ensemble(guard, tmp_path, "a b")


def test_guards_that_cannot_be_exported(guard, tmp_path):
    odin = guard_of(Plain, of.ODIN())
    for to in (to_onnx, to_pt2):
        with pytest.raises(of.InputError, match="ODIN cannot be exported"):
            to(odin, tmp_path / f"x.{to.__name__[3:]}")
    reader = ImageReader(guard.backbone, views="flip", precision="bfloat16")
    half = of.Guard(reader, guard.detector, guard.threshold)
    with pytest.raises(of.InputError, match="runs in bfloat16, but exported graphs run in float32"):
        to_onnx(half, tmp_path / "x.onnx")
    with pytest.raises(of.InputError, match=r"must end in \.onnx"):
        to_onnx(guard, tmp_path / "x.txt")
    with pytest.raises(of.StorageError, match="there is no folder"):
        to_pt2(guard, tmp_path / "none" / "x.pt2")
    assert not list(tmp_path.iterdir())


class Moody(Plain):
    """A network whose way depends on what it sees."""

    def forward(self, images):
        return super().forward(images if float(images.mean()) > -100 else -images)


def guard_of(network, detector):
    return of.Guard.build(
        backbone(seeded(network), names=NAMES), labelled(120, 1), labelled(120, 2), detector=detector, device="cpu"
    )


def test_a_network_that_cannot_be_traced(tmp_path):
    moody = guard_of(Moody, of.EnergyLogits())
    with pytest.raises(of.InputError, match=r"cannot be traced by torch.export: .*--features-only"):
        to_onnx(moody, tmp_path / "x.onnx")
    assert to_onnx(moody, tmp_path / "x.onnx", takes="features").size > 0


def test_a_network_that_asks_how_many_images_there_are(tmp_path):
    counting = guard_of(Plain, of.EnergyLogits())
    with pytest.raises(of.InputError, match=r"len\(images\) in a network fixes their number"):
        to_pt2(counting, tmp_path / "x.pt2")


def test_a_network_that_is_an_onnx_file(guard, monkeypatch):
    monkeypatch.setattr(guard.backbone.network, "gives_gradients", False, raising=False)
    with pytest.raises(of.InputError, match="is itself an ONNX file"):
        traced(guard)


def test_the_command(light, folder, tmp_path):
    light.save(tmp_path / "light.guard")
    done = outfield("export", tmp_path / "light.guard", "-o", tmp_path / "d.onnx", "--features-only", code=0)
    assert "opset" in done.said
    assert "logits float32 [N, 4]" in done.said
    assert (tmp_path / "d.onnx").is_file()


@pytest.mark.parametrize(("arguments", "code", "why"), [
    (("my.guard", "-o", "x.zip"), 2, "whose ending says no format"),
    (("my.guard", "-o", "x.onnx", "--format", "coreml"), 2, "--format is 'coreml'"),
    (("my.guard", "-o", "x.onnx", "--features-only", "--float-input"), 2, "give one of them"),
    (("my.guard", "-o", "x", "--format", "mlflow", "--float-input"), 2, "leave out --features-only"),
    (("my.guard", "-o", "x.onnx", "--format", "pt2"), 2, ".pt2"),
    (("my.guard", "-o", "none/x.onnx"), 3, "none"),
    (("my.guard", "--format", "triton-ensemble", "--features-only", "-o", "x"), 2, "--format triton"),
    (("no.guard", "-o", "x.onnx"), 3, "no.guard"),
])  # fmt: skip
def test_commands_that_cannot_be(guard, folder, arguments, code, why):
    done = outfield("export", *arguments, cwd=folder, code=code)
    assert why in done.said


def test_a_library_that_is_missing_is_told_before_any_work(guard, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxscript" else object())
    done = outfield("export", "my.guard", "-o", "x.onnx", cwd=folder, code=2)
    assert "outfield[onnx]" in done.said


@pytest.mark.parametrize(("name", "output"), [("to_pt2", "x.pt2"), ("to_onnx", "x.onnx"), ("to_triton", "x")])
def test_the_command_says_what_the_graph_takes(name, output, guard, folder, monkeypatch):
    given = []
    monkeypatch.setattr(adapters, name, lambda *_, takes: given.append(takes))
    for options in ((), ("--float-input",), ("--features-only",)):
        form = () if "." in output else ("--format", "triton")
        app(["export", str(folder / "my.guard"), "-o", output, *form, *options, "--quiet"], standalone_mode=False)
    assert given == ["pixels", "normalised", "features"]
