"""Which paths are the resource manager's, and what they name."""

from __future__ import annotations

import pytest

from bendybus.arm.resources import Resource, Template, is_resource_path, is_resource_request

ROOT = "/subscriptions/s/resourceGroups/g/providers/Microsoft.ServiceBus"


@pytest.mark.parametrize(
    "path",
    [
        f"{ROOT}/namespaces/n/queues/q",
        f"{ROOT.lower()}/namespaces",
        f"{ROOT.upper()}/namespaces/",
        "/subscriptions/s/providers/Microsoft.ServiceBus/checkNameAvailability",
        "/providers/Microsoft.ServiceBus/operations",
    ],
)
def test_a_path_below_the_provider_is_a_resources(path):
    assert is_resource_path(path)
    assert is_resource_path(path.strip("/")), "so it is refused as the name of an entity"
    assert is_resource_request(path, "")


@pytest.mark.parametrize(
    "path",
    ["/", "/orders", "/subscriptions", "/news/subscriptions/all", "/subscriptions/s/providers/Other/x"],
)
def test_other_paths_are_entities(path):
    assert not is_resource_path(path)


def test_the_version_tells_a_subscription_from_an_entity():
    assert is_resource_request("/subscriptions", "api-version=2022-12-01")
    assert is_resource_request("/Subscriptions/s", "Api-Version=2022-12-01-preview")
    assert not is_resource_request("/subscriptions", "api-version=2021-05")
    assert not is_resource_request("/subscriptions", "")
    assert not is_resource_request("/orders", "api-version=2022-12-01")


def test_ids_have_what_the_request_named():
    resource = Resource.parse(f"{ROOT}/namespaces/n")
    assert resource.id_of("namespaces", "n", "queues", "eu/orders") == f"{ROOT}/namespaces/n/queues/eu~orders"
    without_group = Resource.parse("/subscriptions/s/providers/Microsoft.ServiceBus/namespaces")
    assert without_group.id_of("namespaces", "n") == (
        "/subscriptions/s/resourceGroups/bendybus/providers/Microsoft.ServiceBus/namespaces/n"
    )


def test_a_template_finds_names_in_any_case_and_with_slashes():
    template = Template("namespaces/{namespace}/queues/{queue}/authorizationRules/{rule}")
    names = {"namespace": "n", "queue": "eu/orders", "rule": "r"}
    assert template.match("Namespaces/n/Queues/eu~orders/AuthorizationRules/r") == names
    assert template.match("namespaces/n/queues/eu/orders/authorizationRules/r") == names
    assert template.match("namespaces/n/queues/orders") is None
    assert template.match("namespaces/n/x/queues/orders/authorizationRules/r") is None
