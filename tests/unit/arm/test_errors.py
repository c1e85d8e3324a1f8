"""Errors in the form and with the codes of Azure Resource Manager."""

from __future__ import annotations

import json

import pytest

from bendybus.arm.errors import Forbidden, LocationChanged, ParentNotFound, refused
from bendybus.errors import (
    ArgumentError,
    EntityExists,
    EntityNotFound,
    MethodNotAllowed,
    NamespaceNotFound,
    NotSupported,
    QuotaExceeded,
    RulesTooCostly,
    StoreUnavailable,
    Unauthorized,
)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ArgumentError("x"), 400, "BadRequest"),
        (Unauthorized("x"), 401, "InvalidAuthenticationToken"),
        (Forbidden("x"), 403, "AuthorizationFailed"),
        (QuotaExceeded("x"), 403, "QuotaExceeded"),
        (RulesTooCostly("x"), 403, "QuotaExceeded"),
        (EntityNotFound("x"), 404, "ResourceNotFound"),
        (NamespaceNotFound("x"), 404, "ResourceNotFound"),
        (ParentNotFound("x"), 404, "ParentResourceNotFound"),
        (MethodNotAllowed("x"), 405, "MethodNotAllowed"),
        (EntityExists("x"), 409, "Conflict"),
        (LocationChanged("x"), 409, "InvalidResourceLocation"),
        (NotSupported("x"), 501, "NotSupported"),
        (StoreUnavailable("x"), 503, "ServiceUnavailable"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_has_its_status_and_a_code(error, status, code):
    response = refused(error)
    assert response.status_code == status
    assert json.loads(response.body) == {"error": {"code": code, "message": error.description}}
    assert ("www-authenticate" in response.headers) == (status == 401)
