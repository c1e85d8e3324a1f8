"""Which test covers this file? Every module with logic has tests that can be found from its name.

The tests of `src/bendybus/X/Y.py` are in `tests/unit/X`, in a file whose name contains the module's:
`test_Y.py`, `test_Y_<subject>.py` or `test_<subject>_Y.py`. Some packages have a folder of their own
(FOLDERS). A module that is part of a larger subject is listed in `COVERS` with the file that tests it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
SRC, TESTS = ROOT / "src", ROOT / "tests"

# Package -> where its tests are, if that is not `tests/unit/<package>`.
FOLDERS = {
    "bendybus/client": "client",
    "bendybus/store": "store",
    "bendybus/testing": "testing",
    "bendybus_portal": "unit/portal",
    "pyspark_servicebus": "spark",
}

# A test file, or a folder of them -> the modules whose subject it tests, below `src/bendybus` unless said.
COVERS = {
    # HTTP management: its routes and documents are one subject, seen from outside.
    "unit/admin/test_azure_errors.py": "errors admin/answers admin/paths admin/refusals admin/routes",
    "unit/admin/test_azure_values.py": "admin/fields admin/topic_routes admin/topics",
    "interop/test_administration.py": "admin/totals",
    "interop/test_topic_administration.py": "broker/entity",
    "interop/test_resource_manager.py": "arm/authorization_resources arm/entity_resources "
    "arm/namespace_resources arm/routes",
    "unit/admin/test_connections.py": "admin/connection_routes gateway/connection_list",
    "unit/admin/test_overview.py": "admin/entity_parts admin/overview_routes admin/pages",
    "unit/admin/test_pipelines.py": "admin/pipeline_routes management/run_reports",
    "browser/test_pipelines.py": "bendybus_portal/pages/pipelines",
    # The portal: in a process of its own, and in a browser.
    "unit/server/test_portal.py": "server/portal_passing cli/portal bendybus_portal/access "
    "bendybus_portal/serving",
    "unit/portal/test_shown.py": "bendybus_portal/series",
    "unit/portal/test_markup.py": "bendybus_portal/components/charts bendybus_portal/components/stats "
    "bendybus_portal/components/table",
    "browser/test_entity.py": "bendybus_portal/components/entity_frame "
    "bendybus_portal/components/partition_panel bendybus_portal/pages/entity bendybus_portal/pages/settings",
    "unit/portal/test_messages.py": "bendybus_portal/holding",
    "unit/portal/test_reading.py": "bendybus_portal/config_file",
    "browser/test_messages.py": "bendybus_portal/components/held_panel "
    "bendybus_portal/components/message_view bendybus_portal/components/send_form "
    "bendybus_portal/components/own_templates bendybus_portal/components/replay_form "
    "bendybus_portal/pages/messages",
    "browser/test_dead_letters.py": "bendybus_portal/pages/dead_letters",
    "browser/test_sessions.py": "bendybus_portal/pages/sessions",
    "browser/test_rules.py": "bendybus_portal/pages/rules",
    "browser/test_operations.py": "bendybus_portal/pages/connections bendybus_portal/pages/stores "
    "bendybus_portal/pages/policies",
    "browser/test_config_file.py": "bendybus_portal/components/import_export",
    "browser/test_namespace.py": "bendybus_portal/layout "
    "bendybus_portal/components/create_entity bendybus_portal/components/dialogs "
    "bendybus_portal/components/jobs_panel bendybus_portal/components/live bendybus_portal/pages/namespace "
    "bendybus_portal/components/markup_element",
    "unit/admin/test_authorization_rules.py": "admin/authorization_rule_routes",
    "interop/test_outages.py": "admin/fault_routes admin/store_routes cli/fault",
    # AMQP: values and frames by the tests of the codec, the engine by the chapters of the standard.
    "unit/test_one_spelling.py": "amqp/annotations",
    "unit/amqp/test_codec.py": "amqp/decoder amqp/encoder",
    "unit/amqp/test_performatives.py": "amqp/composite",
    "unit/amqp/test_message.py": "amqp/message_encoder amqp/sections",
    "unit/amqp/test_short_cuts.py": "amqp/ordinary amqp/transfer_run",
    "protocol/test_2_2_version_negotiation.py": "engine/handshake",
    "protocol/test_2_4_connections.py": "engine/channels engine/config engine/connection engine/events "
    "engine/idle",
    "protocol/test_2_5_sessions.py": "engine/session engine/outgoing",
    "protocol/test_2_6_links.py": "engine/link engine/handles",
    "protocol/test_2_6_credit.py": "engine/receiving engine/sending",
    "protocol/test_2_6_deliveries.py": "engine/accepted",
    "protocol/test_5_3_sasl.py": "engine/sasl",
    "protocol/test_corpus.py": "engine/eventlog",
    # Broker: what a partition, a store and an entity go through.
    "unit/broker/test_broker.py": "broker/entities broker/idle broker/placing broker/queue broker/queues "
    "broker/recorded broker/emptying broker/openers broker/store_set broker/ticker",
    "unit/broker/test_host.py": "broker/mailbox broker/partition_host broker/partition_lifecycle "
    "broker/partition_reads broker/payload_cache",
    # Between brokers.
    "unit/cluster/test_peers.py": "cluster/link_protocol",
    "unit/cluster/test_frames.py": "cluster/items",
    "unit/cluster/test_remote.py": "broker/partition_port cluster/answers cluster/arrivals cluster/lending "
    "cluster/serving cluster/supply cluster/watching",
    "unit/cluster/test_selecting.py": "broker/selection",
    "unit/cluster/test_following.py": "broker/elsewhere cluster/cluster cluster/leaving",
    "unit/cluster/test_handing_over.py": "broker/partition_succession cluster/passing_on",
    "unit/cluster/test_ownership.py": "cluster/exchange cluster/reaching",
    "interop/test_cluster.py": "admin/broker_routes cli/brokers server/cluster_node server/cluster_part "
    "server/described",
    "store/test_cluster_catalog.py": "store/postgres/catalog store/postgres/roster store/roster",
    "interop/test_brokers.py": "server/broker_process server/forwarded_http",
    "unit/broker/test_outages.py": "broker/attempts broker/loop_calls broker/recovery broker/state_changes "
    "broker/stores broker/uncertain",
    "unit/broker/test_topics.py": "broker/topic_host broker/turns broker/transactions",
    "unit/broker/test_moving.py": "broker/copying broker/journal",
    "unit/broker/test_deleting.py": "broker/departure",
    "unit/gateway/test_session_receiver.py": "broker/holders gateway/link_ports gateway/session_filters",
    # The command line, as processes.
    "cli/test_connections.py": "cli/connection",
    "cli/test_replay.py": "cli/replay operations/replaying",
    "interop/test_replay.py": "gateway/management/replaying",
    "interop/test_telemetry.py": "gateway/observer server/telemetry telemetry/pipeline",
    "cli/test_filters.py": "cli/cancel gateway/management/filtering operations/deferred",
    "cli/test_namespaces.py": "cli/namespace server/namespace_keeper server/namespace_routes",
    "cli/test_policies.py": "cli/policy",
    "cli/test_sessions.py": "cli/session operations/sessions",
    "cli/test_top.py": "cli/top",
    "cli/test_transfer.py": "cli/transfer",
    "cli/test_backup.py": "cli/backup cli/operated server/operator server/backup server/backup_format "
    "server/backup_routes server/restore",
    "cli/test_entities.py": "cli/command cli/entity_options",
    "cli/test_messages.py": "cli/completion cli/receive cli/tables",
    "cli/test_moving.py": "cli/counts cli/move operations/moving",
    "cli/test_pipelines.py": "cli/pipeline cli/pipelines cli/pipeline_runs",
    "testing/test_entity_faults.py": "broker/entity_faults",
    "cli/test_trust.py": "cli/trust",
    "cli/test_stores.py": "cli/stores server/json_nodes",
    "unit/cli/test_messages.py": "cli/deadletter cli/options cli/purge cli/send operations/copies "
    "operations/drafts operations/peeking operations/purging",
    "unit/cli/test_main.py": "cli/lazy",
    # The blocking client, against a server.
    "client/test_client.py": "client/cbs client/channel client/messages client/receiver client/refusals "
    "client/sender",
    "client/test_extensions.py": "client/management client/requests gateway/management/extensions "
    "gateway/management/inserting",
    # The domain: a partition is tested by commands and what comes of them.
    "unit/domain/test_properties.py": "domain/property",
    "unit/domain/test_partition_flow.py": "domain/changes domain/intake domain/messages domain/stock "
    "domain/handlers/receiving domain/handlers/sending",
    "unit/domain/test_partition_settlement.py": "domain/handlers/settling",
    "unit/domain/test_partition_sessions.py": "domain/session_locks domain/handlers/sessions",
    "unit/domain/test_partition_outbox.py": "domain/deadletter",
    "unit/domain/test_ranges.py": "domain/leases domain/handlers/ranges",
    "unit/domain/test_purging.py": "domain/handlers/purging",
    "unit/domain/test_entities.py": "domain/shelf",
    "unit/domain/filters/test_conditions.py": "domain/filters/evaluate domain/filters/like "
    "domain/filters/values",
    "unit/domain/filters/test_parser.py": "domain/filters/cursor domain/filters/lexer",
    "unit/domain/filters/test_rules.py": "domain/filters/actions domain/filters/correlation "
    "domain/filters/parameters",
    "unit/domain/filters/test_cost.py": "domain/filters/reading",
    "unit/admin/test_filter_rules.py": "domain/filters/records",
    "unit/broker/test_evaluating.py": "domain/evaluation",
    "unit/gateway/test_transactions.py": "domain/transactions gateway/transaction",
    "unit/envelope/test_envelope.py": "envelope/admission envelope/delivery envelope/stored "
    "envelope/transfer",
    "unit/envelope/test_short_cuts.py": "envelope/front",
    # AMQP links.
    "unit/gateway/test_probation.py": "gateway/connection gateway/gateway",
    "unit/gateway/test_settlement.py": "gateway/dispositions",
    "unit/gateway/test_browsing_links.py": "gateway/browser gateway/selective_receiver",
    "unit/gateway/test_peeking.py": "gateway/management/messages gateway/management/operation",
    "unit/gateway/test_filter_rules.py": "gateway/management/filter_rules",
    "unit/gateway/test_memory_budget.py": "gateway/holdings",
    "interop/test_jms_subscriptions.py": "broker/client_subscriptions gateway/attachments "
    "gateway/client_entities gateway/opening gateway/termini",
    "interop/test_jms_temporary.py": "broker/background gateway/holds",
    "hostile/test_claims.py": "gateway/cbs gateway/client_identity",
    "hostile/test_attaching.py": "gateway/attaching",
    "interop/test_requests.py": "gateway/requests gateway/management/fields gateway/management/locks "
    "gateway/management/node",
    "interop/test_scheduling.py": "gateway/management/scheduling",
    "interop/test_sessions.py": "gateway/management/sessions",
    # HTTP messages, and the server as a whole.
    "interop/test_rest.py": "rest/errors rest/routes rest/settling",
    "interop/test_rest_sessions.py": "rest/sessions",
    "hostile/test_every_route.py": "server/app server/front server/process",
    "hostile/test_require_tls.py": "server/plain_refusals",
    "unit/server/test_http.py": "server/http_protocol",
    "unit/server/test_websocket.py": "server/websocket_protocol",
    "unit/server/test_metrics.py": "server/figures server/metric_families server/metrics_page",
    "unit/server/test_listener.py": "server/sockets",
    "interop/test_premium.py": "server/tiers",
    "interop/test_entra.py": "auth/roles server/local_auth",
    "testing/test_plugin.py": "pytest_plugin testing/server",
    "testing/test_namespaces.py": "testing/namespace testing/seen_messages",
    "testing/test_time_machine.py": "testing/clock",
    "unit/domain/test_fanout.py": "domain/copies",
    # Stores: one contract for all kinds.
    "store/test_contract.py": "store/encoding store/memory store/postgres/encoding store/queries "
    "store/sqlite/commits store/sqlite/connections "
    "store/sqlite/store",
    "store/test_shared_bodies.py": "store/sqlite/encoding",
    "store/test_catalog.py": "store/memory_catalog store/sqlite/catalog",
    "store/test_postgres.py": "store/postgres/address store/postgres/connections store/postgres/schema "
    "store/postgres/store",
    "store/test_postgres_failover.py": "store/postgres/timelines",
    "store/test_images.py": "store/postgres/image store/sqlite/image",
    "store/test_sqlite_damage.py": "store/sqlite/files",
    "store/test_sqlite_lost_commits.py": "store/sqlite/witness",
    "store/test_sqlite_journal.py": "store/sqlite/commit_path store/sqlite/journal store/sqlite/pending "
    "store/sqlite/records store/sqlite/turnover",
    "store/test_sqlite_ahead.py": "store/sqlite/ahead",
    "store/test_sqlite_removals.py": "store/sqlite/removals",
    # Spark.
    "spark/test_rows.py": "pyspark_servicebus/decoding pyspark_servicebus/encoding pyspark_servicebus/entity "
    "pyspark_servicebus/offsets pyspark_servicebus/planning pyspark_servicebus/schema",
    "spark/test_streaming.py": "pyspark_servicebus/stream",
    "spark/test_options.py": "pyspark_servicebus/datasource pyspark_servicebus/option_names",
    "spark/test_bad_input.py": "pyspark_servicebus/mistakes",
    "spark/pipelines/test_capture.py": "pyspark_servicebus/pipelines/checkpoint "
    "pyspark_servicebus/pipelines/delta pyspark_servicebus/pipelines/failures "
    "pyspark_servicebus/pipelines/pipeline pyspark_servicebus/pipelines/streams",
    "spark/pipelines/test_repartition.py": "pyspark_servicebus/pipelines/entities "
    "pyspark_servicebus/pipelines/few_messages pyspark_servicebus/pipelines/parts "
    "pyspark_servicebus/pipelines/session_states",
    "spark/pipelines/test_replay.py": "pyspark_servicebus/pipelines/jobs",
    "spark/pipelines/test_report.py": "pyspark_servicebus/pipelines/charts "
    "pyspark_servicebus/pipelines/facts pyspark_servicebus/pipelines/page",
    "spark/pipelines/test_triage.py": "pyspark_servicebus/pipelines/small_triage",
    "faults/cluster_check.py": "pyspark_servicebus/pipelines/shipping",
}

# Statements of a module that decides something. Others only say what there is: commands, names, protocols.
DECISIONS = (
    *(ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.Match, ast.Try, ast.With, ast.AsyncWith),
    *(ast.BoolOp, ast.comprehension),
)


def all_modules() -> Iterator[str]:
    for path in sorted(SRC.rglob("*.py")):
        if path.name != "__init__.py":
            yield path.relative_to(SRC).with_suffix("").as_posix()


def decides(module: str) -> bool:
    tree = ast.parse((SRC / f"{module}.py").read_text())
    return any(isinstance(node, DECISIONS) for node in ast.walk(tree))


def folder_of(module: str) -> Path:
    for package, folder in FOLDERS.items():
        if module.startswith(f"{package}/"):
            return TESTS.joinpath(folder, *PurePosixPath(module.removeprefix(f"{package}/")).parts[:-1])
    return TESTS.joinpath("unit", *PurePosixPath(module).parts[1:-1])


def named_for(module: str) -> list[Path]:
    """The test files whose names contain the module's."""
    name = PurePosixPath(module).name
    return [
        path
        for path in sorted(folder_of(module).glob("test_*.py"))
        if path.stem == f"test_{name}"
        or path.stem.startswith(f"test_{name}_")
        or path.stem.endswith(f"_{name}")
    ]


def listed() -> dict[str, list[str]]:
    """Module -> the test files that are listed for it."""
    found: dict[str, list[str]] = {}
    for test, modules in COVERS.items():
        for module in modules.split():
            elsewhere = module.startswith(("bendybus_portal/", "pyspark_servicebus/"))
            whole = module if elsewhere else f"bendybus/{module}"
            found.setdefault(whole, []).append(test)
    return found


def test_every_module_that_decides_something_has_tests_one_can_find() -> None:
    """A new one gets a test file of its name, or the test of its subject is named in COVERS."""
    known = listed()
    assert [
        each for each in all_modules() if not named_for(each) and each not in known and decides(each)
    ] == []


def test_what_is_listed_exists_and_has_no_test_of_its_own_name() -> None:
    modules = {*all_modules()}
    for module, tests in listed().items():
        assert module in modules, module
        assert len(tests) == 1, f"{module} is listed twice: {tests}"
        assert not named_for(module), f"{module} is found by its name: {named_for(module)}"
    assert [test for test in COVERS if not (TESTS / test).exists()] == []
