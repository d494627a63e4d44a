"""Clients that were written by others: tritonclient's over HTTP with binary tensors, and curl."""

import json
import shutil
import subprocess

import numpy as np
import pytest
import tritonclient.http as triton
from tests.helpers.service import png, running
from tritonclient.utils import InferenceServerException

import outfield as of


@pytest.fixture(scope="module")
def service(files):
    with running(files["fused"], files["ssd"], token="secret") as found:
        yield found


class TestTriton:
    @pytest.fixture
    def client(self, service):
        client = triton.InferenceServerClient(f"127.0.0.1:{service.port}")
        yield client
        client.close()

    @property
    def headers(self):
        """New ones for each call: the client adds its own to those that it is given."""
        return {"Authorization": "Bearer secret"}

    def test_health_and_metadata(self, client):
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("ssd", headers=self.headers)
        assert not client.is_model_ready("none", headers=self.headers)
        assert client.get_server_metadata(headers=self.headers)["name"] == "outfield"
        told = client.get_model_metadata("ssd", headers=self.headers)["outputs"][2]
        assert told == {"name": "is_ood", "datatype": "BOOL", "shape": [-1]}

    @pytest.mark.parametrize("binary", [True, False])
    @pytest.mark.parametrize("named", [True, False])
    def test_pixels(self, client, files, images, binary, named):
        expected = of.Guard.load(files["fused"], device="cpu")(images)
        one = triton.InferInput("pixels", [5, 16, 16, 3], "UINT8")
        one.set_data_from_numpy(np.stack(images), binary_data=binary)
        names = ("score", "p_value", "is_ood", "label")
        outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in names] if named else None
        found = client.infer("fused", [one], outputs=outputs, request_id="9", headers=self.headers)
        assert found.get_response()["id"] == "9"
        np.testing.assert_allclose(found.as_numpy("score"), expected.scores, rtol=1e-4)
        np.testing.assert_allclose(found.as_numpy("p_value"), expected.p_values, atol=0.02)
        assert found.as_numpy("is_ood").tolist() == expected.is_ood.tolist()
        assert found.as_numpy("label").tolist() == [verdict.class_index for verdict in expected]
        assert [found.as_numpy(name).dtype.kind for name in names] == ["f", "f", "b", "i"]
        told = found.get_response()["outputs"]  # where no output is named, the client asks for all in binary
        assert all(("data" in one) is (named and not binary) for one in told)

    def test_encoded_images(self, client, files, images):
        expected = of.Guard.load(files["fused"], device="cpu")(images)
        one = triton.InferInput("image", [5], "BYTES")
        one.set_data_from_numpy(np.array([png(image) for image in images], dtype=object))
        wanted = [triton.InferRequestedOutput("is_ood", binary_data=True)]
        found = client.infer("fused", [one], model_version="1", outputs=wanted, headers=self.headers)
        assert found.as_numpy("is_ood").tolist() == expected.is_ood.tolist()
        assert found.as_numpy("score") is None

    def test_errors_are_the_clients_own(self, client):
        one = triton.InferInput("image", [1], "BYTES")
        one.set_data_from_numpy(np.array([b"no image"], dtype=object))
        with pytest.raises(InferenceServerException, match="image 0 is truncated"):
            client.infer("ssd", [one], headers=self.headers)
        with pytest.raises(InferenceServerException, match="send the token"):
            client.infer("ssd", [one])


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_is_told_that_a_body_is_too_long(service, tmp_path):
    """Though it is still sending when that is known."""
    (tmp_path / "long").write_bytes(bytes(40_000_000))
    head, form = "Authorization: Bearer secret", f"file=@{tmp_path / 'long'}"
    command = ["curl", "--silent", "--max-time", "20", "-H", head, "-F", form]
    done = subprocess.run([*command, f"{service.address}v1/check"], capture_output=True, timeout=120, check=True)
    assert "longer than" in json.loads(done.stdout)["error"]
