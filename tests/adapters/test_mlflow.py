"""A guard as a model of MLflow: loaded as MLflow does it, with tables of paths and bytes and with arrays."""

import io

import mlflow
import numpy as np
import pytest
from PIL import Image
from tests.helpers.guards import labelled, noise, small_guard, trained, write_folder

import outfield as of
from outfield.adapters import to_mlflow
from outfield.adapters.mlflow import images_of

pandas = pytest.importorskip("pandas")  # which mlflow.pyfunc is nothing without


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture(scope="module")
def guard(folder):
    made = small_guard(trained(folder / "net.safetensors"), detector=of.KNN(k=5))
    made.save(folder / "my.guard")
    return made


@pytest.fixture(scope="module")
def model(guard, folder):
    to_mlflow(folder / "my.guard", folder / "mlflow")
    return mlflow.pyfunc.load_model(str(folder / "mlflow"))


def test_a_model_of_mlflow(guard, model, folder):
    files = {file.name for file in (folder / "mlflow").rglob("*") if file.is_file()}
    assert {"MLmodel", "model.guard", "requirements.txt"} <= files
    assert not any(name.endswith((".pkl", ".pickle", ".py")) for name in files)
    paths = sorted(str(file) for file in write_folder(folder / "new", labelled(4, 3)).rglob("*.png"))
    wanted = guard(paths)
    found = model.predict(pandas.DataFrame({"image": paths, "note": "x"}))
    assert found["is_ood"].tolist() == wanted.is_ood.tolist()
    assert found["class_name"].tolist() == [one.class_name for one in wanted]
    np.testing.assert_allclose(found["score"], wanted.scores, rtol=1e-6)
    buffer = io.BytesIO()
    Image.fromarray(noise(1)[0]).save(buffer, "PNG")
    found = model.predict(pandas.DataFrame({"photo": [buffer.getvalue(), b"broken"]}))
    assert found["is_ood"].tolist()[0] is True
    assert "not an image" in found["error"][1]
    np.testing.assert_allclose(model.predict(noise(3))["score"], guard(noise(3)).scores, rtol=1e-6)


def test_what_a_model_of_mlflow_does_not_take(model, folder):
    with pytest.raises(of.InputError, match="must be called 'image'"):
        images_of(pandas.DataFrame({"a": ["x"], "b": ["y"]}))
    for given in ("photo.png", b"bytes", [], 3):
        with pytest.raises(of.InputError, match="takes several images"):
            images_of(given)
    with pytest.raises(of.InputError, match="is there already"):
        to_mlflow(folder / "my.guard", folder / "mlflow")
