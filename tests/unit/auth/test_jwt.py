"""Which JSON Web Tokens are believed, and what their roles are worth."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import RSAAlgorithm

from bendybus.auth.claims import Claim, log_in, put_token
from bendybus.auth.jwt import DEFAULT_AUDIENCES, KeySet, TrustedIssuer, issuer_names
from bendybus.auth.key_ring import AccessRule, KeyRing
from bendybus.auth.rights import Right
from bendybus.auth.roles import WELL_KNOWN_ROLES, Role
from bendybus.auth.sas import make_token
from bendybus.errors import ArgumentError, Unauthorized
from bendybus.names import Instant
from fix_jwt import AUDIENCE, ISSUER, MAKERS, OWNER, RECEIVER, SENDER, Provider

PROVIDER = Provider()
ALL = Right.SEND | Right.LISTEN | Right.MANAGE


class Keys:
    def __init__(self, *keys: dict[str, Any]) -> None:
        self._set = KeySet.parse({"keys": list(keys)})
        self.missed_times = 0

    def current(self) -> KeySet:
        return self._set

    def missed(self) -> None:
        self.missed_times += 1


def now() -> Instant:
    return Instant(int(time.time() * 1000))


def ring(*keys: dict[str, Any], roles: tuple[str, ...] = ()) -> KeyRing:
    given_roles = [*WELL_KNOWN_ROLES, *map(Role.parse, roles)]
    return KeyRing(issuer=TrustedIssuer(ISSUER, (AUDIENCE,), Keys(*(keys or (PROVIDER.jwk,))), given_roles))


def refused(token: str, keys: KeyRing | None = None, path: str = "orders") -> tuple[int, str]:
    with pytest.raises(Unauthorized) as refusal:
        put_token(keys or ring(), token, f"sb://h/{path}", now())
    return refusal.value.sub_code, str(refusal.value)


def segment(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


@pytest.mark.parametrize("algorithm", MAKERS)
def test_a_token_that_the_provider_signed_is_believed(algorithm: str) -> None:
    provider = Provider(algorithm)
    at = int(time.time())
    claim = put_token(ring(provider.jwk), provider.token(SENDER, exp=at + 600), "sb://h/Orders", now())
    assert (claim.path_prefix, claim.rights) == ("orders", Right.SEND)
    assert claim.expires_at == (at + 600) * 1000


@pytest.mark.parametrize("prefix", ["", "Bearer ", "bearer "])
def test_the_name_of_the_scheme_may_stand_before_it(prefix: str) -> None:
    assert put_token(ring(), prefix + PROVIDER.token(RECEIVER), "sb://h/q", now()).rights == Right.LISTEN


@pytest.mark.parametrize(
    ("claims", "sub_code"),
    [
        ({"iss": "https://login.example/another"}, 40103),
        ({"iss": None}, 40103),
        ({"aud": "https://storage.azure.com"}, 40104),
        ({"aud": None}, 40104),
        ({"aud": [5, "x"]}, 40104),
        ({"exp": None}, 40105),
        ({"exp": 1}, 40106),
        ({"exp": "tomorrow"}, 40105),
        ({"exp": True}, 40105),
        ({"nbf": 4_000_000_000}, 40106),
        ({"iat": 4_000_000_000}, 40106),
        ({"roles": ["Reader"]}, 40104),
        ({"roles": None}, 40104),
        ({"roles": {SENDER: True}}, 40104),
        ({"roles": [[SENDER]]}, 40104),
    ],
    ids=repr,
)
def test_a_token_that_says_the_wrong_thing_is_refused(claims: dict[str, Any], sub_code: int) -> None:
    assert refused(PROVIDER.token(SENDER, **claims))[0] == sub_code


@pytest.mark.parametrize("claims", [{"exp": math.inf}, {"exp": math.nan}, {"nbf": -math.inf}], ids=repr)
def test_a_time_that_is_no_number_is_refused(claims: dict[str, Any]) -> None:
    assert refused(PROVIDER.token(SENDER, **claims))[0] == 40105


@pytest.mark.parametrize(
    "claims", [{"aud": [AUDIENCE, "x"]}, {"aud": AUDIENCE + "/"}, {"nbf": None}], ids=repr
)
def test_what_providers_vary_in_does_not_matter(claims: dict[str, Any]) -> None:
    put_token(ring(), PROVIDER.token(SENDER, **claims), "sb://h/q", now())


def test_the_provider_s_clock_may_be_a_minute_ahead_and_no_more() -> None:
    at = time.time()
    put_token(ring(), PROVIDER.token(SENDER, nbf=at + 50, iat=at + 50), "sb://h/q", now())
    assert refused(PROVIDER.token(SENDER, nbf=at + 90))[0] == 40106


def test_a_token_without_a_signature_is_refused() -> None:
    claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 600, "roles": [OWNER]}
    for algorithm in ("none", "None", "NONE", "nOnE"):
        for signature in ("", "AAAA"):
            token = f"{segment({'alg': algorithm, 'kid': 'key-1'})}.{segment(claims)}.{signature}"
            assert refused(token)[0] == 40103


def test_the_public_key_is_not_taken_for_a_shared_secret() -> None:
    claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 600, "roles": [OWNER]}
    public = PROVIDER.key.public_key()
    for secret in (
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        json.dumps(PROVIDER.jwk).encode(),
    ):
        signed = f"{segment({'alg': 'HS256', 'typ': 'JWT', 'kid': 'key-1'})}.{segment(claims)}"
        digest = hmac.digest(secret, signed.encode(), hashlib.sha256)
        token = f"{signed}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"
        assert refused(token)[0] == 40103


def test_another_s_key_of_the_same_name_proves_nothing() -> None:
    keys = ring()
    assert refused(Provider().token(OWNER), keys)[0] == 40103
    assert keys.issuer is not None and keys.issuer.keys.missed_times == 1


def test_a_key_is_good_for_the_kinds_of_signature_that_fit_it_alone() -> None:
    assert refused(Provider("ES256").token(OWNER))[0] == 40103
    named = {**PROVIDER.jwk, "alg": "RS512"}
    assert refused(PROVIDER.token(OWNER), ring(named))[0] == 40103


def test_changing_a_claim_breaks_the_signature() -> None:
    head, body, signature = PROVIDER.token(SENDER).split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    assert refused(f"{head}.{segment({**claims, 'roles': [OWNER]})}.{signature}")[0] == 40103


def test_a_key_set_leaves_out_what_cannot_prove_anything() -> None:
    weak = RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 1024).public_key(), as_dict=True)
    private = RSAAlgorithm.to_jwk(PROVIDER.key, as_dict=True)
    useless = [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "s"},
        weak,
        private,
        {**PROVIDER.jwk, "use": "enc"},
        {"kty": "RSA"},
        {"kty": ["RSA"], "crv": {}},
        "text",
        None,
    ]
    assert (
        KeySet.parse({"keys": [*useless, PROVIDER.jwk]}).keys == KeySet.parse({"keys": [PROVIDER.jwk]}).keys
    )
    with pytest.raises(ValueError, match="none of its keys"):
        KeySet.parse({"keys": useless})
    for document in ([], {}, {"keys": {}}, None):
        with pytest.raises(ValueError, match="no list 'keys'"):
            KeySet.parse(document)


def test_a_role_is_worth_what_the_operator_says_where_he_says() -> None:
    keys = ring(roles=("shop=Send", "clerk=Send,Listen@Orders"))
    assert put_token(keys, PROVIDER.token("shop"), "sb://h/any", now()).rights == Right.SEND
    clerk = put_token(keys, PROVIDER.token("clerk", RECEIVER), "sb://h/orders/$management", now())
    assert clerk.rights == Right.SEND | Right.LISTEN
    assert put_token(keys, PROVIDER.token("clerk", RECEIVER), "sb://h/other", now()).rights == Right.LISTEN
    assert refused(PROVIDER.token("clerk"), keys, "orders2")[0] == 40104
    assert refused(PROVIDER.token("clerk"), keys, "")[0] == 40104
    assert put_token(keys, PROVIDER.token(OWNER), "sb://h", now()).rights == ALL


def test_a_role_over_a_path_below_an_entity_says_nothing_about_the_entity() -> None:
    # `q/messages` may be a queue; its manager must not send to `q` by POST /q/messages.
    keys = ring(roles=("below=Manage@q/messages",))
    put_token(keys, PROVIDER.token("below"), "sb://h/q/messages", now())
    assert refused(PROVIDER.token("below"), keys.reaching("q"), "q/messages")[0] == 40104


@pytest.mark.parametrize(
    "text", ["", "x", "=Send", "x=", "x=Own", "x=Send,", "x=@q", "oid:=Send", "group: =Send", "x=Send@a/../b"]
)
def test_a_role_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError):
        Role.parse(text)


BEARER = "0f8fad5b-d9cb-469f-a165-70867728950e"


@pytest.mark.parametrize(
    ("assigned", "claims"),
    [
        (f"oid:{BEARER}", {"oid": BEARER.upper()}),
        (f"appid:{BEARER}", {"appid": BEARER}),
        (f"appid:{BEARER}", {"azp": BEARER}),
        (f"group:{BEARER}", {"groups": ["other", BEARER]}),
        ("role:clerk", {"roles": ["clerk"]}),
        ("api:send", {"roles": ["api:send"]}),
        ("group", {"roles": ["group"]}),
    ],
)
def test_rights_are_assigned_to_roles_objects_applications_and_groups(assigned, claims) -> None:
    keys = ring(roles=(f"{assigned}=Azure Service Bus Data Receiver@news/Subscriptions/all",))
    token = PROVIDER.token(**{"roles": None, **claims})
    assert put_token(keys, token, "sb://h/news/subscriptions/ALL/$management", now()).rights == Right.LISTEN
    for elsewhere in ("news", "news/subscriptions/other", ""):
        assert refused(token, keys, elsewhere)[0] == 40104


@pytest.mark.parametrize(
    "claims",
    [{"oid": "another"}, {"groups": BEARER[:-1]}, {"sub": BEARER}, {"roles": [BEARER]}, {"oid": [1]}, {}],
)
def test_what_is_assigned_to_one_is_nobody_elses(claims) -> None:
    keys = ring(roles=(f"oid:{BEARER}=Send", f"group:{BEARER}=Send", f"appid:{BEARER}=Send"))
    assert refused(PROVIDER.token(**{"roles": None, **claims}), keys)[0] == 40104


def test_groups_that_were_left_out_of_a_token_are_said_to_be() -> None:
    keys = ring(roles=(f"group:{BEARER}=Send",))
    token = PROVIDER.token(_claim_names={"groups": "src1"})
    assert "too many" in refused(token, keys)[1]


TENANT = "72f988bf-86f1-41af-91ab-2d7cd011db47"
V1, V2 = f"https://sts.windows.net/{TENANT}/", f"https://login.microsoftonline.com/{TENANT}/v2.0"


def test_a_tenant_has_two_names_and_any_other_issuer_one() -> None:
    assert issuer_names(V1) == issuer_names(V2) == {V1, V2}
    assert issuer_names(ISSUER) == {ISSUER}
    assert issuer_names(f"{V2}/evil") == {f"{V2}/evil"}


def test_a_token_may_be_for_service_bus_or_for_the_namespace_and_for_no_other() -> None:
    issuer = TrustedIssuer(ISSUER, DEFAULT_AUDIENCES, Keys(PROVIDER.jwk)).of_namespace("Orders")
    keys = KeyRing(issuer=issuer)
    for audience in (
        "https://servicebus.azure.net",
        "https://servicebus.azure.net/",
        "80a10ef9-8168-493d-abf9-3297c4ef6e3c",
        "https://orders.servicebus.windows.net/",
    ):
        put_token(keys, PROVIDER.token(OWNER, aud=audience), "sb://h/q", now())
    for audience in ("https://invoices.servicebus.windows.net", "https://eventhubs.azure.net"):
        assert refused(PROVIDER.token(OWNER, aud=audience), keys)[0] == 40104


def test_where_local_authentication_is_off_only_tokens_of_the_issuer_count() -> None:
    issuer = TrustedIssuer(ISSUER, (AUDIENCE,), Keys(PROVIDER.jwk))
    keys = KeyRing([AccessRule.root("key")], issuer, local_auth=False)
    for path in ("", "q"):
        signed = make_token(f"sb://h/{path}", "RootManageSharedAccessKey", "key", now() // 1000 + 60)
        code, said = refused(signed, keys, path)
        assert (code, said.startswith("LocalAuthDisabled: ")) == (40107, True)
        assert refused(signed, keys.reaching("q"), path)[0] == 40107
        put_token(keys.reaching("q"), PROVIDER.token(OWNER), f"sb://h/{path}", now())
    with pytest.raises(Unauthorized, match="LocalAuthDisabled"):
        log_in(keys, "RootManageSharedAccessKey", "key", now())
    assert log_in(keys, "$jwt", PROVIDER.token(OWNER), now())[0].rights == ALL


def test_a_login_with_a_token_has_all_scopes_of_its_bearer_until_the_token_ends() -> None:
    at = int(time.time())
    keys = ring(roles=("clerk=Send@Orders", "clerk=Listen@orders", "clerk=Listen"))
    claims = log_in(keys, "$jwt", PROVIDER.token("clerk", exp=at + 600), now())
    ends_at = Instant((at + 600) * 1000)
    expected = [Claim("orders", Right.SEND | Right.LISTEN, ends_at), Claim("", Right.LISTEN, ends_at)]
    assert sorted(claims, key=str) == sorted(expected, key=str)
    for token in (
        PROVIDER.token(),
        PROVIDER.token("clerk", exp=at - 600),
        "no-token",
        Provider().token("clerk"),
    ):
        with pytest.raises(Unauthorized):
            log_in(keys, "$jwt", token, now())
    with pytest.raises(Unauthorized, match="not configured"):
        log_in(KeyRing(), "$jwt", PROVIDER.token(OWNER), now())


def test_without_an_issuer_no_token_of_others_is_taken() -> None:
    assert "not configured" in refused(PROVIDER.token(OWNER), KeyRing())[1]


@given(
    st.one_of(
        st.text("abcABC123_-.", max_size=60),
        st.tuples(
            *[st.binary(max_size=40).map(lambda b: base64.urlsafe_b64encode(b).decode().rstrip("="))] * 3
        ).map(".".join),
        st.tuples(
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                lambda inner: st.dictionaries(st.sampled_from(["alg", "kid", "crit", "b64"]), inner),
            ).map(segment),
            st.just(segment({"exp": 1})),
        ).map(lambda parts: ".".join((*parts, "AAAA"))),
    )
)
def test_whatever_is_put_is_refused_by_name(token: str) -> None:
    with pytest.raises(Unauthorized):
        put_token(KEYS, token, "sb://h/q", now())


KEYS = ring()
