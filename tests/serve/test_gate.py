"""Who may ask without a token, and requests that must not make the service fail."""

import asyncio

import pytest
from starlette.datastructures import Headers

from outfield.serve import Limits
from outfield.serve.body import uploads_of
from outfield.serve.inference_protocol import parse
from outfield.serve.limits import Refused
from outfield.serve.routes import check_head


def check(host, server=("127.0.0.1", 8000), token=None, **more):
    headers = {"host": host, **more} if host is not None else more
    scope = {"type": "http", "path": "/v1/guards", "headers": Headers(headers).raw, "server": server}
    check_head(scope, token)


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:8000", "127.0.0.2", "[::1]:8000", None])
def test_names_of_this_machine_are_answered(host):
    check(host)


@pytest.mark.parametrize("host", ["evil.com", "evil.com:8000", "127.0.0.1.evil.com", "10.0.0.1"])
def test_other_names_of_a_loopback_address_are_refused(host):
    with pytest.raises(Refused, match=r"without a token.*localhost") as refused:
        check(host, origin=f"http://{host}")
    assert refused.value.status == 403
    with pytest.raises(Refused, match="without a token"):
        check(host, server=("::1", 8000, 0, 0))


def test_with_a_token_or_on_another_address_names_do_not_matter():
    check("evil.com", token="secret", authorization="Bearer secret")
    check("models.example", server=("10.0.0.7", 8000))
    check("models.example", server=None)


def test_a_length_of_thousands_of_digits_is_a_bad_request():
    with pytest.raises(Refused, match="Inference-Header-Content-Length") as refused:
        parse(bytearray(b"{}"), "9" * 6000)
    assert refused.value.status == 400


def test_half_a_million_inputs_are_too_many():
    with pytest.raises(Refused, match="has 10,001 inputs; at most 10,000 are taken") as refused:
        parse(bytearray(b'{"inputs": [' + b",".join([b"{}"] * 10_001) + b"]}"), None)
    assert refused.value.status == 413


def test_a_boundary_that_is_too_long_is_a_bad_request():
    with pytest.raises(Refused, match="the form is broken") as refused:
        asyncio.run(uploads_of(bytearray(b"x"), "multipart/form-data; boundary=" + "x" * 5000, Limits()))
    assert refused.value.status == 400
