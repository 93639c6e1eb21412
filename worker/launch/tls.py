"""TLS of the replica's HTTP server: uvicorn's options, after a look whether they can work."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.settings import flag_of
from worker.config import WorkerSettings


def tls_options(settings: WorkerSettings) -> dict[str, Any]:
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
