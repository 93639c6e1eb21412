"""TLS of an HTTP server: its settings, and uvicorn's options after a look whether they can work."""

from __future__ import annotations

import ssl
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import model_validator

from common.errors import UserError
from common.settings import Settings, flag_of, option

_option = partial(option, category="HTTP server")


class TlsSettings(Settings):
    """TLS of an HTTP server."""

    ssl_keyfile: str | None = _option(None, "TLS private key, PEM; needs --ssl-certfile", min_length=1, path=True)
    ssl_certfile: str | None = _option(None, "TLS certificate chain, PEM; needs --ssl-keyfile", min_length=1, path=True)
    ssl_ca_certs: str | None = _option(
        None, "CA certificates, PEM; clients must show a certificate that they signed", min_length=1, path=True
    )
    ssl_keyfile_password: str | None = _option(None, "password of the TLS private key", min_length=1, secret=True)

    @model_validator(mode="after")
    def _check_tls(self) -> TlsSettings:
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            raise ValueError("--ssl-keyfile and --ssl-certfile go together; give both or none.")
        for name in ("ssl_ca_certs", "ssl_keyfile_password"):
            if getattr(self, name) is not None and self.ssl_keyfile is None:
                raise ValueError(
                    f"{flag_of(name)} needs --ssl-keyfile and --ssl-certfile; give them too, or leave it out."
                )
        return self

    @property
    def tls(self) -> bool:
        """Whether clients must speak TLS."""
        return self.ssl_certfile is not None


def tls_options(settings: TlsSettings) -> dict[str, Any]:
    """Arguments for uvicorn.Config; none without a certificate. Raises UserError for files that do not serve."""
    if settings.ssl_certfile is None:
        return {}
    for name in ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs"):
        path = getattr(settings, name)
        if path is not None and not Path(path).is_file():
            raise UserError(f"{flag_of(name)}: there is no file {path}.")
    password = settings.ssl_keyfile_password or ""  # without one OpenSSL would ask at the terminal
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, lambda: password)
    except (ssl.SSLError, OSError) as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"--ssl-certfile {settings.ssl_certfile} and --ssl-keyfile {settings.ssl_keyfile} do not serve ({reason}); "
            "give a certificate and its own private key in PEM, with --ssl-keyfile-password if the key has one."
        ) from None
    if settings.ssl_ca_certs is not None:
        try:
            context.load_verify_locations(settings.ssl_ca_certs)
        except (ssl.SSLError, OSError) as error:
            raise UserError(f"--ssl-ca-certs {settings.ssl_ca_certs} holds no CA certificates ({error}).") from None
    return {
        "ssl_keyfile": settings.ssl_keyfile,
        "ssl_certfile": settings.ssl_certfile,
        "ssl_keyfile_password": settings.ssl_keyfile_password,
        "ssl_ca_certs": settings.ssl_ca_certs,
        "ssl_cert_reqs": ssl.CERT_NONE if settings.ssl_ca_certs is None else ssl.CERT_REQUIRED,
    }
