"""HTTPS of a replica: it serves with a good certificate, and says what is wrong with a bad one before it starts."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from common.errors import UserError
from common.tls import tls_options
from tests.helpers.certificates import Certificate, make_certificate
from tests.helpers.replica_app import serving
from tests.helpers.text_models import save_tokenizer
from worker.config import WorkerSettings
from worker.server.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def own(folder: Path) -> Certificate:
    return make_certificate(folder, "own")


@pytest.fixture(scope="module")
def clients(folder: Path) -> Certificate:
    return make_certificate(folder, "clients")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(str(save_tokenizer(folder / "tokenizer")))


def flags(certificate: Certificate, **more: str) -> dict[str, str]:
    return {"ssl_certfile": str(certificate.cert), "ssl_keyfile": str(certificate.key)} | more


async def test_https(tokenizer: Tokenizer, own: Certificate) -> None:
    async with serving(tokenizer, **flags(own)) as app:
        assert app.url.startswith("https://127.0.0.1:")
        async with httpx.AsyncClient(base_url=app.url, verify=own.client()) as client:
            assert (await client.post("/generate", json={"text": "hi"})).json()["text"] == "hello"
        async with httpx.AsyncClient(base_url=app.url.replace("https", "http")) as client:
            with pytest.raises(httpx.TransportError):
                await client.get("/health")


async def test_clients_with_certificates_only(tokenizer: Tokenizer, own: Certificate, clients: Certificate) -> None:
    async with serving(tokenizer, **flags(own, ssl_ca_certs=str(clients.cert))) as app:
        async with httpx.AsyncClient(base_url=app.url, verify=own.client(clients)) as client:
            assert (await client.get("/health")).status_code == 200
        async with httpx.AsyncClient(base_url=app.url, verify=own.client()) as client:
            with pytest.raises(httpx.TransportError):
                await client.get("/health")


async def test_a_key_with_a_password(tokenizer: Tokenizer, folder: Path) -> None:
    locked = make_certificate(folder, "locked", "let me in")
    async with (
        serving(tokenizer, **flags(locked, ssl_keyfile_password="let me in")) as app,
        httpx.AsyncClient(base_url=app.url, verify=locked.client()) as client,
    ):
        assert (await client.get("/health")).status_code == 200
    for wrong in ({}, {"ssl_keyfile_password": "no"}):
        with pytest.raises(UserError, match="--ssl-keyfile-password"):
            tls_options(WorkerSettings(model_path="m", **flags(locked, **wrong)))


def test_files_that_do_not_serve(own: Certificate, clients: Certificate, folder: Path) -> None:
    text = folder / "text"
    text.write_text("no certificate")
    for change, message in (
        ({"ssl_keyfile": "/no/key"}, "--ssl-keyfile: there is no file /no/key."),
        ({"ssl_certfile": "/no/cert"}, "--ssl-certfile: there is no file /no/cert."),
        ({"ssl_ca_certs": "/no/ca"}, "--ssl-ca-certs: there is no file /no/ca."),
        ({"ssl_keyfile": str(clients.key)}, f"--ssl-keyfile {clients.key} do not serve"),
        ({"ssl_certfile": str(text)}, f"--ssl-certfile {text} and"),
        ({"ssl_ca_certs": str(text)}, "holds no CA certificates"),
    ):
        with pytest.raises(UserError) as fault:
            tls_options(WorkerSettings(model_path="m", **flags(own, **change)))
        assert message in str(fault.value) and "\n" not in str(fault.value)


def test_no_certificate_means_http() -> None:
    assert tls_options(WorkerSettings(model_path="m")) == {}
