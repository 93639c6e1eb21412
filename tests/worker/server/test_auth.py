"""Keys: who may call which route, and that nothing tells them."""

from __future__ import annotations

import pytest

from tests.helpers.replica_app import App, serving
from worker.server.app import _ROUTES
from worker.server.auth import Access, Keys
from worker.server.errors import RequestFault
from worker.server.tokenizer import Tokenizer

API, ADMIN = "key-of-clients", "key-of-admins"
OPEN_ROUTES = ["/health", "/health_generate", "/metrics"]
ADMIN_ROUTES = ["/flush_cache", "/abort_request", "/v1/hot_prefixes", "/pause_generation", "/continue_generation"]
ADMIN_ROUTES += ["/update_weights_from_disk", "/start_profile", "/stop_profile"]


async def status(app: App, path: str, key: str | None, scheme: str = "Bearer") -> int:
    """The status of a call with a key; a body that nobody takes keeps the call short."""
    methods = next(methods for methods, route, _ in _ROUTES if route == path) if path != "/metrics" else "GET"
    headers = {} if key is None else {"authorization": f"{scheme} {key}"}
    method = methods.split()[0]
    response = await app.client.request(method, path.replace("{name:path}", "tiny"), headers=headers)
    if response.status_code == 401:
        error = response.json()["error"]
        assert error["type"] == "authentication_error"
        assert path.startswith("/v1/messages") or error["code"] == "invalid_api_key"  # Anthropic's errors have no code
        assert response.headers["www-authenticate"] == "Bearer"
        assert key is None or key not in response.text
    return response.status_code


CLIENT_ROUTES = [path for _, path, _ in _ROUTES if path not in OPEN_ROUTES + ADMIN_ROUTES]


async def test_without_keys_everything_is_open(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as app:
        for path in CLIENT_ROUTES + ADMIN_ROUTES + OPEN_ROUTES:
            assert await status(app, path, None) != 401


async def test_with_an_api_key_all_but_health_and_metrics_need_it(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, api_key=API) as app:
        for path in CLIENT_ROUTES + ADMIN_ROUTES:
            assert await status(app, path, None) == 401, path
            assert await status(app, path, "other") == 401, path
            assert await status(app, path, API) != 401, path
        for path in OPEN_ROUTES:
            assert await status(app, path, None) == 200, path


async def test_with_both_keys_admin_routes_need_the_admin_key(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, api_key=API, admin_api_key=ADMIN) as app:
        for path in ADMIN_ROUTES:
            assert await status(app, path, API) == 401, path
            assert await status(app, path, ADMIN) != 401, path
        for path in CLIENT_ROUTES:
            assert await status(app, path, API) != 401, path
            assert await status(app, path, ADMIN) != 401, path


async def test_with_an_admin_key_alone_only_admin_routes_are_closed(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, admin_api_key=ADMIN) as app:
        assert {await status(app, path, None) for path in ADMIN_ROUTES} == {401}
        assert 401 not in {await status(app, path, None) for path in CLIENT_ROUTES}


async def test_a_root_path_opens_nothing(tokenizer: Tokenizer) -> None:
    """The proxy in front has cut it off, or the request has not come through the proxy."""
    async with serving(tokenizer, admin_api_key=ADMIN, fastapi_root_path="/prefix") as app:
        assert (await app.client.post("/flush_cache")).status_code == 401
        assert (await app.client.post("/prefix/flush_cache")).status_code == 404
        redirect = await app.client.get("/health/")
        assert redirect.headers["location"].endswith("/prefix/health")


async def test_keys_are_shown_nowhere(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, api_key=API, admin_api_key=ADMIN) as app:
        headers = {"authorization": f"bearer {API}"}
        shown = (await app.client.get("/server_info", headers=headers)).text
        assert API not in shown and ADMIN not in shown and "schedule_policy" in shown
        assert API not in repr(app.service.settings) and ADMIN not in str(app.service.settings)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", API, f"Basic {API}", f"Bearer {API}x", "Bearer ké"])
def test_headers_that_hold_no_key(header: str | None) -> None:
    keys = Keys(API, None)
    with pytest.raises(RequestFault, match="Authorization: Bearer KEY"):
        keys.check(Access.CLIENT, header)
    keys.check(Access.OPEN, header)
    keys.check(Access.CLIENT, f"BEARER {API}")


async def test_metrics_can_be_switched_off(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, enable_metrics=False) as app:
        assert (await app.client.get("/metrics")).status_code == 404
    async with serving(tokenizer) as app:
        assert (await app.client.get("/metrics")).status_code == 200
