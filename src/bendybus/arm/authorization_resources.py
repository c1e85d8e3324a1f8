"""What requests do to authorization rules: of a namespace, of a queue and of a topic.

Keys are in no description. `listKeys` shows them, with connection strings for the address that the client
called. How rules are kept and changed: admin/authorization_rules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final

from bendybus.admin.authorization_rules import AuthorizationRules, WhichKey, check_key
from bendybus.arm.access import is_loopback
from bendybus.arm.calls import NOTHING, Answer, Call, listed
from bendybus.arm.errors import ParentNotFound
from bendybus.arm.members import member, refuse_unknown
from bendybus.auth.connection_strings import local_connection_string
from bendybus.auth.key_ring import ROOT_RULE_NAME
from bendybus.broker.queue import Queue
from bendybus.broker.topic import Topic
from bendybus.domain.access import RIGHTS, AuthorizationRule
from bendybus.errors import ArgumentError, RuleNotFound
from bendybus.namespaces import Namespace, Namespaces

__all__ = ["AuthorizationResources"]

_KEYS: Final[Mapping[str, WhichKey]] = {"primarykey": "primary", "secondarykey": "secondary"}
_PORTS: Final = {"https": 443, "http": 80}


class AuthorizationResources:
    def __init__(
        self,
        namespaces: Namespaces,
        rules_of: Callable[[Namespace], AuthorizationRules],
        *,
        tls_only: bool,
    ) -> None:
        """`tls_only`: whether clients must use TLS, so that connection strings say it."""
        self._namespaces = namespaces
        self._rules_of = rules_of
        self._tls_only = tls_only

    async def list_rules(self, call: Call) -> Answer:
        namespace, scope, rules = self._scope(call)

        async def show(rule: AuthorizationRule) -> Mapping[str, object]:
            return _shown(call, namespace, scope, rule)

        return await listed(call, rules.rules(scope), show)

    async def get_rule(self, call: Call) -> Answer:
        namespace, scope, rules = self._scope(call)
        return _shown(call, namespace, scope, rules.find(scope, call.names["rule"])), HTTPStatus.OK

    async def put_rule(self, call: Call) -> Answer:
        namespace, scope, rules = self._scope(call)
        name, given = call.names["rule"], call.properties()
        refuse_unknown(f"Authorization rule '{name}'", given, ("rights",))
        rights = member(given, "rights", list)
        if not rights or not all(isinstance(right, str) for right in rights):
            raise ArgumentError('\'rights\' must be a list such as ["Send", "Listen"].')
        if not scope and name == ROOT_RULE_NAME and set(rights) == set(RIGHTS):
            # It is what it always is.
            return _shown(call, namespace, scope, rules.find(scope, name)), HTTPStatus.OK
        rule, _ = await rules.put(scope, name, rights, None, None)
        return _shown(call, namespace, scope, rule), HTTPStatus.OK

    async def delete_rule(self, call: Call) -> Answer:
        _, scope, rules = self._scope(call)
        try:
            rules.find(scope, call.names["rule"])
        except RuleNotFound:
            return NOTHING
        await rules.remove(scope, call.names["rule"])
        return None, HTTPStatus.OK

    async def list_keys(self, call: Call) -> Answer:
        namespace, scope, rules = self._scope(call)
        return self._keys(call, namespace, scope, rules.find(scope, call.names["rule"])), HTTPStatus.OK

    async def regenerate_keys(self, call: Call) -> Answer:
        namespace, scope, rules = self._scope(call)
        name = call.names["rule"]
        refuse_unknown("The body", call.body, ("keyType", "key"))
        which = _KEYS.get((member(call.body, "keyType", str) or "").lower())
        if which is None:
            raise ArgumentError("'keyType' must be PrimaryKey or SecondaryKey.")
        key = member(call.body, "key", str)
        rule = await rules.regenerate(scope, name, which, None if not key else check_key(name, key))
        return self._keys(call, namespace, scope, rule), HTTPStatus.OK

    def _scope(self, call: Call) -> tuple[Namespace, str, AuthorizationRules]:
        """The namespace, the queue or topic whose rules are meant, or nothing for the namespace's own."""
        namespace = call.namespace(self._namespaces)
        queue, topic = call.names.get("queue"), call.names.get("topic")
        call.caller.require(namespace, queue or topic or "")
        found: Queue | Topic | None = None
        if queue is not None:
            found = namespace.broker.queues.find(queue)
        elif topic is not None:
            found = namespace.broker.topics.find(topic)
        if found is None and (queue or topic):
            raise ParentNotFound(f"The parent resource '{queue or topic}' could not be found.")
        return namespace, "" if found is None else found.path, self._rules_of(namespace)

    def _keys(
        self, call: Call, namespace: Namespace, scope: str, rule: AuthorizationRule
    ) -> dict[str, object]:
        def string(key: str) -> str:
            host, port = self._address(call, namespace, rule.name, key)
            text = local_connection_string(host, port, key, rule.name, tls=self._tls_only)
            return f"{text};EntityPath={scope}" if scope else text

        secondary = rule.secondary_key or rule.primary_key
        return {
            "primaryConnectionString": string(rule.primary_key),
            "secondaryConnectionString": string(secondary),
            "primaryKey": rule.primary_key,
            "secondaryKey": secondary,
            "keyName": rule.name,
        }

    def _address(self, call: Call, namespace: Namespace, rule: str, key: str) -> tuple[str, int]:
        """Where the client called, by a name that leads to this namespace if the key does not."""
        host, port = call.url.hostname or "", call.url.port or _PORTS[call.url.scheme]
        if self._namespaces.opened_by(rule, key) is not namespace:
            host = f"{namespace.name.lower()}.{'localhost' if is_loopback(host) else host}"
        return host, port


def _shown(call: Call, namespace: Namespace, scope: str, rule: AuthorizationRule) -> dict[str, object]:
    entity = ("queues" if "queue" in call.names else "topics", scope) if scope else ()
    path = ("namespaces", namespace.name, *entity, "authorizationRules", rule.name)
    return call.shown(rule.name, {"rights": list(rule.rights)}, *path)
