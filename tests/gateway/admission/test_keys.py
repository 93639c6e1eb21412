"""Keys: who may do what, and the key file."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import UserError
from gateway.admission.key_use import KeyUse, TooMuch
from gateway.admission.keys import Access, Caller, Keyring, read_key_file

CLIENT, ADMIN, OPEN = Access.CLIENT, Access.ADMIN, Access.OPEN
KEYS = [("client-key", Caller("c"))]


def bearer(key: str) -> list[tuple[bytes, bytes]]:
    return [(b"x-other", b"1"), (b"authorization", f"Bearer {key}".encode())]


@pytest.mark.parametrize(
    ("keyring", "access", "key", "status"),
    [
        (Keyring([]), CLIENT, None, None),
        (Keyring([]), ADMIN, None, None),
        (Keyring(KEYS), OPEN, None, None),
        (Keyring(KEYS), CLIENT, None, 401),
        (Keyring(KEYS), CLIENT, "client-kez", 401),
        (Keyring(KEYS), CLIENT, "client-key", None),
        (Keyring(KEYS), ADMIN, "client-key", None),
        (Keyring(KEYS), ADMIN, None, 401),
        (Keyring(KEYS, "admin-key"), CLIENT, "admin-key", None),
        (Keyring(KEYS, "admin-key"), ADMIN, "admin-key", None),
        (Keyring(KEYS, "admin-key"), ADMIN, "client-key", 403),
        (Keyring(KEYS, "admin-key"), ADMIN, None, 403),
        (Keyring(KEYS, "admin-key"), ADMIN, "wrong", 401),
        (Keyring([], "admin-key"), CLIENT, None, None),
        (Keyring([], "admin-key"), ADMIN, None, 403),
    ],
)
def test_who_may_do_what(keyring: Keyring, access: Access, key: str | None, status: int | None) -> None:
    fault = keyring.fault(access, bearer(key) if key else [])
    assert (fault.status if fault else None) == status


def test_only_a_bearer_token_is_a_key() -> None:
    keyring = Keyring(KEYS)
    for value in (b"client-key", b"Basic client-key", b"Bearer", b"Bearer \xff"):
        assert keyring.caller([(b"authorization", value)]) is None
    for value in (b"Bearer client-key", b"bearer  client-key "):
        assert keyring.caller([(b"authorization", value)]) == Caller("c")


def test_no_key_is_in_what_the_ring_shows() -> None:
    assert "client-key" not in repr(vars(Keyring(KEYS)))


def test_the_key_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("- {key: a, name: alice, priority: 5, requests_per_second: 2}\n- key: b\n")
    alice, other = read_key_file(str(file))
    assert (alice.key, alice.name, alice.priority, alice.requests_per_second) == ("a", "alice", 5, 2.0)
    assert (other.key, other.max_concurrent_requests) == ("b", None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"),
        ("", "not a YAML list"),
        ("[]", "no keys"),
        ("- key: ''", "empty"),
        ("- {key: secret-1, limit: 3}", "limit"),
        ("- {key: secret-1}\n- {key: secret-1}", "twice"),
        ("- {key: secret-1, requests_per_second: -1}", ">= 0"),
        ("- [", "not a YAML list"),
    ],
)
def test_faults_of_the_key_file_are_one_sentence_without_keys(tmp_path: Path, text: str | None, says: str) -> None:
    file = tmp_path / "keys.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match=says) as caught:
        read_key_file(str(file))
    assert "secret-1" not in str(caught.value) and str(caught.value).endswith(".")


def test_limits_of_a_key() -> None:
    use, caller = KeyUse(), Caller("c", max_concurrent=2)
    use.begin(caller, 0.0)
    use.begin(caller, 0.0)
    use.begin(Caller("other", max_concurrent=1), 0.0)
    with pytest.raises(TooMuch) as caught:
        use.begin(caller, 0.0)
    assert (caught.value.status, caught.value.retry_after_s) == (429, 1)
    use.end(caller)
    use.begin(caller, 0.0)
    use.end(caller)
    use.end(caller)
    assert use.count(caller) == 0


def test_rate_of_a_key() -> None:
    use, caller = KeyUse(), Caller("c", requests_per_s=0.25)
    use.begin(caller, 0.0)
    with pytest.raises(TooMuch) as caught:
        use.begin(caller, 1.0)
    assert (caught.value.code, caught.value.retry_after_s) == ("rate_limit_exceeded", 3)
    use.begin(caller, 4.0)
    assert use.count(caller) == 2
